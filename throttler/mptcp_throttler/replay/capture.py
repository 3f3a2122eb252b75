"""TCP segments of a capture file: pcap and pcapng, plain or compressed by gzip, read by Scapy.

Link types are those of https://www.tcpdump.org/linktypes.html: Ethernet (with 802.1Q tags), Linux cooked (both
versions) and raw IP. Each segment comes with its payload as captured and with the payload's length on the wire, since
captures are cut after the headers (``tcpdump -s``). Frames of other protocols, later fragments and nonsense are passed
over.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

from mptcp_common.reasons import reason
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.segment import ETHERNET, LINUX_COOKED, RAW_IP, network_header, parse_frame, transport

_COOKED, _COOKED_2 = 113, 276
_LINK_HEADERS: Final = {
    1: ETHERNET,
    _COOKED: LINUX_COOKED,
    12: RAW_IP,
    14: RAW_IP,
    101: RAW_IP,
    228: RAW_IP,
    229: RAW_IP,
}
KNOWN_LINK_TYPES: Final = "Ethernet (1), Linux cooked (113, 276), raw IP (12, 14, 101, 228, 229)"
_SENT_BY_US: Final = {0: False, 4: True}
"""Packet types of cooked captures: sent to this host, sent by it. Others are copies of what others sent."""
_OUTBOUND: Final = {1: False, 2: True}
"""Directions of a pcapng packet: inbound, outbound."""
_LATEST: Final = 10**9 << 33
"""Nanoseconds since the epoch, in the year 2242: a later time is nonsense."""
_LARGEST: Final = 65_535
"""Bytes of a packet that Scapy gives; its headers are at the begin."""


class CaptureError(Exception):
    """A file that is no capture, or cannot be read."""


class Captured(NamedTuple):
    """One TCP segment."""

    segment: Segment
    time: int
    """Nanoseconds since the epoch, as captured: a float would round them to a quarter of a microsecond."""
    length: int
    """Bytes of payload on the wire."""
    payload: bytes
    """As much of it as was captured."""


class CaptureFile:
    """The segments of one file, to be read once; what was left out is counted meanwhile."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        """*name*: what errors call the file."""
        self._file = file
        self._name = name
        self.packets = 0
        self.cut = 0
        """Packets that were cut off before the end of their TCP header."""
        self.foreign: Counter[int] = Counter()
        """Packets by link type, of link types that are not read."""
        self.damage: str | None = None
        """What is wrong with the file; what comes behind that is not read."""

    def __iter__(self) -> Iterator[Captured]:
        """Yield the segments in the order of the file. Raises CaptureError where the file is no capture."""
        from scapy.error import log_runtime

        def complaint(record: logging.LogRecord) -> bool:
            self.damage = f"{self._name}: {record.getMessage().strip()}"
            return False

        log_runtime.addFilter(complaint)
        try:
            yield from self._segments(self._reader())
        finally:
            log_runtime.removeFilter(complaint)

    def _reader(self) -> Any:
        from scapy.utils import RawPcapReader

        try:
            return RawPcapReader(self._file)
        except OSError as error:
            raise CaptureError(f"{self._name}: cannot be read: {reason(error)}") from error
        except Exception as error:
            # Whatever a library makes of bytes that nobody foresaw.
            raise CaptureError(f"{self._name}: is no capture file, pcap or pcapng: {reason(error)}") from error

    def _segments(self, reader: Any) -> Iterator[Captured]:
        while True:
            try:
                data, about = next(reader)
            except StopIteration as end:
                # Scapy takes damage for the end; what it was is in the error from which it made this one.
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
                # A simple packet of pcapng has no time.
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
        """Return the segment in *frame*, which is what was captured of *length* bytes."""
        if link_type == _COOKED_2 and len(frame) >= 20:
            # As the first version has it: packet type first, EtherType last.
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
        # Frames are padded behind the IP packet, which says its length but for one of more than 64 KiB ("BIG TCP").
        field, header = (at + 2, 0) if frame[at] >> 4 == 4 else (at + 4, 40)
        size = int.from_bytes(frame[field : field + 2], "big")
        whole = at + header + size if size else length
        return Captured(segment, time, max(0, whole - payload), frame[payload:end])
