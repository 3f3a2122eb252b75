# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the IPv4 addresses that are embedded in IPv6 addresses. A client that has one of the two addresses also has the
other, or appears with the other at Squid. Pure.

Each translator (NAT64 and similar) and tunnel embeds addresses in its own way. Two ways are left out, because their
addresses look like ordinary ones: a network's own NAT64 prefix, and ISATAP (RFC 5214).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from .addresses import IPV4, Addresses

_ZERO_BITS = 8
"""Bits 64 to 71 of an address are zero, and an IPv4 address continues after them (RFC 6052, 2.2)."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """One way of embedding an IPv4 address in an IPv6 address."""

    name: str
    prefix: Addresses
    bits_after: int
    """Number of bits after the IPv4 address."""
    inverted: int = 0
    """Mask of the bits of the IPv4 address that are inverted."""
    after_zeros: int = 0
    """Number of bits of the IPv4 address that follow the eight zero bits; 0 if the zero bits are not within it."""


_LOCAL_NAT64 = Addresses.from_prefixes("64:ff9b:1::/48")
EMBEDDINGS = (
    Embedding("6to4", Addresses.from_prefixes("2002::/16"), 80),
    Embedding("NAT64", Addresses.from_prefixes("64:ff9b::/96"), 0),
    Embedding("Teredo", Addresses.from_prefixes("2001::/32"), 0, inverted=(1 << 32) - 1),
    # The network chooses a prefix of 48, 56, 64 or 96 bits.
    Embedding("NAT64 for local use", _LOCAL_NAT64, 40, after_zeros=16),
    Embedding("NAT64 for local use", _LOCAL_NAT64, 32, after_zeros=24),
    Embedding("NAT64 for local use", _LOCAL_NAT64, 24),
    Embedding("NAT64 for local use", _LOCAL_NAT64, 0),
    Embedding("IPv4-compatible addresses", Addresses.from_prefixes("::/96"), 0),
    Embedding("IPv4-translated addresses", Addresses.from_prefixes("::ffff:0:0:0/96"), 0),
)
"""RFC 3056, 2; RFC 6052, 2.1; RFC 4380, 4; RFC 8215 and RFC 6052, 2.2; RFC 4291, 2.5.5.1; RFC 2765, 2.1."""


def embedded_ipv4(addresses: Addresses, embedding: Embedding) -> Addresses:
    """Return the IPv4 addresses that are embedded in *addresses* with this *embedding*."""
    return Addresses.union(_by_range(addresses & embedding.prefix, embedding))


def _by_range(addresses: Addresses, embedding: Embedding) -> Iterator[Addresses]:
    width = embedding.bits_after + 32 + (_ZERO_BITS if embedding.after_zeros else 0)
    for low, high in addresses.ranges:
        if high - low + 1 >> width:  # the range contains all values of the last *width* bits
            yield IPV4.all
        elif low >> width == high >> width:
            yield _between(low, high, embedding, width)
        else:  # the last *width* bits wrap around within the range
            yield _between(low, (1 << width) - 1, embedding, width)
            yield _between(0, high, embedding, width)


def _between(low: int, high: int, embedding: Embedding, width: int) -> Addresses:
    first, last = ((number & (1 << width) - 1) >> embedding.bits_after for number in (low, high))
    if bits := embedding.after_zeros:
        first, last = _without_zeros(first, bits, round_up=True), _without_zeros(last, bits, round_up=False)
    ends = (first ^ embedding.inverted, last ^ embedding.inverted)
    ends = (min(ends), max(ends)) if embedding.inverted else ends
    if ends[0] > ends[1]:
        return Addresses()
    return Addresses.between(IPv4Address(ends[0]), IPv4Address(ends[1]))


def _without_zeros(number: int, after_zeros: int, *, round_up: bool) -> int:
    """Return *number* without its zero bits. If they are not all zero, return the next higher IPv4 address (*round_up*)
    or the next lower."""
    front, rest = number >> after_zeros + _ZERO_BITS, number & (1 << after_zeros) - 1
    if not number >> after_zeros & (1 << _ZERO_BITS) - 1:
        return front << after_zeros | rest
    return front + 1 << after_zeros if round_up else front << after_zeros | (1 << after_zeros) - 1
