# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds the IPv4 addresses embedded in IPv6 addresses: a client with the one address also has the other, or appears
with it. Pure.

Translators (NAT64 and similar) and tunnels embed them, each in its own way. Two ways are left out, since nothing
distinguishes them from ordinary addresses: a network's own NAT64 prefix, and ISATAP (RFC 5214).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from .addresses import IPV4, Addresses

_ZERO = 8
"""Bits 64 to 71 of an address are zero; an IPv4 address continues after them (RFC 6052, 2.2)."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way of embedding an IPv4 address in an IPv6 address."""

    name: str
    prefix: Addresses
    after: int
    """Bits after the IPv4 address."""
    turned: int = 0
    """Mask of its inverted bits."""
    parted: int = 0
    """How many of its bits follow the eight zero bits; 0 if those are not within it."""


_TO_LOCAL = Addresses.of("64:ff9b:1::/48")
WAYS = (
    Way("6to4", Addresses.of("2002::/16"), 80),
    Way("NAT64", Addresses.of("64:ff9b::/96"), 0),
    Way("Teredo", Addresses.of("2001::/32"), 0, turned=(1 << 32) - 1),
    # The network chooses a prefix of 48, 56, 64 or 96 bits.
    Way("NAT64 for local use", _TO_LOCAL, 40, parted=16),
    Way("NAT64 for local use", _TO_LOCAL, 32, parted=24),
    Way("NAT64 for local use", _TO_LOCAL, 24),
    Way("NAT64 for local use", _TO_LOCAL, 0),
    Way("IPv4-compatible addresses", Addresses.of("::/96"), 0),
    Way("IPv4-translated addresses", Addresses.of("::ffff:0:0:0/96"), 0),
)
"""RFC 3056, 2; RFC 6052, 2.1; RFC 4380, 4; RFC 8215 and RFC 6052, 2.2; RFC 4291, 2.5.5.1; RFC 2765, 2.1."""


def embedded(addresses: Addresses, way: Way) -> Addresses:
    """Return the IPv4 addresses that *addresses* embed in this way."""
    return Addresses.union(_of_each(addresses & way.prefix, way))


def _of_each(addresses: Addresses, way: Way) -> Iterator[Addresses]:
    width = way.after + 32 + (_ZERO if way.parted else 0)
    for low, high in addresses.ranges:
        if high - low + 1 >> width:  # all, whatever precedes them
            yield IPV4.all
        elif low >> width == high >> width:
            yield _between(low, high, way, width)
        else:  # to the end of one, and from the beginning of the next
            yield _between(low, (1 << width) - 1, way, width)
            yield _between(0, high, way, width)


def _between(low: int, high: int, way: Way, width: int) -> Addresses:
    first, last = ((number & (1 << width) - 1) >> way.after for number in (low, high))
    if way.parted:
        first, last = _joined(first, way.parted, at_least=True), _joined(last, way.parted, at_least=False)
    ends = sorted((first ^ way.turned, last ^ way.turned)) if way.turned else (first, last)
    if ends[0] > ends[1]:
        return Addresses()
    return Addresses.between(IPv4Address(ends[0]), IPv4Address(ends[1]))


def _joined(number: int, parted: int, *, at_least: bool) -> int:
    """Return the first IPv4 address from *number* on (*at_least*), or the last up to it, with the zero bits removed."""
    front, rest = number >> parted + _ZERO, number & (1 << parted) - 1
    if not number >> parted & (1 << _ZERO) - 1:
        return front << parted | rest
    return front + 1 << parted if at_least else front << parted | (1 << parted) - 1
