# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses a captured frame into a :class:`~.model.Segment`: link, IP and TCP headers, without a library.

Sources: IEEE 802.1Q (tags), RFC 791 (IPv4), RFC 8200 (IPv6), RFC 9293, 3.1 (TCP). Without a whole TCP header in an
unfragmented packet or first fragment, the result is None: other protocols, later fragments, IPv6 extension headers,
truncated frames, nonsense. Nothing raises. Checksums are ignored, as offloading leaves them unfinished.
"""

from __future__ import annotations

import struct
from typing import Final

from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import parse_options

ETHERNET: Final = 14  # link header of Ethernet and of the loopback interface, before any 802.1Q tag
RAW_IP: Final = 0  # no link header: TUN and other layer-3 interfaces
LINUX_COOKED: Final = 16  # Linux 'cooked' capture, SLL

_VERSION: Final = {0x0800: 4, 0x86DD: 6}
_TAGS: Final = frozenset({0x8100, 0x88A8, 0x9100})
_MAX_TAGS: Final = 4
TCP: Final = 6

_tcp_header = struct.Struct("!HHIIBB").unpack_from
_Transport = tuple[int, int, bytes, bytes]  # offset of TCP, end of the packet, source, destination


def parse_frame(
    frame: bytes, time: float, interface: str, link_header: int = ETHERNET, outgoing: bool | None = None
) -> Segment | None:
    """Return the TCP segment in *frame*, with its MPTCP options; None without a whole TCP header.

    *link_header* is the size of the link-layer header: ``ETHERNET``, ``RAW_IP`` or ``LINUX_COOKED``. For any other
    size the packet itself shows its IP version. *outgoing*: this host sent it; None if unknown.
    """
    at = network_header(frame, link_header)
    if not 0 <= at < len(frame):
        return None
    found = transport(frame, at)
    if found is None:
        return None
    tcp, end, source, destination = found
    if end < tcp + 20:
        return None
    source_port, destination_port, sequence, acknowledgment, offset, flags = _tcp_header(frame, tcp)
    header = offset >> 4 << 2
    if header < 20 or end < tcp + header:
        return None
    options = parse_options(frame[tcp + 20 : tcp + header], flags) if header > 20 else ()
    ends = source, source_port, destination, destination_port
    return Segment(time, interface, *ends, flags, sequence, acknowledgment, options, outgoing)


def transport(frame: bytes, at: int) -> _Transport | None:
    """Return, for the IP packet at *at* (within *frame*), the offset of TCP, the end of the captured packet, source and
    destination; None if TCP does not begin in it."""
    version = frame[at] >> 4
    return _ipv4(frame, at) if version == 4 else _ipv6(frame, at) if version == 6 else None


def network_header(frame: bytes, link_header: int) -> int:
    """Return the offset of IP after the link header, which ends with an EtherType, and 802.1Q tags; or -1."""
    at = link_header
    if at not in (ETHERNET, LINUX_COOKED):
        return at
    for _ in range(_MAX_TAGS + 1):
        if at >= len(frame):
            return -1
        protocol = frame[at - 2] << 8 | frame[at - 1]
        if protocol not in _TAGS:
            return at if _VERSION.get(protocol) == frame[at] >> 4 else -1
        at += 4
    return -1


def _ipv4(frame: bytes, at: int) -> _Transport | None:
    size = len(frame)
    if size < at + 20 or frame[at + 9] != TCP or frame[at + 7] or frame[at + 6] & 0x1F:
        return None
    # The total length is 0 in a packet over 64 KiB, which the card will segment ("BIG TCP").
    length = frame[at + 2] << 8 | frame[at + 3]
    end = at + length if 0 < length < size - at else size
    header = (frame[at] & 15) << 2
    return (at + header, end, frame[at + 12 : at + 16], frame[at + 16 : at + 20]) if header >= 20 else None


def _ipv6(frame: bytes, at: int) -> _Transport | None:
    size = len(frame)
    if size < at + 40 or frame[at + 6] != TCP:
        return None
    length = frame[at + 4] << 8 | frame[at + 5]
    end = at + 40 + length if 0 < length < size - at - 40 else size
    return at + 40, end, frame[at + 8 : at + 24], frame[at + 24 : at + 40]
