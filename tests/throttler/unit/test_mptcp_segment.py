# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for parsing frames into segments: link layers, tags, IP versions and truncation."""

from __future__ import annotations

import struct

import pytest

from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpPrio
from mptcp_throttler.mptcp.segment import ETHERNET, LINUX_COOKED, RAW_IP, parse_frame

MP_PRIO_OPTION = bytes.fromhex("1e0351 00")
TCP_HEADER = struct.pack("!HHIIBBHHH", 40000, 3128, 7, 9, 6 << 4, 0x10, 100, 0, 0) + MP_PRIO_OPTION
SOURCE_4, DESTINATION_4 = bytes([198, 51, 100, 1]), bytes([192, 0, 2, 1])
SOURCE_6, DESTINATION_6 = bytes.fromhex("20010db8" + "00" * 11 + "01"), bytes.fromhex("20010db8" + "00" * 11 + "02")
MACS = bytes(12)


def ipv4(payload: bytes, protocol: int = 6, options: bytes = b"", fragment: int = 0, total: int | None = None) -> bytes:
    header = 20 + len(options)
    length = header + len(payload) if total is None else total
    fields = (4 << 4 | header // 4, 0, length, 1, fragment, 64, protocol, 0, SOURCE_4, DESTINATION_4)
    return struct.pack("!BBHHHBBH4s4s", *fields) + options + payload


def ipv6(payload: bytes, kind: int = 6, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return struct.pack("!IHBB", 6 << 28, size, kind, 64) + SOURCE_6 + DESTINATION_6 + payload


def ethernet(packet: bytes, kind: int, tags: bytes = b"") -> bytes:
    return MACS + tags + kind.to_bytes(2, "big") + packet


READABLE = {
    "Ethernet IPv4": (ETHERNET, ethernet(ipv4(TCP_HEADER), 0x0800)),
    "802.1Q": (ETHERNET, ethernet(ipv4(TCP_HEADER), 0x0800, bytes.fromhex("81000064"))),
    "QinQ": (ETHERNET, ethernet(ipv4(TCP_HEADER), 0x0800, bytes.fromhex("88a80001 81000064"))),
    "raw IPv4": (RAW_IP, ipv4(TCP_HEADER)),
    "cooked IPv4": (LINUX_COOKED, bytes(14) + b"\x08\x00" + ipv4(TCP_HEADER)),
    "another link header": (4, bytes(4) + ipv4(TCP_HEADER)),
    "IPv4 options": (RAW_IP, ipv4(TCP_HEADER, options=bytes(8))),
    "IPv4 don't fragment": (RAW_IP, ipv4(TCP_HEADER, fragment=0x4000)),
    "IPv4 first fragment": (RAW_IP, ipv4(TCP_HEADER, fragment=0x2000)),
    "IPv4 BIG TCP": (RAW_IP, ipv4(TCP_HEADER, total=0)),
    "IPv4 padding": (RAW_IP, ipv4(TCP_HEADER) + bytes(6)),
    "Ethernet IPv6": (ETHERNET, ethernet(ipv6(TCP_HEADER), 0x86DD)),
    "tagged IPv6": (ETHERNET, ethernet(ipv6(TCP_HEADER), 0x86DD, bytes.fromhex("81000064"))),
    "raw IPv6": (RAW_IP, ipv6(TCP_HEADER)),
    "IPv6 jumbo": (RAW_IP, ipv6(TCP_HEADER, length=0)),
}

UNREADABLE = {
    "ARP": (ETHERNET, ethernet(bytes(28), 0x0806)),
    "five tags": (ETHERNET, ethernet(ipv4(TCP_HEADER), 0x0800, bytes.fromhex("81000064") * 5)),
    "EtherType and version differ": (ETHERNET, ethernet(ipv6(TCP_HEADER), 0x0800)),
    "IP version 5": (RAW_IP, b"\x55" + ipv4(TCP_HEADER)[1:]),
    "UDP": (RAW_IP, ipv4(TCP_HEADER, protocol=17)),
    "IPv4 later fragment": (RAW_IP, ipv4(TCP_HEADER, fragment=1)),
    "IPv4 header of 16 bytes": (RAW_IP, b"\x44" + ipv4(TCP_HEADER)[1:]),
    "IPv4 shorter than its TCP header": (RAW_IP, ipv4(TCP_HEADER, total=40)),
    "TCP header of 16 bytes": (RAW_IP, ipv4(TCP_HEADER[:12] + b"\x40" + TCP_HEADER[13:])),
    "TCP header longer than the packet": (RAW_IP, ipv4(TCP_HEADER[:12] + b"\xf0" + TCP_HEADER[13:])),
    "IPv6 UDP": (RAW_IP, ipv6(TCP_HEADER, 17)),
    "IPv6 hop-by-hop": (RAW_IP, ipv6(bytes([6, 0]) + bytes(6) + TCP_HEADER, 0)),
    "IPv6 fragment": (RAW_IP, ipv6(bytes([6, 0, 0, 1]) + bytes(4) + TCP_HEADER, 44)),
    "IPv6 encrypted": (RAW_IP, ipv6(TCP_HEADER, 50)),
    "IPv6 shorter than its TCP header": (RAW_IP, ipv6(TCP_HEADER, length=20)),
}


@pytest.mark.parametrize(("link", "frame"), READABLE.values(), ids=READABLE)
def test_readable_frame_is_parsed(link: int, frame: bytes) -> None:
    segment = parse_frame(frame, 1.5, "eth0", link)
    assert segment is not None
    ends = (SOURCE_4, DESTINATION_4) if len(segment.source) == 4 else (SOURCE_6, DESTINATION_6)
    assert segment == Segment(1.5, "eth0", ends[0], 40000, ends[1], 3128, 0x10, 7, 9, (MpPrio(True),))


@pytest.mark.parametrize(("link", "frame"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_frame_returns_none(link: int, frame: bytes) -> None:
    assert parse_frame(frame, 1.5, "eth0", link) is None


@pytest.mark.parametrize(("link", "frame"), READABLE.values(), ids=READABLE)
def test_truncated_frame_returns_none(link: int, frame: bytes) -> None:
    length = frame.index(MP_PRIO_OPTION) + len(MP_PRIO_OPTION)
    for size in range(length):
        assert parse_frame(frame[:size], 1.5, "eth0", link) is None
    assert parse_frame(frame[:length], 1.5, "eth0", link) is not None
