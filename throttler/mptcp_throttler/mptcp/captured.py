"""From a record of a capture file to a :class:`~.model.Segment`: link layers that the daemon never sees, cut packets.

Sources: the link types of pcap (https://www.tcpdump.org/linktypes.html): LINKTYPE_ETHERNET, LINKTYPE_LINUX_SLL,
LINKTYPE_LINUX_SLL2, LINKTYPE_RAW, LINKTYPE_NULL; IEEE 802.1Q (tags); IANA's IEEE 802 Numbers (EtherTypes); RFC 791 and
RFC 8200, 4.5 (fragments); the rest is that of ``segment``. Nothing raises.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.segment import (
    AUTHENTICATION,
    EXTENSION_HEADERS,
    FRAGMENT,
    RAW_IP,
    TCP,
    parse_frame,
    transport,
)

_ETHERNET, _COOKED, _COOKED_2 = 1, 113, 276
_RAW: Final = frozenset({12, 14, 101, 228, 229})
"""Raw IP: LINKTYPE_RAW, what it is on BSD, and the two that name its version."""
_LOOPBACK: Final = frozenset({0, 108})
"""Four bytes with the address family of the host, in its byte order or that of the network."""
LINK_TYPES: Final = {
    "Ethernet": (_ETHERNET,),
    "Linux cooked": (_COOKED, _COOKED_2),
    "raw IP": tuple(sorted(_RAW)),
    "loopback": tuple(sorted(_LOOPBACK)),
}
"""What is read, in words for people."""
_ETHER_TYPE_AT: Final = {_ETHERNET: (12, 14), _COOKED: (14, 16), _COOKED_2: (0, 20)}
"""Where the EtherType is in a link header, and where that ends."""
_IP: Final = {0x0800: 4, 0x86DD: 6}
_TAGS: Final = frozenset({0x8100, 0x88A8, 0x9100})
_MAX_TAGS: Final = 4
_LEAST_ETHER_TYPE: Final = 0x0600
"""Less is a length (IEEE 802.3), or of cooked captures a number of Linux' own."""
_WITHOUT_IP: Final = frozenset(
    {0x0800, 0x86DD, 0x0806, 0x0842, 0x8035, 0x8808, 0x8809, 0x8863, 0x888E, 0x88CC, 0x88D9, 0x88E1, 0x88F7, 0x893A}
    | {0x8912, 0x9000}
)
"""EtherTypes of which nobody misses the packets: IP itself where the packet is none, ARP, Wake-on-LAN, RARP, pauses,
LACP, PPPoE's discovery, EAP, LLDP, LLTD, HomePlug, PTP, IEEE 1905, HomePlug AV, loops."""
_TO_US, _BY_US = 0, 4
"""Packet types of cooked captures: sent to this host, sent by it. Others are copies of what others sent."""


class Unread(enum.Enum):
    """Why a record gives no segment."""

    OTHER = "no TCP segment of the proxy's ports"
    LINK = "a link layer that is not read"
    ETHER_TYPE = "an EtherType that is not read, in which IP may be"
    CUT = "its headers were cut off"
    FRAGMENT = "a fragment of a TCP segment behind the first, which alone has the ports"


@dataclass(frozen=True, slots=True)
class Captured:
    """One segment of the proxy's ports."""

    segment: Segment
    header: bytes
    """The TCP header, as captured."""
    payload: int
    """Bytes of data that the segment had, captured or not."""
    identity: bytes
    """The same where the packet was captured once more, on another interface: of the IP header its length and IPv4's
    identification, and the TCP header but for its checksum, which may be filled in between."""


