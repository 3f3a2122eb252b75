# SPDX-License-Identifier: GPL-2.0-or-later
"""Parses the MPTCP options of a TCP header into frozen structs, and computes tokens and HMACs from keys.

Sources: RFC 8684, 3; kind 30, subtypes in figure 19. Of RFC 6824 (version 0), which Linux does not support, the parser
reads only the version in MP_CAPABLE. Rules:

- Nothing raises. An invalid option is a :class:`Malformed`, an option that no RFC defines an :class:`UnknownSubtype`.
- An invalid option of another kind ends the parsing, as it does in the kernel: the next option cannot be found.
- No octets appear in a ``repr``: keys are the connection's only secret, and logs have many readers.

This runs for every captured segment, so it uses slices and ``int.from_bytes`` rather than a declarative parser.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

from msgspec import Struct

KIND: Final = 30
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
"""Flags of TCP (RFC 9293, 3.1)."""
_CAPABLE_LENGTHS: Final = {SYN: (4,), SYN | ACK: (12,), ACK: (20, 22, 24), 0: (20, 22, 24)}
_from_bytes = int.from_bytes


class MptcpOption(Struct, frozen=True):
    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        shown = (f"{name}={value!r}" for name, value in fields.items() if not isinstance(value, bytes))
        return f"{type(self).__name__}({', '.join(shown)})"


class MpCapable(MptcpOption, frozen=True):
    """Opens a connection (3.1). Which keys it carries depends on the step of the handshake."""

    version: int
    flags: int  # the octet of bits A (0x80: checksums) to H; C (0x20): no join towards this address and port
    sender_key: bytes | None = None
    receiver_key: bytes | None = None
    data_length: int | None = None  # in a third ACK with data: the length of the data-level mapping, in place of a DSS


class MpJoinSyn(MptcpOption, frozen=True):
    """A join's SYN (3.2, figure 5)."""

    backup: bool
    address_id: int
    token: int  # the receiver's token of the connection to join
    nonce: bytes


class MpJoinSynAck(MptcpOption, frozen=True):
    """A join's SYN/ACK (3.2, figure 6), with the leftmost 64 bits of the HMAC."""

    backup: bool
    address_id: int
    hmac: bytes
    nonce: bytes


class MpJoinAck(MptcpOption, frozen=True):
    """A join's third ACK (3.2, figure 7), with the leftmost 160 bits of the HMAC."""

    hmac: bytes


class Dss(MptcpOption, frozen=True):
    """Data sequence signal (3.3), without the checksum. An absent field is None, and its size in octets 0."""

    data_fin: bool
    data_ack: int | None
    data_sequence: int | None
    data_sequence_octets: int
    subflow_sequence: int | None
    data_length: int | None


class AddAddr(MptcpOption, frozen=True):
    """The sender has another address (3.4.1)."""

    echo: bool
    address_id: int
    address: bytes
    port: int | None


class RemoveAddr(MptcpOption, frozen=True):
    """The sender lost these addresses (3.4.2)."""

    address_ids: tuple[int, ...]


class MpPrio(MptcpOption, frozen=True):
    """Requests that a subflow becomes backup, or regular again (3.3.8)."""

    backup: bool


class MpFail(MptcpOption, frozen=True):
    """Checksum failure; fall back to TCP (3.7)."""

    data_sequence: int


class MpFastclose(MptcpOption, frozen=True):
    """Closes the whole connection at once (3.5)."""

    receiver_key: bytes


class MpTcprst(MptcpOption, frozen=True):
    """Reports why a subflow is reset (3.6). RFC 8684 only."""

    flags: int  # bits U, V, W, T; T (1) marks a transient cause
    reason: int


class UnknownSubtype(MptcpOption, frozen=True):
    """A subtype that neither RFC defines, or the private subtype (0xf)."""

    subtype: int
    body: bytes  # everything after kind and length


class Malformed(MptcpOption, frozen=True):
    """A kind-30 option whose format is invalid."""

    subtype: int | None
    reason: str
    data: bytes


def parse_options(tcp_options: bytes, flags: int) -> tuple[MptcpOption, ...]:
    """Return the MPTCP options among *tcp_options* (the TCP header from octet 20 on), in order.

    *flags* are the segment's TCP flags: SYN and ACK decide which form MP_CAPABLE and MP_JOIN must have.
    """
    if b"\x1e" not in tcp_options:  # most segments of plain TCP
        return ()
    options: list[MptcpOption] = []
    offset, end = 0, len(tcp_options)
    while offset < end:
        kind = tcp_options[offset]
        if kind == 1:
            offset += 1
            continue
        if kind == 0:
            break
        length = tcp_options[offset + 1] if offset + 1 < end else 0
        if length < 2 or offset + length > end:
            if kind == KIND:
                options.append(Malformed(None, "its length exceeds the header", tcp_options[offset:]))
            break
        if kind == KIND:
            options.append(parse_option(tcp_options[offset : offset + length], flags))
        offset += length
    return tuple(options)


