# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses a captured frame into a :class:`~.model.Segment`: link, IP and TCP headers, without a library.

Sources: IEEE 802.1Q (tags), RFC 791 (IPv4), RFC 8200 (IPv6), RFC 9293, 3.1 (TCP). The result is None for other
protocols, later fragments, IPv6 extension headers, and truncated or malformed headers. No function raises. Checksums
are ignored, because offloading leaves them incomplete.
"""

from __future__ import annotations

import struct
from typing import Final

from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import parse_options

ETHERNET: Final = 14  # size of the link header of Ethernet and of the loopback interface, without 802.1Q tags
RAW_IP: Final = 0  # no link header: TUN and other layer-3 interfaces
LINUX_COOKED: Final = 16  # Linux 'cooked' capture, SLL

_IP_VERSIONS: Final = {0x0800: 4, 0x86DD: 6}
_VLAN_TAGS: Final = frozenset({0x8100, 0x88A8, 0x9100})
_MAX_TAGS: Final = 4
TCP: Final = 6

_unpack_tcp_header = struct.Struct("!HHIIBB").unpack_from
_TcpLocation = tuple[int, int, bytes, bytes]  # offset of TCP, end of the packet, source, destination


def parse_frame(
    frame: bytes, time: float, interface: str, link_header: int = ETHERNET, outgoing: bool | None = None
) -> Segment | None:
    """Return the TCP segment in *frame*, with its MPTCP options; None without a whole TCP header.

    *link_header* is the size of the link-layer header: ``ETHERNET``, ``RAW_IP`` or ``LINUX_COOKED``. For any other
    size the packet itself shows its IP version. *outgoing*: whether this host sent the frame; None if unknown.
    """
    ip = locate_ip(frame, link_header)
    if not 0 <= ip < len(frame):
        return None
    location = locate_tcp(frame, ip)
    if location is None:
        return None
    tcp, end, source, destination = location
    if end < tcp + 20:
        return None
    source_port, destination_port, sequence, acknowledgment, data_offset, flags = _unpack_tcp_header(frame, tcp)
    header = data_offset >> 4 << 2
    if header < 20 or end < tcp + header:
        return None
    options = parse_options(frame[tcp + 20 : tcp + header], flags) if header > 20 else ()
    endpoints = source, source_port, destination, destination_port
    return Segment(time, interface, *endpoints, flags, sequence, acknowledgment, options, outgoing)


def locate_tcp(frame: bytes, ip: int) -> _TcpLocation | None:
    """Return the offset of TCP in the IP packet at offset *ip*, the end of the captured packet, source and destination;
    None if the packet has no TCP header."""
    version = frame[ip] >> 4
    return _ipv4(frame, ip) if version == 4 else _ipv6(frame, ip) if version == 6 else None


def locate_ip(frame: bytes, link_header: int) -> int:
    """Return the offset of the IP header, after the link header and 802.1Q tags; -1 if it is not IP."""
    offset = link_header
    if offset not in (ETHERNET, LINUX_COOKED):
        return offset
    for _ in range(_MAX_TAGS + 1):
        if offset >= len(frame):
            return -1
        protocol = frame[offset - 2] << 8 | frame[offset - 1]
        if protocol not in _VLAN_TAGS:
            return offset if _IP_VERSIONS.get(protocol) == frame[offset] >> 4 else -1
        offset += 4
    return -1


def _ipv4(frame: bytes, ip: int) -> _TcpLocation | None:
    size = len(frame)
    if size < ip + 20 or frame[ip + 9] != TCP or frame[ip + 7] or frame[ip + 6] & 0x1F:
        return None
    # The total length is 0 in a packet over 64 KiB, which the card will segment ("BIG TCP").
    length = frame[ip + 2] << 8 | frame[ip + 3]
    end = ip + length if 0 < length < size - ip else size
    header = (frame[ip] & 15) << 2
    return (ip + header, end, frame[ip + 12 : ip + 16], frame[ip + 16 : ip + 20]) if header >= 20 else None


def _ipv6(frame: bytes, ip: int) -> _TcpLocation | None:
    size = len(frame)
    if size < ip + 40 or frame[ip + 6] != TCP:
        return None
    length = frame[ip + 4] << 8 | frame[ip + 5]
    end = ip + 40 + length if 0 < length < size - ip - 40 else size
    return ip + 40, end, frame[ip + 8 : ip + 24], frame[ip + 24 : ip + 40]
