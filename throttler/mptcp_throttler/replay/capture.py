# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the TCP segments of a capture file with Scapy: pcap and pcapng, plain or gzip.

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
from mptcp_throttler.mptcp.segment import ETHERNET, LINUX_COOKED, RAW_IP, network_header, parse_frame, transport

_COOKED, _COOKED_2 = 113, 276
_LINK_HEADERS: Final = {1: ETHERNET, _COOKED: LINUX_COOKED} | dict.fromkeys((12, 14, 101, 228, 229), RAW_IP)
KNOWN_LINK_TYPES: Final = "Ethernet (1), Linux cooked (113, 276), raw IP (12, 14, 101, 228, 229)"
_SENT_BY_US: Final = {0: False, 4: True}
"""Packet types of cooked captures: sent to this host, sent by this host. Others are copies of other hosts' packets."""
_OUTBOUND: Final = {1: False, 2: True}  # directions of a pcapng packet: inbound, outbound
_LATEST: Final = 10**9 << 33  # nanoseconds since the epoch, in the year 2242: later times are invalid
_LARGEST: Final = 65_535  # Scapy returns at most this many bytes of a packet, from its start


class CaptureError(Exception):
    """The file is not a capture, or cannot be read."""


class Captured(NamedTuple):
    segment: Segment
    time: int  # nanoseconds since the epoch: a float would round to 0.25 µs
    length: int  # payload bytes on the wire
    payload: bytes


class CaptureFile:
    """The segments of one file, readable once. Its counters count the packets that it skips."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self.packets = 0
        self.cut = 0  # packets cut off within their TCP header
        self.foreign: Counter[int] = Counter()  # packets of unsupported link types, by link type
        self.damage: str | None = None  # damage found in the file; the rest is not read

    def __iter__(self) -> Iterator[Captured]:
        """Yield the segments in file order. Raises CaptureError if the file is not a capture."""
        from scapy.error import log_runtime

        def complaint(record: logging.LogRecord) -> bool:
            self.damage = f"{self._name}: {record.getMessage().strip()}"
            return False

        log_runtime.addFilter(complaint)
        try:
            yield from self._segments()
        finally:
            log_runtime.removeFilter(complaint)

    def _segments(self) -> Iterator[Captured]:
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
                data, about = next(reader)
            except StopIteration as end:
                # Scapy reports damage as the end of the file; the context has the original error.
                if end.__context__ is not None and end.__context__.args:
                    self.damage = f"{self._name}: not read to its end: {end.__context__}"
                return
            except Exception as error:
                self.damage = f"{self._name}: not read to its end: {reason(error)}"
                return
            self.packets += 1
            if hasattr(about, "sec"):
                time = about.sec * 1_000_000_000 + about.usec * (1 if reader.nano else 1000)
                link_type, interface, outgoing = reader.linktype & 0xFFFF, "", None
                if len(data) < min(about.caplen, _LARGEST):
                    self.damage = f"{self._name}: ends in the middle of a packet"
            else:
                # A Simple Packet Block of pcapng has no time.
                ticks = (about.tshigh or 0) << 32 | (about.tslow or 0)
                time = min(ticks * 1_000_000_000 // about.tsresol, _LATEST)
                link_type, outgoing = about.linktype, _OUTBOUND.get(about.direction)
                interface = "".join(filter(str.isprintable, (about.ifname or b"").decode(errors="replace")))
            found = self._segment(data, max(about.wirelen, len(data)), link_type, time, interface, outgoing)
            if found is not None:
                yield found

    def _segment(
        self, frame: bytes, length: int, link_type: int, time: int, interface: str, outgoing: bool | None
    ) -> Captured | None:
        """Return the segment in *frame*, the captured part of *length* bytes."""
        if link_type == _COOKED_2 and len(frame) >= 20:
            # Convert to version 1: packet type first, EtherType last.
            frame, length = bytes((0, frame[10])) + bytes(12) + frame[:2] + frame[20:], length - 4
            link_type = _COOKED
        if link_type == _COOKED and len(frame) > 1:
            outgoing = _SENT_BY_US.get(frame[1])
        if (link_header := _LINK_HEADERS.get(link_type)) is None:
            self.foreign[link_type] += 1
            return None
        at = network_header(frame, link_header)
        found = transport(frame, at) if 0 <= at < len(frame) else None
        if found is None:
            return None
        segment = parse_frame(frame[at:], time / 1e9, interface, RAW_IP, outgoing)
        if segment is None:
            self.cut += len(frame) < length
            return None
        tcp, end, _, _ = found
        payload = tcp + (frame[tcp + 12] >> 4 << 2)
        # Frames may be padded, so take the length from the IP header; it is 0 in packets above 64 KiB ("BIG TCP").
        field, header = (at + 2, 0) if frame[at] >> 4 == 4 else (at + 4, 40)
        size = int.from_bytes(frame[field : field + 2], "big")
        whole = at + header + size if size else length
        return Captured(segment, time, max(0, whole - payload), frame[payload:end])