def parse_option(option: bytes, flags: int) -> MptcpOption:
    """Return the value of one kind-30 *option*, kind and length octets included."""
    if (length := len(option)) < 3:
        return Malformed(None, "no subtype", option)
    subtype, bits = option[2] >> 4, option[2] & 15
    parsed: MptcpOption | None = None
    if subtype == 0:
        parsed = _capable(option, length, flags)
    elif subtype == 1:
        parsed = _join(option, length, flags)
    elif subtype == 2:
        parsed = _dss(option, length)
    elif subtype == 3:
        parsed = _add_addr(option, length)
    elif subtype == 4 and length > 3:
        parsed = RemoveAddr(tuple(option[3:]))
    elif subtype == 5 and length == 3:
        parsed = MpPrio(bool(bits & 1))
    elif subtype == 6 and length == 12:
        parsed = MpFail(_from_bytes(option[4:12], "big"))
    elif subtype == 7 and length == 12:
        parsed = MpFastclose(option[4:12])
    elif subtype == 8 and length == 4:
        parsed = MpTcprst(bits, option[3])
    elif subtype > 8:
        parsed = UnknownSubtype(subtype, option[2:])
    return parsed or Malformed(subtype, f"length {length} is invalid for this subtype", option)


def _capable(option: bytes, length: int, flags: int) -> MptcpOption | None:
    if length < 4:
        return None
    version, bits = option[2] & 15, option[3]
    if version != 1:
        # Only the version is read: a host answers a later version with a lower one (3.1), and Linux rejects version 0.
        return MpCapable(version, bits)
    if length not in _CAPABLE_LENGTHS[flags & (SYN | ACK)]:
        return None
    return MpCapable(version, bits, option[4:12] or None, option[12:20] or None, _number(option[20:22]))


def _join(option: bytes, length: int, flags: int) -> MptcpOption | None:
    if not flags & SYN:
        return MpJoinAck(option[4:24]) if length == 24 else None
    backup = bool(option[2] & 1)
    if flags & ACK:
        return MpJoinSynAck(backup, option[3], option[4:12], option[12:16]) if length == 16 else None
    if length != 12:
        return None
    return MpJoinSyn(backup, option[3], _from_bytes(option[4:8], "big"), option[8:12])


def _dss(option: bytes, length: int) -> MptcpOption | None:
    if length < 4:
        return None
    bits = option[3]
    ack_end = 4 + ((8 if bits & 2 else 4) if bits & 1 else 0)
    sequence_octets = (8 if bits & 8 else 4) if bits & 4 else 0
    sequence_end = ack_end + sequence_octets
    if length not in ((sequence_end + 6, sequence_end + 8) if sequence_octets else (sequence_end,)):
        return None
    return Dss(
        bool(bits & 16),
        _number(option[4:ack_end]),
        _number(option[ack_end:sequence_end]),
        sequence_octets,
        _number(option[sequence_end : sequence_end + 4]),
        _number(option[sequence_end + 4 : sequence_end + 6]),
    )


def _add_addr(option: bytes, length: int) -> MptcpOption | None:
    echo, size = option[2] & 15, length - 4
    size -= 0 if echo else 8  # only an echo has no HMAC
    octets, port_octets = size & ~2, size & 2
    if octets not in (4, 16) or echo > 1:
        return None
    address_end = 4 + octets
    port = _number(option[address_end : address_end + port_octets])
    return AddAddr(bool(echo), option[3], option[4:address_end], port)


def _number(octets: bytes) -> int | None:
    """Return the integer; None for an absent field."""
    return _from_bytes(octets, "big") if octets else None


def token_of_key(key: bytes) -> int:
    """Return the token of the host that owns *key* (3.1): the leftmost 32 bits of the key's hash."""
    return _from_bytes(sha256(key).digest()[:4], "big")


def initial_data_sequence(key: bytes) -> int:
    """Return the IDSN of the host that owns *key* (3.1): the rightmost 64 bits of the key's hash."""
    return _from_bytes(sha256(key).digest()[-8:], "big")


def join_ack_hmac(key_a: bytes, key_b: bytes, nonce_a: bytes, nonce_b: bytes) -> bytes:
    """Return the 20 octets that prove that host A, which joins (here always the client), knows both keys (3.2)."""
    return hmac.digest(key_a + key_b, nonce_a + nonce_b, "sha256")[:20]
