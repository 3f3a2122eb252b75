# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for middleboxes on a path of the testbed: packets really pass them, with and without an emulated delay."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.topologies import paths

pytestmark = pytest.mark.kernel


def exchanged(testbed: Testbed, data: bytes) -> tuple[bytes, str, float]:
    """Send *data* from the client to the proxy and back by plain TCP.

    Return the data that came back, the client's address and the round-trip time.
    """
    with testbed["proxy"].entered():
        listener = socket.create_server((testbed["proxy"].address("wan0"), 7000))
    with listener, testbed["client"].entered():
        client = socket.socket()
        client.settimeout(60)
        began = time.monotonic()
        client.connect(listener.getsockname())
        rtt = time.monotonic() - began
        server, address = listener.accept()
        with client, server:
            server.settimeout(60)
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: server.recv(65536), b""))
            server.sendall(received)
            server.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(65536), b"")), str(address[0]), rtt


@pytest.mark.parametrize("behaviour", ["nat", "coalesce"])
def test_plain_tcp_passes_a_middlebox_whole(make_testbed: Callable[..., Testbed], require: Any, behaviour: str) -> None:
    require("nfqueue", "gcc")
    delayed = Direction(50_000_000, 10_000, mtu=3200 if behaviour == "coalesce" else 1500)
    testbed = make_testbed(
        paths([EmulatedPath("ethernet", delayed, Direction(50_000_000, 10_000), middlebox=behaviour)])
    )
    data = bytes(range(256)) * 160  # less than the buffers hold, because nobody reads while these data are sent
    received, address, rtt = exchanged(testbed, data)
    assert received == data
    assert (address == "10.77.1.77") is (behaviour == "nat")
    assert rtt >= 0.02, "the box's packets have the path's delay"
    assert testbed.emulation.change_middlebox("ethernet", "nothing") > 0
    assert exchanged(testbed, data)[0] == data
    assert testbed.emulation.change_middlebox("ethernet", behaviour) == 0
