# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for requests that a host's agent refuses: the error names the host, what was attempted, and the reason."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mptcp_lab.remote.connection import Connection, Login
from mptcp_lab.remote.ssh import SshProgram
from mptcp_lab.testbed import TestbedError


def refusing(reason: str) -> Connection:
    """Return a connection whose agent answers the first request with *reason*, and that sends nothing."""
    connection = object.__new__(Connection)
    connection.name, connection.login = "proxy", Login("proxy.test")
    connection._changed, connection._count, connection._lost = threading.Condition(), 0, False
    connection._answers, connection._exits = {1: {"id": 1, "error": reason}}, {}
    cast(Any, connection)._send = lambda line: None
    return connection


def test_a_signal_that_is_refused_says_so() -> None:
    host = cast(Any, SimpleNamespace(name="proxy"))
    program = SshProgram(host, refusing("KeyError: 7"), "squid", 7, Path("squid.log"))
    with pytest.raises(TestbedError, match=r"^\[proxy\] signal squid: KeyError: 7$"):
        program.signal(15)
