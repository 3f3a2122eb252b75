# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the capture filter, which libpcap compiles and the kernel runs, on realistic segments.

Any process may attach such a filter to a pair of local sockets. For the filter, all their data are incoming.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from mptcp_throttler.kernel.capture import kernel_filter

JOIN_ACK_OPTION = (30, bytes([0x10, 0]) + bytes(20))
DSS_OPTION = (30, bytes([0x20, 0x01]) + bytes(16))
FASTCLOSE_OPTION = (30, bytes([0x70, 0]) + bytes(8))
CAPABLE_OPTION = (30, bytes([0x01, 0x81]) + bytes(16))
NOP, TIMESTAMP = ("NOP", None), ("Timestamp", (0x1E1E1E1E, 0x1E1E1E1E))


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("instructions", ctypes.POINTER(_Instruction)))


_SO_ATTACH_FILTER = 26


@pytest.fixture(scope="module")
def passes() -> Iterator[Callable[..., bool]]:
    """Yield a function that returns whether the filter passes a frame.

    With ``loopback``, it uses the loopback interface's filter.
    """
    pcap = ctypes.CDLL(ctypes.util.find_library("pcap") or "libpcap.so.0.8")
    pcap.pcap_open_dead.restype = ctypes.c_void_p
    handle, program = ctypes.c_void_p(pcap.pcap_open_dead(1, 65535)), _Program()
    socket_pairs: list[tuple[socket.socket, socket.socket]] = []
    with ExitStack() as stack:
        for loopback in (False, True):
            expression = kernel_filter([3128], loopback).encode()
            assert pcap.pcap_compile(handle, ctypes.byref(program), expression, 1, 0xFFFFFFFF) == 0
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            for end in ends:
                stack.enter_context(end).setblocking(False)
            value = struct.pack("HP", program.length, ctypes.cast(program.instructions, ctypes.c_void_p).value)
            ends[1].setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, value)
            pcap.pcap_freecode(ctypes.byref(program))
            socket_pairs.append(ends)

        def run(data: bytes, loopback: bool = False) -> bool:
            sender, receiver = socket_pairs[loopback]
            sender.send(data)
            try:
                return receiver.recv(len(data)) == data
            except BlockingIOError:
                return False

        yield run


def frame(
    *options: object, flags: str = "A", payload: bytes = b"", v6: bool = False, ports: tuple[int, int] = (40000, 3128)
) -> bytes:
    network = IPv6(src="fd00::1", dst="fd00::2") if v6 else IP(src="10.0.0.1", dst="10.0.0.2")
    tcp = TCP(sport=ports[0], dport=ports[1], flags=flags, options=list(options))
    return bytes(Ether() / network / tcp / payload)


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("option", [JOIN_ACK_OPTION, FASTCLOSE_OPTION], ids=["join ACK", "fastclose"])
@pytest.mark.parametrize(
    "before",
    [(), (NOP, NOP), (TIMESTAMP,), (NOP, NOP, TIMESTAMP), (("SAck", (1, 2)),)],
    ids=["first", "after NOPs", "after timestamp", "after NOPs and timestamp", "after SACK"],
)
def test_signalling_options_pass_at_any_position(passes, before, option, v6) -> None:  # type: ignore[no-untyped-def]
    assert passes(frame(*before, option, v6=v6))


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize(
    "before",
    [(), (NOP, NOP), (TIMESTAMP,), (NOP, NOP, TIMESTAMP)],
    ids=["first", "after NOPs", "after timestamp", "after NOPs and timestamp"],
)
def test_data_segments_do_not_pass_whatever_their_timestamp(passes, before, v6) -> None:  # type: ignore[no-untyped-def]
    assert not passes(frame(*before, DSS_OPTION, payload=b"\x1e\x03\x51" * 100, v6=v6))
    assert not passes(frame(*before, payload=b"\x1e\x03\x51" * 100, v6=v6))
    assert not passes(frame(*before, CAPABLE_OPTION, flags="FA", v6=v6))


@pytest.mark.parametrize("flags", ["S", "SA", "R"])
def test_syn_and_rst_pass(passes, flags) -> None:  # type: ignore[no-untyped-def]
    assert passes(frame(flags=flags))


@pytest.mark.parametrize("v6", [False, True])
def test_incoming_segments_from_the_proxys_port_do_not_pass(passes, v6) -> None:  # type: ignore[no-untyped-def]
    """On the loopback interface, packets from the proxy arrive as incoming packets, too."""
    answer = frame(flags="SA", v6=v6, ports=(3128, 40000))
    assert (passes(answer), passes(answer, loopback=True)) == (False, True)
    assert not passes(frame(flags="S", v6=v6, ports=(40000, 3129)), loopback=True)
