"""From a capture file to TCP segments with their lengths, MPTCP options and the captured part of their payload.

Sources: pcap(5) (read by Scapy's reader), RFC 791, RFC 8200, RFC 9293, 3.1. Unlike the throttler's own parser of
frames, which wants headers alone, this one says how much payload a segment had on the wire: the snapshot length cuts
it off. Times are integer nanoseconds since the epoch, as captured: a float would round them to a quarter microsecond.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO

from mptcp_lab.testbed.commands import TestbedError
from mptcp_throttler.mptcp.options import MptcpOption, parse_options

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

_MAGIC = frozenset({b"\xa1\xb2\xc3\xd4", b"\xd4\xc3\xb2\xa1", b"\xa1\xb2\x3c\x4d", b"\x4d\x3c\xb2\xa1"})
_LINK_HEADERS = {1: 14, 12: 0, 14: 0, 101: 0, 113: 16, 228: 0, 229: 0}
"""Octets before IP by link type: Ethernet, raw IP (its value differs between systems), Linux cooked, IPv4, IPv6."""
_ETHERNET, _COOKED = 1, 113
_VERSIONS = {0x0800: 4, 0x86DD: 6}
_TCP = 6
_tcp_header = struct.Struct("!HHIIBB").unpack_from


class CaptureError(TestbedError):
    """A capture that cannot be read, or does not show what it should: one line for people."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One TCP segment."""

    time: int
    """Nanoseconds since the epoch."""
    source: bytes
    """Packed, 4 or 16 octets."""
    source_port: int
    destination: bytes
    destination_port: int
    flags: int
    sequence: int
    acknowledgment: int
    options: tuple[MptcpOption, ...]
    length: int
    """Octets of payload on the wire."""
    payload: bytes
    """As much of it as was captured."""


def read_capture(data: bytes, name: str = "capture") -> Iterator[Packet]:
    """Yield the TCP segments of a pcap file, *data*, in the order of the file; what is not TCP is passed over.

    :raises CaptureError: not a pcap file, a link type that is not known here, or it ends within a packet
    """
    if data[:4] not in _MAGIC:
        raise CaptureError(f"{name}: not a pcap file (it begins with {data[:4].hex() or 'nothing'})")
    if len(data) < 24:
        raise CaptureError(f"{name}: its header ends after {len(data)} of 24 octets")

    from scapy.utils import RawPcapReader

    reader = RawPcapReader(BytesIO(data))
    link_type = reader.linktype & 0xFFFF
    link_header = _LINK_HEADERS.get(link_type)
    if link_header is None:
        raise CaptureError(f"{name}: link type {link_type}; {', '.join(map(str, _LINK_HEADERS))} are known")
    unit = 1 if reader.nano else 1000
    for frame, record in reader:
        if len(frame) < record.caplen:
            raise CaptureError(f"{name}: ends within a packet")
        time = record.sec * 1_000_000_000 + record.usec * unit
        packet = parse_frame(frame, time, link_header, typed=link_type in (_ETHERNET, _COOKED))
        if packet is not None:
            yield packet


def parse_frame(frame: bytes, time: int, link_header: int, *, typed: bool) -> Packet | None:
    """Return the TCP segment in *frame*; None for anything else, fragments and truncated headers among it.

    *typed* says that the link header's last two octets are an EtherType.
    """
    if len(frame) <= link_header:
        return None
    version = frame[link_header] >> 4
    if typed and _VERSIONS.get(frame[link_header - 2] << 8 | frame[link_header - 1]) != version:
        return None
    found = _ipv4(frame, link_header) if version == 4 else _ipv6(frame, link_header) if version == 6 else None
    if found is None:
        return None
    tcp, end, source, destination = found
    if len(frame) < tcp + 20:
        return None
    source_port, destination_port, sequence, acknowledgment, offset, flags = _tcp_header(frame, tcp)
    payload = tcp + (offset >> 4 << 2)
    if payload < tcp + 20 or len(frame) < payload or end < payload:
        return None
    return Packet(
        time,
        source,
        source_port,
        destination,
        destination_port,
        flags,
        sequence,
        acknowledgment,
        parse_options(frame[tcp + 20 : payload], flags),
        end - payload,
        # What is behind the packet's own end is the padding of a short Ethernet frame.
        frame[payload:end],
    )


def _ipv4(frame: bytes, at: int) -> tuple[int, int, bytes, bytes] | None:
    """Return where TCP begins, where the packet ended on the wire, source and destination."""
    if len(frame) < at + 20 or frame[at + 9] != _TCP or frame[at + 7] or frame[at + 6] & 0x3F:
        return None
    header = (frame[at] & 15) << 2
    length = frame[at + 2] << 8 | frame[at + 3]
    return (at + header, at + length, frame[at + 12 : at + 16], frame[at + 16 : at + 20]) if header >= 20 else None


def _ipv6(frame: bytes, at: int) -> tuple[int, int, bytes, bytes] | None:
    """The same; extension headers are not looked behind: neither client nor origin of the experiment sends any."""
    if len(frame) < at + 40 or frame[at + 6] != _TCP:
        return None
    length = frame[at + 4] << 8 | frame[at + 5]
    return at + 40, at + 40 + length, frame[at + 8 : at + 24], frame[at + 24 : at + 40]
