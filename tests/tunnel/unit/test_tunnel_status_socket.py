# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the tunnel daemon's status socket.

It applies the classes that the throttler requests, then sends the status.
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

from mptcp_tunnel.status_socket import ANSWER_SECONDS, PATIENCE_SECONDS, StatusSocket


class Daemon:
    def __init__(self, path: Path) -> None:
        self.selector = selectors.DefaultSelector()
        self.taken: list[Any] = []
        self.more = ""
        self.socket = StatusSocket(
            path, self.selector, self.take, lambda: {"taken": len(self.taken), "more": self.more}
        )

    def take(self, request: dict[str, Any]) -> None:
        self.taken.append({each: [int(value[0]), int(value[1])] for each, value in request["classes"].items()})

    def turn(self) -> None:
        for key, _ in self.selector.select(0.01):
            key.data()
        self.socket.answer_waiting()


@contextmanager
def asking(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.setblocking(False)
        yield client


def answer(daemon: Daemon, client: socket.socket) -> Any:
    came = b""
    while True:
        daemon.turn()
        try:
            piece = client.recv(1 << 20)
        except BlockingIOError:
            continue
        if not piece:
            return json.loads(came)
        came += piece


@pytest.mark.parametrize(
    ("pieces", "taken"),
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
)
def test_requested_classes_are_applied_before_the_answer(tmp_path: Path, pieces: list[bytes], taken: list[Any]) -> None:
    path = tmp_path / "run" / "socket"
    daemon = Daemon(path)
    with asking(path) as client:
        for piece in pieces:
            sent = 0
            while sent < len(piece):
                try:
                    sent += client.send(piece[sent:])
                except BlockingIOError:
                    pass
                except BrokenPipeError:
                    break
                daemon.turn()
        assert answer(daemon, client)["taken"] == len(taken)
    assert daemon.taken == taken
    daemon.socket.close()
    assert not path.parent.exists()


def test_silent_client_does_not_delay_others(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "socket")
    with asking(tmp_path / "socket") as silent, asking(tmp_path / "socket") as other:
        other.send(b'{"classes": {}}\n')
        assert answer(daemon, other)["taken"] == 1
        assert answer(daemon, silent)["taken"] == 1
    daemon.socket.close()


def test_client_that_does_not_read_is_dropped_without_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the daemon waited until that client had read its answer, and sent no probes in that time."""
    daemon = Daemon(tmp_path / "socket")
    daemon.more = "x" * (8 << 20)
    with asking(tmp_path / "socket") as deaf, asking(tmp_path / "socket") as other:
        for client in (deaf, other):
            client.send(b'{"classes": {}}\n')
        assert answer(daemon, other)["taken"] == 2
        later = time.monotonic() + ANSWER_SECONDS
        monkeypatch.setattr(time, "monotonic", lambda: later)
        daemon.turn()
        assert daemon.socket.due is None
    assert len(daemon.selector.get_map()) == 1
    daemon.socket.close()


def test_slow_request_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    daemon = Daemon(tmp_path / "socket")
    with asking(tmp_path / "socket") as client:
        for piece in (b'{"clas', b'ses"', b": {}", b"}\n"):
            client.send(piece)
            for _ in range(3):
                daemon.turn()
            now += 0.9 * PATIENCE_SECONDS
        assert answer(daemon, client)["taken"] == 1
    daemon.socket.close()
