# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``top`` on a pseudo-terminal of 80 columns: its table, and restoring the terminal at exit."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import ioctl
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from answering_socket import answering
from status_answers import Answer, answer_pages_of

TIME_LIMIT = 60.0
"""Time limit in seconds that is long enough for a slow, busy machine."""
ALTERNATE_SCREEN, NORMAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
Requests = list[tuple[float, Answer]]
CURSOR_OFF, CURSOR_ON = b"\x1b[?25l", b"\x1b[?25h"


class Terminal:
    """The command, running on a pseudo-terminal."""

    def __init__(self, socket: Path, *options: str) -> None:
        self.controller, terminal = os.openpty()
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.initial_modes = termios.tcgetattr(terminal)
        self._terminal = terminal
        self.output = b""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", sys.executable, "-m", "mptcp_throttler.cli", "top", "--socket", str(socket), *options],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm"} | dict.fromkeys(("COLUMNS", "LINES"), ""),
        )

    def type(self, text: str) -> None:
        os.write(self.controller, text.encode())

    def read(self, seconds: float) -> bool:
        """Read the output. Return False if no output came for *seconds*."""
        if not select.select([self.controller], [], [], seconds)[0]:
            return False
        self.output += os.read(self.controller, 1 << 16)
        return True

    def wait_for(self, *texts: str) -> None:
        """Wait until the output since the last call contains all of *texts*. Then discard this output."""
        deadline = time.monotonic() + TIME_LIMIT
        while not all(text in without_escapes(self.output) for text in texts):
            assert time.monotonic() < deadline, f"{texts} not in {without_escapes(self.output)[-2000:]}"
            self.read(0.2)
        self.output = b""

    def wait_for_exit(self) -> int:
        """Wait until the command ends. Return its exit status."""
        deadline = time.monotonic() + TIME_LIMIT
        while (status := self.process.poll()) is None:
            assert time.monotonic() < deadline
            self.read(0.1)
        while self.read(0):
            pass
        return status

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._terminal)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.controller)
        os.close(self._terminal)


def without_escapes(output: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode(errors="replace"))


@contextmanager
def running_top(
    tmp_path: Path, answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None
) -> Iterator[tuple[Any, Any]]:
    with answering(tmp_path / "s", answer or answer_pages_of(10_000)) as requests:
        terminal = Terminal(tmp_path / "s")
        try:
            yield terminal, requests
        finally:
            terminal.close()


def is_restored(terminal: Terminal, output: bytes) -> bool:
    return (
        terminal.modes == terminal.initial_modes
        and output.count(ALTERNATE_SCREEN) == output.count(NORMAL_SCREEN) > 0
        and output.rindex(CURSOR_ON) > output.rindex(CURSOR_OFF)
    )


def test_top_updates_once_a_second(tmp_path: Path) -> None:
    with answering(tmp_path / "s", answer_pages_of(10_000)) as requests:
        terminal = Terminal(tmp_path / "s", "--sort", "bytes", "--client", "10.77.1.2")
        try:
            terminal.wait_for(
                "10000 connections  by bytes  bit/s  client 10.77.1.2  q quits", "10.77.1.2:40000", "held"
            )
            terminal.wait_for("rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active")
            terminal.type("x\x1b[A")
            terminal.wait_for("10000 connections")
            terminal.type("q")
            assert terminal.wait_for_exit() == 0
        finally:
            terminal.close()
    assert len(requests) >= 2, "top sent only one request"
    times = [sent for sent, _ in requests]
    assert min(later - earlier for earlier, later in pairwise(times)) > 0.8, "top sent two requests within a second"
    for _, request in requests:
        assert request == {"query": "connections", "sort": "bytes", "limit": 24, "client": "10.77.1.2"}


@pytest.mark.parametrize(
    ("exit_cause", "status"),
    [
        ("q", 0),
        ("\x03", 0),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGHUP, 128 + signal.SIGHUP),
        (signal.SIGQUIT, 128 + signal.SIGQUIT),
    ],
    ids=["q", "Ctrl-C", "SIGTERM", "SIGHUP", "SIGQUIT"],
)
def test_terminal_is_restored_on_every_exit(tmp_path: Path, exit_cause: str | signal.Signals, status: int) -> None:
    with running_top(tmp_path) as (terminal, _):
        terminal.wait_for("10000 connections")
        assert terminal.modes != terminal.initial_modes
        if isinstance(exit_cause, str):
            terminal.type(exit_cause)
        else:
            terminal.process.send_signal(exit_cause)
        terminal.output = ALTERNATE_SCREEN
        assert terminal.wait_for_exit() == status
        assert is_restored(terminal, ALTERNATE_SCREEN + CURSOR_OFF + terminal.output[len(ALTERNATE_SCREEN) :])


def test_terminal_is_restored_after_an_unexpected_answer(tmp_path: Path) -> None:
    invalid_answer = {"schema": 2, "time": 0.0, "total": 1, "connections": [{}]}
    with running_top(tmp_path, lambda request: invalid_answer) as (terminal, _):
        assert terminal.wait_for_exit() != 0
        assert is_restored(terminal, terminal.output)


def test_top_waits_for_a_daemon(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path / "s")
    try:
        terminal.wait_for("no daemon answers at")
        with answering(tmp_path / "s", answer_pages_of(3)):
            terminal.wait_for("3 connections")
        terminal.wait_for("no daemon answers at")
        terminal.type("q")
        assert terminal.wait_for_exit() == 0
    finally:
        terminal.close()


def test_top_can_be_quit_while_the_daemon_does_not_answer(tmp_path: Path) -> None:
    may_answer = threading.Event()

    def answer_later(request: dict[str, Any]) -> dict[str, Any]:
        assert may_answer.wait(TIME_LIMIT)
        return answer_pages_of(1)(request)

    with running_top(tmp_path, answer_later) as (terminal, requests):
        terminal.wait_for("querying")
        deadline = time.monotonic() + TIME_LIMIT
        while not requests:
            assert time.monotonic() < deadline
            terminal.read(0.05)
        terminal.type("\x1a")  # Ctrl-Z
        terminal.type("\x03")  # Ctrl-C
        assert terminal.wait_for_exit() == 0
        may_answer.set()