def read_record(
    record: bytes,
    length: int,
    link_type: int,
    ports: Collection[int],
    time: float,
    interface: str,
    outgoing: bool | None = None,
) -> Captured | Unread:
    """Return the segment to or from one of *ports* in *record*, which is what was captured of *length* bytes.

    *outgoing*: the proxy's host sent it; cooked captures tell so themselves.
    """
    found = _network_header(record, link_type)
    if found is None:
        return Unread.LINK
    at, direction = found
    outgoing = direction if outgoing is None else outgoing
    cut = Unread.CUT if len(record) < length else Unread.OTHER
    if at < 0:
        protocol = ether_type(record, link_type)
        return Unread.OTHER if protocol < _LEAST_ETHER_TYPE or protocol in _WITHOUT_IP else Unread.ETHER_TYPE
    if at >= len(record):
        return cut
    whole = transport(record, at)
    if whole is None:
        if _is_later_fragment(record, at):
            return Unread.FRAGMENT
        return cut if _says_too_little(record, at) else Unread.OTHER
    tcp, _, _, _ = whole
    if len(record) < tcp + 4:
        return cut
    source, destination = record[tcp] << 8 | record[tcp + 1], record[tcp + 2] << 8 | record[tcp + 3]
    if source not in ports and destination not in ports:
        return Unread.OTHER
    segment = parse_frame(record[at:], time, interface, RAW_IP, outgoing)
    if segment is None:
        return cut
    header = record[tcp : tcp + (record[tcp + 12] >> 4 << 2)]
    packet = record[at + 2 : at + 6] if len(segment.source) == 4 else record[at + 4 : at + 6]
    identity = packet + header[:16] + header[18:]
    return Captured(segment, header, max(0, _end(record, at, length) - tcp - len(header)), identity)


def _network_header(record: bytes, link_type: int) -> tuple[int, bool | None] | None:
    """Return where IP begins, -1 where it does not or the record ends before it, and which way the packet went.

    None: the link type is not known.
    """
    if link_type in _RAW:
        return 0, None
    if link_type in _LOOPBACK:
        return 4, None
    if link_type not in _ETHER_TYPE_AT:
        return None
    at = _behind_tags(record, *_ETHER_TYPE_AT[link_type])
    if link_type == _ETHERNET:
        return at, None
    return at, _direction(record[0:2] if link_type == _COOKED else record[10:11])


def ether_type(record: bytes, link_type: int) -> int:
    """Return the EtherType behind a link header that has one, and behind its tags; a tag's where there are too many."""
    protocol_at, at = _ETHER_TYPE_AT[link_type]
    for _ in range(_MAX_TAGS):
        if int.from_bytes(record[protocol_at : protocol_at + 2], "big") not in _TAGS:
            break
        protocol_at, at = at + 2, at + 4
    return int.from_bytes(record[protocol_at : protocol_at + 2], "big")


def _direction(packet_type: bytes) -> bool | None:
    number = int.from_bytes(packet_type, "big")
    return True if number == _BY_US else False if number == _TO_US and packet_type else None


def _behind_tags(record: bytes, protocol_at: int, at: int) -> int:
    """Return where IP begins behind 802.1Q tags, whose last two bytes each name what follows; -1 where it does not.

    Where the record ends before that, the place is behind its end.
    """
    for _ in range(_MAX_TAGS + 1):
        if len(record) <= at:
            return len(record)
        protocol = int.from_bytes(record[protocol_at : protocol_at + 2], "big")
        if protocol not in _TAGS:
            return at if _IP.get(protocol) == record[at] >> 4 else -1
        protocol_at, at = at + 2, at + 4
    return -1


def _is_later_fragment(record: bytes, at: int) -> bool:
    """Return whether the IP packet at *at* is a fragment of one of TCP, in which TCP does not begin."""
    if record[at] >> 4 == 4:
        return len(record) >= at + 20 and record[at + 9] == TCP and bool(record[at + 6] & 0x1F or record[at + 7])
    if len(record) < at + 40:
        return False
    kind, at = record[at + 6], at + 40
    while kind in EXTENSION_HEADERS and len(record) >= at + 8:
        if kind == FRAGMENT:
            return record[at] == TCP and bool(record[at + 2] or record[at + 3] & 0xF8)
        size = (record[at + 1] + 2) << 2 if kind == AUTHENTICATION else (record[at + 1] + 1) << 3
        kind, at = record[at], at + size
    return False


def _says_too_little(record: bytes, at: int) -> bool:
    """Return whether the IP packet at *at* may be one of TCP, for all that is there of it."""
    version = record[at] >> 4
    if version == 4:
        return len(record) < at + 20
    return version == 6 and (len(record) < at + 40 or record[at + 6] in EXTENSION_HEADERS)


def _end(record: bytes, at: int, length: int) -> int:
    """Return where the IP packet at *at* ended in the frame of *length* bytes. Frames are padded behind it."""
    field = at + (2 if record[at] >> 4 == 4 else 4)
    size = int.from_bytes(record[field : field + 2], "big")
    if size == 0:  # more than 64 KiB, which the card will cut
        return length
    return at + size + (0 if record[at] >> 4 == 4 else 40)
