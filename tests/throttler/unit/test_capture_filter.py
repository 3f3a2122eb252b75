"""The kernel filter, compiled by libpcap and run on segments as stacks build them."""

from __future__ import annotations

import ctypes
import ctypes.util

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from mptcp_throttler.kernel.capture import kernel_filter

JOIN_ACK = (30, bytes([0x10, 0]) + bytes(20))
DATA = (30, bytes([0x20, 0x01]) + bytes(16))
PRIORITY = (30, bytes([0x51]))
NOP, STAMP = ("NOP", None), ("Timestamp", (0x1E1E1E1E, 0x1E1E1E1E))


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint), ("instructions", ctypes.POINTER(_Instruction)))


@pytest.fixture(scope="module")
def passes():  # type: ignore[no-untyped-def]
    """Return a function that says whether the filter passes a frame."""
    pcap = ctypes.CDLL(ctypes.util.find_library("pcap") or "libpcap.so.0.8")
    pcap.pcap_open_dead.restype = ctypes.c_void_p
    handle, program = ctypes.c_void_p(pcap.pcap_open_dead(1, 65535)), _Program()
    assert pcap.pcap_compile(handle, ctypes.byref(program), kernel_filter([3128]).encode(), 1, 0xFFFFFFFF) == 0

    def run(frame: bytes) -> bool:
        return bool(pcap.bpf_filter(program.instructions, frame, len(frame), len(frame)))

    return run


def frame(*options: object, flags: str = "A", payload: bytes = b"", v6: bool = False) -> bytes:
    network = IPv6(src="fd00::1", dst="fd00::2") if v6 else IP(src="10.0.0.1", dst="10.0.0.2")
    return bytes(Ether() / network / TCP(sport=40000, dport=3128, flags=flags, options=list(options)) / payload)


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("option", [JOIN_ACK, PRIORITY])
@pytest.mark.parametrize("before", [(), (NOP, NOP), (STAMP,), (NOP, NOP, STAMP), (("SAck", (1, 2)),)])
def test_signalling_passes_wherever_stacks_put_it(passes, before, option, v6) -> None:  # type: ignore[no-untyped-def]
    assert passes(frame(*before, option, v6=v6))


@pytest.mark.parametrize("v6", [False, True])
@pytest.mark.parametrize("before", [(), (NOP, NOP), (STAMP,), (NOP, NOP, STAMP)])
def test_data_stay_in_the_kernel_whatever_their_time_stamp_is(passes, before, v6) -> None:  # type: ignore[no-untyped-def]
    assert not passes(frame(*before, DATA, payload=b"\x1e\x03\x51" * 100, v6=v6))
    assert not passes(frame(*before, payload=b"\x1e\x03\x51" * 100, v6=v6))


@pytest.mark.parametrize("flags", ["S", "SA", "FA", "R"])
def test_beginnings_and_ends_pass(passes, flags) -> None:  # type: ignore[no-untyped-def]
    assert passes(frame(flags=flags))
