# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the tunnel daemon's status socket.

The daemon applies the classes that the throttler requests, and then sends its status.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mptcp_tunnel.status_socket import ANSWER_SECONDS, REQUEST_SECONDS, StatusSocket


class Daemon:
    def __init__(self, path: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.applied: list[Any] = []
        self.filler = ""
        """Text that makes the status longer."""
        self.socket = StatusSocket(
            path, self.selector, self.apply, lambda: {"applied": len(self.applied), "filler": self.filler}
        )

    def apply(self, request: dict[str, Any]) -> None:
        self.applied.append({each: [int(value[0]), int(value[1])] for each, value in request["classes"].items()})

    def run_once(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()
        self.socket.answer_waiting()


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.setblocking(False)
        yield client


def read_answer(daemon: Daemon, client: socket.socket) -> Any:
    received = b""
    while True:
        daemon.run_once()
        try:
            chunk = client.recv(1 << 20)
        except BlockingIOError:
            continue
        if not chunk:
            return json.loads(received)
        received += chunk


@pytest.mark.parametrize(
    ("chunks", "applied"),
    [
        ([], []),
        ([b'{"classes": {"7": [1, 2]}}\n'], [{"7": [1, 2]}]),
        ([b'{"classes": ', b"{}}", b"\n"], [{}]),
        ([b"[]\n"], []),
        ([b"{nonsense\n"], []),
        ([b"[" * 100_000 + b"\n"], []),
        ([b'{"classes": {"7": []}}\n'], []),
        ([b'{"classes": {"7": [1e999, 1]}}\n'], []),
        ([b"x" * (1 << 20), b"y" * 100], []),
    ],
    ids=[
        "no request",
        "one class",
        "request in pieces",
        "list",
        "malformed JSON",
        "deeply nested",
        "class without numbers",
        "infinite number",
        "too long",
    ],
)
def test_requested_classes_are_applied_before_the_answer(
    tmp_path: Path, chunks: list[bytes], applied: list[Any]
) -> None:
    path = tmp_path / "run" / "socket"
    daemon = Daemon(path)
    with connected(path) as client:
        for chunk in chunks:
            sent = 0
            while sent < len(chunk):
                try:
                    sent += client.send(chunk[sent:])
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    break
                daemon.run_once()
        assert read_answer(daemon, client)["applied"] == len(applied)
    assert daemon.applied == applied
    daemon.socket.close()
    assert not path.parent.exists()


def test_silent_client_does_not_delay_others(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "socket")
    with connected(tmp_path / "socket") as silent, connected(tmp_path / "socket") as other:
        other.send(b'{"classes": {}}\n')
        assert read_answer(daemon, other)["applied"] == 1
        assert read_answer(daemon, silent)["applied"] == 1
    daemon.socket.close()


def test_client_that_does_not_read_is_dropped_without_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the daemon waited until that client had read its answer, and sent no probes in that time."""
    daemon = Daemon(tmp_path / "socket")
    daemon.filler = "x" * (8 << 20)
    with connected(tmp_path / "socket") as not_reading, connected(tmp_path / "socket") as other:
        for client in (not_reading, other):
            client.send(b'{"classes": {}}\n')
        assert read_answer(daemon, other)["applied"] == 2
        later = time.monotonic() + ANSWER_SECONDS
        monkeypatch.setattr(time, "monotonic", lambda: later)
        daemon.run_once()
        assert daemon.socket.next_deadline is None
    assert len(daemon.selector.get_map()) == 1
    daemon.socket.close()


def test_slow_request_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    daemon = Daemon(tmp_path / "socket")
    with connected(tmp_path / "socket") as client:
        for chunk in (b'{"clas', b'ses"', b": {}", b"}\n"):
            client.send(chunk)
            for _ in range(3):
                daemon.run_once()
            now += 0.9 * REQUEST_SECONDS
        assert read_answer(daemon, client)["applied"] == 1
    daemon.socket.close()
