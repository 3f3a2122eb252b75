# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for finding a client's MPTCP connection in the kernel: both ends must match, not only the ports."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from ipaddress import ip_address
from typing import Any

import pytest

from mptcp_portal.netlink import Ends, mptcp_connections

pytestmark = pytest.mark.kernel
PROXY = "127.0.0.1"
CLIENTS = "127.0.0.2", "127.0.0.3"


def mptcp_socket(stack: ExitStack) -> socket.socket:
    return stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP))


def test_clients_with_the_same_port_are_distinguished(require: Any) -> None:
    require("mptcp")
    with ExitStack() as stack:
        listener = mptcp_socket(stack)
        listener.bind((PROXY, 0))
        listener.listen()
        port, accepted = 0, []
        for address in CLIENTS:
            client = mptcp_socket(stack)
            client.bind((address, port))
            client.connect(listener.getsockname())
            port = client.getsockname()[1]
            accepted.append(stack.enter_context(listener.accept()[0]))
        proxy = ip_address(PROXY), listener.getsockname()[1]
        for address, each in zip(CLIENTS, accepted, strict=True):
            found = mptcp_connections(Ends((ip_address(address), port), proxy))
            assert [connection.inode for connection in found] == [os.fstat(each.fileno()).st_ino]
        assert mptcp_connections(Ends((ip_address("127.0.0.4"), port), proxy)) == []
