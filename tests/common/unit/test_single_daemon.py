# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the lock that allows one daemon in a network namespace."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress

import pytest

from mptcp_common.single_daemon import AlreadyRunning, single_daemon

PROGRAM = f"mptcp-test-{os.getpid()}"


def test_second_daemon_is_refused_until_the_first_ends() -> None:
    with (
        single_daemon(PROGRAM),
        pytest.raises(AlreadyRunning, match=f"process {os.getpid()}"),
        single_daemon(PROGRAM),
    ):
        pass
    with single_daemon(PROGRAM):
        pass


def test_full_backlog_does_not_refuse_a_start() -> None:
    """Defect: any user could bind the address, fill its backlog, and so keep the daemon from starting."""
    with ExitStack() as stack:
        foreign = stack.enter_context(socket.socket(socket.AF_UNIX))
        foreign.bind(f"\0{PROGRAM}")
        foreign.listen(0)
        for _ in range(4):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(f"\0{PROGRAM}")
        stack.enter_context(single_daemon(PROGRAM))
