# SPDX-License-Identifier: GPL-2.0-or-later
"""Builds pcap and pcapng files from frames, with any link layer. Times are in seconds since the epoch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from mptcp_capture import IPV4, IPV6
from scapy.utils import RawPcapReader

START = 1_700_000_000.0
Frame = tuple[float, str, bytes]
"""Time, interface, and the frame with its Ethernet header."""
Wrap = Callable[[bytes], bytes]
"""Function that changes a frame with an Ethernet header to a frame of another link layer."""

ETHERNET, RAW, COOKED, COOKED_2 = 1, 101, 113, 276

BOTH: list[Frame] = [
    *((START + at, interface, frame) for at, interface, frame in IPV4),
    *((START + 3 + at, interface, frame) for at, interface, frame in IPV6),
]
"""Two captured connections, one after the other, with two subflows each."""
CAPTURED_FRAMES: list[Frame] = [
    (metadata.sec + metadata.usec / 1e6, "v0", data)
    for data, metadata in RawPcapReader(str(Path(__file__).parents[1] / "captures/ethernet.pcap"))
]
"""A download of 30,000 bytes and an upload of 1 byte. The first 160 bytes of each frame were captured."""


def tag_inserter(*protocols: int) -> Wrap:
    """Return a function that inserts 802.1Q tags into an Ethernet frame."""

    def wrap(frame: bytes) -> bytes:
        tags = b"".join(struct.pack("!HH", protocol, 7) for protocol in protocols)
        return frame[:12] + tags + frame[12:]

    return wrap


def cooked_capture_frame(frame: bytes) -> bytes:
    """Return *frame* with the header of Linux cooked capture."""
    return struct.pack("!HHH8s", _packet_type(frame), 1, 6, frame[6:12]) + frame[12:]


def cooked_2(frame: bytes) -> bytes:
    """Return *frame* with the header of Linux cooked capture, version 2."""
    return frame[12:14] + struct.pack("!HIHBB8s", 0, 3, 1, _packet_type(frame), 6, frame[6:12]) + frame[14:]


_PROXY: Final = {bytes.fromhex("b24b217e00e8"), bytes.fromhex("7659e8d6f249")}
"""The proxy's Ethernet addresses in the captured frames."""


def _packet_type(frame: bytes) -> int:
    """Return the packet type of a cooked capture: 4 if the proxy sent the frame, otherwise 0."""
    return 4 if frame[6:12] in _PROXY else 0


def bare(frame: bytes) -> bytes:
    """Return the IP packet of *frame*."""
    return frame[14:]


def pcap(
    frames: Iterable[Frame], link_type: int = ETHERNET, wrap: Wrap = bytes, snap: int = 65535, big: bool = False
) -> bytes:
    """Return a pcap file with the first *snap* bytes of each frame. *big*: big-endian headers."""
    order = ">" if big else "<"
    parts = [struct.pack(order + "IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, snap, link_type)]
    for time, _, frame in frames:
        data = wrap(frame)
        seconds = int(time)
        nanoseconds = round((time - seconds) * 1e9)
        parts.append(struct.pack(order + "IIII", seconds, nanoseconds, len(data[:snap]), len(data)) + data[:snap])
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Return a block of a pcapng file."""
    body += bytes(-len(body) % 4)
    return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    return struct.pack(order + "HH", code, len(value)) + value + bytes(-len(value) % 4)


def pcapng(frames: Iterable[Frame], link_type: int = ETHERNET, wrap: Wrap = bytes, named: bool = True) -> bytes:
    """Return a pcapng file, with the names of the interfaces if *named*."""
    frames = list(frames)
    names = list(dict.fromkeys(name for _, name, _ in frames))
    parts = [block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))]
    for name in names:
        options = (option(2, name.encode()) if named else b"") + option(9, b"\x06") + bytes(4)
        parts.append(block(1, struct.pack("<HHI", link_type, 0, 0) + options))
    for time, name, frame in frames:
        data, stamp = wrap(frame), round(time * 1e6)
        head = struct.pack("<IIIII", names.index(name), stamp >> 32, stamp & 0xFFFFFFFF, len(data), len(data))
        parts.append(block(6, head + data + bytes(-len(data) % 4)))
    return b"".join(parts)
