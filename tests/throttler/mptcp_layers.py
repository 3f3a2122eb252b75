# SPDX-License-Identifier: GPL-2.0-or-later
# mypy: disable-error-code="misc"
# Scapy has no type annotations. Therefore, mypy reports subclasses of its classes as errors.
"""Scapy layers for the MPTCP options (RFC 8684, section 3, and RFC 6824, section 3, if the two RFCs differ).

Scapy contains no MPTCP layers.

Tests build segments from these layers. They also compare ``mptcp_throttler.mptcp.options`` with the layers, which
define each option format independently.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    FieldListField,
    FlagsField,
    IntField,
    IP6Field,
    IPField,
    LongField,
    MultipleTypeField,
    ShortField,
    StrField,
    StrFixedLenField,
    XIntField,
    XLongField,
    XShortField,
)
from scapy.packet import Packet

KIND: Final = 30
_FIXED_HEADER_BYTES: Final = 20
"""Size of the TCP header before its options."""
SUBTYPES: Final = {
    0: "MP_CAPABLE",
    1: "MP_JOIN",
    2: "DSS",
    3: "ADD_ADDR",
    4: "REMOVE_ADDR",
    5: "MP_PRIO",
    6: "MP_FAIL",
    7: "MP_FASTCLOSE",
    8: "MP_TCPRST",
}
RESET_REASONS: Final = {
    0: "unspecified",
    1: "MPTCP-specific",
    2: "lack of resources",
    3: "administratively prohibited",
    4: "too much outstanding data",
    5: "unacceptable performance",
    6: "middlebox interference",
}


def _first_fields(subtype: int) -> list[Any]:
    return [ByteField("kind", KIND), ByteField("length", None), BitEnumField("subtype", subtype, 4, SUBTYPES)]


def _fields_with_flag(subtype: int, flag: str) -> list[Any]:
    """Return the first fields of an option that has one flag and an address identifier."""
    return [*_first_fields(subtype), BitField("reserved", 0, 3), BitField(flag, 0, 1), ByteField("address_id", 0)]


def _is_present_with(name: str, *lengths: int) -> Callable[[Packet], bool]:
    """Return the condition under which an optional field is present.

    If the option has a length, the field is present if *lengths* contains this length. Otherwise it is present if it
    has a value.
    """

    def present(packet: Packet) -> bool:
        length = packet.fields.get("length")
        return packet.fields.get(name) is not None if length is None else length in lengths

    return present


class MptcpOption(Packet):
    """Base class of all MPTCP options. :func:`dissect` chooses the subclass."""

    def post_build(self, packet: bytes, payload: bytes) -> bytes:
        if self.length is None:
            packet = packet[:1] + bytes([len(packet)]) + packet[2:]
        return packet + payload


class MpCapable(MptcpOption):
    """RFC 8684, 3.1.

    In version 0, the SYN already has a key. In version 1, the option may have a data-level length and a checksum.
    """

    name = "MpCapable"
    fields_desc = (
        *_first_fields(0),
        BitField("version", 1, 4),
        FlagsField("flags", 1, 8, "HGFEDCBA"),
        ConditionalField(XLongField("sender_key", None), _is_present_with("sender_key", 12, 20, 22, 24)),
        ConditionalField(XLongField("receiver_key", None), _is_present_with("receiver_key", 20, 22, 24)),
        ConditionalField(ShortField("data_length", None), _is_present_with("data_length", 22, 24)),
        ConditionalField(XShortField("checksum", None), _is_present_with("checksum", 24)),
    )


class MpJoinSyn(MptcpOption):
    """RFC 8684, 3.2, figure 5."""

    name = "MpJoinSyn"
    fields_desc = (
        *_fields_with_flag(1, "backup"),
        XIntField("token", 0),
        XIntField("nonce", 0),
    )


class MpJoinSynAck(MptcpOption):
    """RFC 8684, 3.2, figure 6."""

    name = "MpJoinSynAck"
    fields_desc = (
        *_fields_with_flag(1, "backup"),
        XLongField("hmac", 0),
        XIntField("nonce", 0),
    )


class MpJoinAck(MptcpOption):
    """RFC 8684, 3.2, figure 7."""

    name = "MpJoinAck"
    fields_desc = (*_first_fields(1), BitField("reserved", 0, 12), StrFixedLenField("hmac", bytes(20), 20))


def _dss_has_checksum(packet: Packet) -> bool:
    if not packet.flags & 4:
        return False
    if packet.fields.get("length") is None:
        return packet.fields.get("checksum") is not None
    return bool(packet.length == _dss_length(int(packet.flags)) + 2)


def _dss_length(flags: int) -> int:
    ack = (8 if flags & 2 else 4) if flags & 1 else 0
    mapping = (14 if flags & 8 else 10) if flags & 4 else 0
    return 4 + ack + mapping


class Dss(MptcpOption):
    """RFC 8684, 3.3.

    ``flags``: A = ACK present, a = ACK has 8 bytes, M = mapping present, m = 8-byte sequence, F = DATA_FIN.
    """

    name = "Dss"
    fields_desc = (
        *_first_fields(2),
        BitField("reserved", 0, 4),
        FlagsField("flags", 0, 8, "AaMmF678"),
        ConditionalField(
            MultipleTypeField([(LongField("data_ack", 0), lambda p: p.flags & 2)], IntField("data_ack", 0)),
            lambda p: p.flags & 1,
        ),
        ConditionalField(
            MultipleTypeField([(LongField("data_sequence", 0), lambda p: p.flags & 8)], IntField("data_sequence", 0)),
            lambda p: p.flags & 4,
        ),
        ConditionalField(IntField("subflow_sequence", 0), lambda p: p.flags & 4),
        ConditionalField(ShortField("data_length", 0), lambda p: p.flags & 4),
        ConditionalField(XShortField("checksum", None), _dss_has_checksum),
    )


def _is_ipv6(packet: Packet) -> bool:
    length = packet.fields.get("length")
    return _is_ipv6_text(packet, packet.fields.get("address", "")) if length is None else length >= 20


def _is_ipv6_text(packet: Packet, address: Any) -> bool:
    return ":" in str(address)


_ADDRESS: Final = MultipleTypeField(
    [(IP6Field("address", "::"), (_is_ipv6, _is_ipv6_text))],
    IPField("address", "0.0.0.0"),
)


class AddAddr(MptcpOption):
    """RFC 8684, 3.4.1 (version 1). An echo has no HMAC."""

    name = "AddAddr"
    fields_desc = (
        *_fields_with_flag(3, "echo"),
        _ADDRESS,
        ConditionalField(ShortField("port", None), _is_present_with("port", 10, 18, 22, 30)),
        ConditionalField(XLongField("hmac", None), _is_present_with("hmac", 16, 18, 28, 30)),
    )


class AddAddrV0(MptcpOption):
    """RFC 6824, 3.4.1 (version 0). The IP version is in the bits that version 1 uses for flags."""

    name = "AddAddrV0"
    fields_desc = (
        *_first_fields(3),
        BitField("ip_version", 4, 4),
        ByteField("address_id", 0),
        _ADDRESS,
        ConditionalField(ShortField("port", None), _is_present_with("port", 10, 22)),
    )


class RemoveAddr(MptcpOption):
    """RFC 8684, 3.4.2."""

    name = "RemoveAddr"
    fields_desc = (
        *_first_fields(4),
        BitField("reserved", 0, 4),
        FieldListField("address_ids", [], ByteField("", 0), length_from=lambda p: p.length - 3),
    )


class MpPrio(MptcpOption):
    """RFC 8684, 3.3.8. Only RFC 6824 allows an address identifier in this option."""

    name = "MpPrio"
    fields_desc = (
        *_first_fields(5),
        BitField("reserved", 0, 3),
        BitField("backup", 0, 1),
        ConditionalField(ByteField("address_id", None), _is_present_with("address_id", 4)),
    )


class MpFail(MptcpOption):
    """RFC 8684, 3.7."""

    name = "MpFail"
    fields_desc = (*_first_fields(6), BitField("reserved", 0, 12), LongField("data_sequence", 0))


class MpFastclose(MptcpOption):
    """RFC 8684, 3.5."""

    name = "MpFastclose"
    fields_desc = (*_first_fields(7), BitField("reserved", 0, 12), XLongField("receiver_key", 0))


class MpTcprst(MptcpOption):
    """RFC 8684, 3.6. Version 0 does not have this option."""

    name = "MpTcprst"
    fields_desc = (*_first_fields(8), FlagsField("flags", 0, 4, "TWVU"), ByteEnumField("reason", 0, RESET_REASONS))


class Unknown(MptcpOption):
    """An option with a subtype that no RFC defines, or with a length that does not fit its subtype."""

    name = "Unknown"
    fields_desc = (*_first_fields(15), BitField("rest", 0, 4), StrField("body", b""))


class Empty(Packet):
    """A kind-30 option that is too short for a subtype."""

    name = "Empty"
    fields_desc = (ByteField("kind", KIND), ByteField("length", 2))


def _layer_class(option: bytes) -> type[Packet]:
    length, subtype, nibble = len(option), option[2] >> 4, option[2] & 15
    dss = _dss_length(option[3]) if length > 3 else 0
    classes: dict[int, type[Packet] | None] = {
        0: MpCapable if length in (4, 12, 20, 22, 24) else None,
        1: {12: MpJoinSyn, 16: MpJoinSynAck, 24: MpJoinAck}.get(length),
        2: Dss if length == dss or (length == dss + 2 and option[3] & 4) else None,
        3: (
            (AddAddr if length in (8, 10, 16, 18, 20, 22, 28, 30) else None)
            if nibble < 2
            else (AddAddrV0 if (nibble, length) in ((4, 8), (4, 10), (6, 20), (6, 22)) else None)
        ),
        4: RemoveAddr if length > 3 else None,
        5: MpPrio if length < 5 else None,
        6: MpFail if length == 12 else None,
        7: MpFastclose if length == 12 else None,
        8: MpTcprst if length == 4 else None,
    }
    return classes.get(subtype) or Unknown


def dissect(option: bytes) -> Packet:
    """Return the layer for one complete kind-30 option, including kind and length. Never raises an exception."""
    return (_layer_class(option) if len(option) > 2 else Empty)(option)


def tcp_option(layer: Packet) -> tuple[int, bytes]:
    """Return *layer* in the form in which ``TCP(options=[...])`` accepts an option that is unknown to Scapy."""
    return KIND, bytes(layer)[2:]


def mptcp_options(tcp_header: bytes) -> list[Packet]:
    """Return the MPTCP options of a TCP header as layers, in order. The last option may be truncated.

    Never raises an exception. Scapy's TCP layer raises an exception if another option is too short, for example TCP-AO
    without key number.
    """
    layers = []
    position, end = _FIXED_HEADER_BYTES, len(tcp_header)
    while position < end and (kind := tcp_header[position]) != 0:
        if kind == 1:
            position += 1
            continue
        length = tcp_header[position + 1] if position + 1 < end else 0
        value = tcp_header[position + 2 : position + length]
        if kind == KIND:
            layers.append(dissect(bytes([KIND, len(value) + 2]) + value))
        if length < 2:
            break
        position += length
    return layers
