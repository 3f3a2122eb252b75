# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the capture socket: it ignores frames that arrived before its filter was set, and knows directions."""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from contextlib import closing

import pytest

from mptcp_lab.testbed import Testbed
from mptcp_throttler.kernel.capture import Capture
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import ACK, RST, SYN

pytestmark = pytest.mark.kernel

PORT = 3128
SOCKETS = 20
SOL_PACKET, PACKET_STATISTICS = 263, 6  # linux/if_packet.h
SEND_DATAGRAMS = """\
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
until = time.monotonic() + float(sys.argv[2])
while time.monotonic() < until:
    sender.sendto(bytes(200), (sys.argv[1], 9))
"""


def test_capture_ignores_frames_that_arrived_before_its_filter(testbed: Testbed) -> None:
    proxy, client = testbed["proxy"], testbed["client"]
    sender = client.popen([sys.executable, "-c", SEND_DATAGRAMS, proxy.address("wan0"), "15"], name="sender")
    try:
        with proxy.entered():
            before = proxy.interface_bytes("wan0").received
            while proxy.interface_bytes("wan0").received < before + 100_000:
                time.sleep(0.02)
            for _ in range(SOCKETS):
                with closing(Capture("wan0", [PORT])) as capture:
                    assert list(capture.read()) == []
                    received_and_dropped = capture._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
                    assert received_and_dropped == bytes(8)
    finally:
        sender.kill()


def test_capture_marks_the_segments_that_this_host_sent(testbed: Testbed) -> None:
    proxy, client = testbed["proxy"], testbed["client"]
    with proxy.entered():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        capture = Capture("wan0", [PORT])
    with client.entered():
        client_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with listener, client_socket, closing(capture):
        listener.bind(("0.0.0.0", PORT))
        listener.listen()
        client_socket.settimeout(60)
        client_socket.connect((proxy.address("wan0"), PORT))
        syn, syn_ack = segments(capture, 2)
    assert (syn.flags & ACK, syn.outgoing) == (0, False)
    assert (syn_ack.flags & ACK, syn_ack.outgoing) == (ACK, True)


def test_capture_on_loopback_reads_each_frame_once(testbed: Testbed) -> None:
    with testbed["proxy"].entered():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        client_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        capture = Capture("lo", [PORT])
    with listener, client_socket, closing(capture):
        listener.bind(("127.0.0.1", PORT))
        listener.listen()
        client_socket.settimeout(60)
        client_socket.connect(("127.0.0.1", PORT))
        client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client_socket.close()
        found = segments(capture, 3)
    assert [each.flags & (SYN | RST) for each in found] == [SYN, SYN, RST]
    assert [each.flags & ACK for each in found[:2]] == [0, ACK]
    assert {each.outgoing for each in found} == {None}


def segments(capture: Capture, count: int) -> list[Segment]:
    found: list[Segment] = []
    while len(found) < count:
        assert select.select([capture], [], [], 60)[0], "nothing was captured"
        found += capture.read()
    return found[:count]
