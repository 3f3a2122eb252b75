# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for messages to the service manager: their text, their socket, and the case without a service manager."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_common import service_manager
from mptcp_common.service_manager import notify, notify_or_warn, reloading, status, watchdog_seconds


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_lines_are_sent_in_one_message(manager: socket.socket) -> None:
    notify("READY=1", "STATUS=well")
    assert manager.recv(100) == b"READY=1\nSTATUS=well"


def test_abstract_socket_address_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"mptcp-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify("READY=1")
        assert listener.recv(100) == b"READY=1"


def test_without_notify_socket_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    assert not service_manager.is_managed()


def test_missing_service_manager_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError):
        notify("READY=1")


def test_status_is_one_bounded_line() -> None:
    assert status("one\ntwo\n  three") == "STATUS=one two three"
    assert len(status("x" * 9000)) < 600


def test_reload_message_has_the_monotonic_time() -> None:
    begun, when = reloading()
    assert begun == "RELOADING=1"
    assert abs(int(when.removeprefix("MONOTONIC_USEC=")) / 1e6 - time.monotonic()) < 60


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_watchdog_applies_only_to_this_process(environment: dict[str, str], seconds: float | None) -> None:
    assert watchdog_seconds(environment) == seconds


def test_notify_or_warn_prints_a_warning_without_a_service_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify_or_warn("mptcp-x", "READY=1", "STATUS=well")
    assert (
        capsys.readouterr().err == "mptcp-x: cannot notify the service manager (READY=1): No such file or directory\n"
    )


def test_notify_or_warn_sends_its_lines(manager: socket.socket) -> None:
    notify_or_warn("mptcp-x", "READY=1", "STATUS=well")
    assert manager.recv(100) == b"READY=1\nSTATUS=well"
