# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the TCP segments of a capture file (pcap or pcapng, perhaps compressed by gzip), with Scapy.

Link types (https://www.tcpdump.org/linktypes.html): Ethernet (with 802.1Q tags), Linux cooked (both versions), raw IP.
Each segment has its captured payload and the payload's length on the wire, because captures are often cut after the
headers (``tcpdump -s``). Other protocols, later fragments and malformed frames are skipped.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from mptcp_common.reasons import reason
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.segment import ETHERNET, LINUX_COOKED, RAW_IP, locate_ip, locate_tcp, parse_frame

_COOKED, _COOKED_2 = 113, 276
_LINK_HEADERS: Final = {1: ETHERNET, _COOKED: LINUX_COOKED} | dict.fromkeys((12, 14, 101, 228, 229), RAW_IP)
KNOWN_LINK_TYPES: Final = "Ethernet (1), Linux cooked (113, 276), raw IP (12, 14, 101, 228, 229)"
_SENT_BY_HOST: Final = {0: False, 4: True}
"""Packet types of cooked captures: 0 was sent to this host, 4 by it. Others are copies of other hosts' packets."""
_OUTBOUND: Final = {1: False, 2: True}  # directions of a pcapng packet: inbound, outbound
_MAX_TIME: Final = 10**9 << 33  # nanoseconds since the epoch, in the year 2242: later times are invalid
_MAX_PACKET_BYTES: Final = 65_535  # Scapy returns at most this many bytes of a packet, from its start


class CaptureError(Exception):
    """The file is not a capture, or cannot be read."""


class CapturedSegment(NamedTuple):
    segment: Segment
    time: int  # nanoseconds since the epoch: a float would round to 0.25 µs
    length: int  # payload bytes on the wire
    payload: bytes


class CaptureFile:
    """The segments of one file, which can be read once. Counts all packets, and the skipped ones."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self.packets = 0
        self.truncated = 0  # packets cut off within their TCP header
        self.unsupported: Counter[int] = Counter()  # packets of unsupported link types, by link type
        self.damage: str | None = None  # damage found in the file; the rest is not read

    def __iter__(self) -> Iterator[CapturedSegment]:
        """Yield the segments in file order. Raises CaptureError if the file is not a capture."""
        from scapy.error import log_runtime

        def record_damage(record: logging.LogRecord) -> bool:
            self.damage = f"{self._name}: {record.getMessage().strip()}"
            return False

        log_runtime.addFilter(record_damage)
        try:
            yield from self._segments()
        finally:
            log_runtime.removeFilter(record_damage)

    def _segments(self) -> Iterator[CapturedSegment]:
        from scapy.utils import RawPcapReader

        try:
            reader = RawPcapReader(self._file)
        except OSError as error:
            raise CaptureError(f"{self._name}: cannot be read: {reason(error)}") from error
        except Exception as error:
            # Scapy may raise any exception on unexpected bytes.
            raise CaptureError(f"{self._name}: not a pcap or pcapng file: {reason(error)}") from error
        while True:
            try:
                data, metadata = next(reader)
            except StopIteration as end:
                # Scapy reports damage as the end of the file; the context has the original error.
                if end.__context__ is not None and end.__context__.args:
                    self.damage = f"{self._name}: not read to its end: {end.__context__}"
                return
            except Exception as error:
                self.damage = f"{self._name}: not read to its end: {reason(error)}"
                return
            self.packets += 1
            if hasattr(metadata, "sec"):
                time = metadata.sec * 1_000_000_000 + metadata.usec * (1 if reader.nano else 1000)
                link_type, interface, outgoing = reader.linktype & 0xFFFF, "", None
                if len(data) < min(metadata.caplen, _MAX_PACKET_BYTES):
                    self.damage = f"{self._name}: ends in the middle of a packet"
            else:
                # A Simple Packet Block of pcapng has no time.
                ticks = (metadata.tshigh or 0) << 32 | (metadata.tslow or 0)
                time = min(ticks * 1_000_000_000 // metadata.tsresol, _MAX_TIME)
                link_type, outgoing = metadata.linktype, _OUTBOUND.get(metadata.direction)
                interface = "".join(filter(str.isprintable, (metadata.ifname or b"").decode(errors="replace")))
            captured = self._parse_packet(data, max(metadata.wirelen, len(data)), link_type, time, interface, outgoing)
            if captured is not None:
                yield captured

    def _parse_packet(
        self, frame: bytes, length: int, link_type: int, time: int, interface: str, outgoing: bool | None
    ) -> CapturedSegment | None:
        """Return the segment in *frame*, which is the captured part of a packet of *length* bytes."""
        if link_type == _COOKED_2 and len(frame) >= 20:
            # Convert to version 1: packet type first, EtherType last.
            frame, length = bytes((0, frame[10])) + bytes(12) + frame[:2] + frame[20:], length - 4
            link_type = _COOKED
        if link_type == _COOKED and len(frame) > 1:
            outgoing = _SENT_BY_HOST.get(frame[1])
        if (link_header := _LINK_HEADERS.get(link_type)) is None:
            self.unsupported[link_type] += 1
            return None
        ip = locate_ip(frame, link_header)
        location = locate_tcp(frame, ip) if 0 <= ip < len(frame) else None
        if location is None:
            return None
        segment = parse_frame(frame[ip:], time / 1e9, interface, RAW_IP, outgoing)
        if segment is None:
            self.truncated += len(frame) < length
            return None
        tcp, end, _, _ = location
        payload = tcp + (frame[tcp + 12] >> 4 << 2)
        # Frames may be padded, so take the length from the IP header; it is 0 in packets above 64 KiB ("BIG TCP").
        length_offset, uncounted_bytes = (ip + 2, 0) if frame[ip] >> 4 == 4 else (ip + 4, 40)
        counted_bytes = int.from_bytes(frame[length_offset : length_offset + 2], "big")
        wire_end = ip + uncounted_bytes + counted_bytes if counted_bytes else length
        return CapturedSegment(segment, time, max(0, wire_end - payload), frame[payload:end])
