# SPDX-License-Identifier: GPL-2.0-or-later
"""Exact arithmetic with sets of IPv4 and IPv6 addresses. An IPv4 address is ::ffff:a.b.c.d, as in Squid. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Self

_IPV4_OFFSET = 0xFFFF << 32
"""0.0.0.0 as an IPv4-mapped IPv6 address."""
_LAST_ADDRESS = (1 << 128) - 1


@dataclass(frozen=True, slots=True)
class Addresses:
    """A set of addresses, as sorted ranges that neither overlap nor touch."""

    ranges: tuple[tuple[int, int], ...] = ()
    """First and last address of each range, as 128-bit numbers."""

    @classmethod
    def from_prefixes(cls, *prefixes: str) -> Self:
        """Return the addresses of *prefixes*. Raises ValueError for an invalid prefix."""
        networks = [ip_network(prefix, strict=False) for prefix in prefixes]
        return cls._join((_number(each.network_address), _number(each.broadcast_address)) for each in networks)

    @classmethod
    def between(cls, first: IPv4Address | IPv6Address, last: IPv4Address | IPv6Address) -> Self:
        """Return all addresses from *first* to *last*. Raises ValueError if *first* is after *last*."""
        low, high = _number(first), _number(last)
        if low > high:
            raise ValueError(f"{first} is after {last}")
        return cls(((low, high),))

    @classmethod
    def union(cls, sets: Iterable[Addresses]) -> Self:
        """Return the union of *sets*."""
        return cls._join(each for addresses in sets for each in addresses.ranges)

    @classmethod
    def intersection(cls, sets: Iterable[Addresses]) -> Addresses:
        """Return the intersection of *sets*; EVERYBODY for no sets."""
        found: Addresses = EVERYBODY
        for each in sets:
            found &= each
        return found

    @classmethod
    def _join(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        joined: list[tuple[int, int]] = []
        for low, high in sorted(ranges):
            if joined and low <= joined[-1][1] + 1:
                joined[-1] = joined[-1][0], max(high, joined[-1][1])
            else:
                joined.append((low, high))
        return cls(tuple(joined))

    @property
    def count(self) -> int:
        """The number of addresses, which may be too large for len()."""
        return sum(high - low + 1 for low, high in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __or__(self, other: Addresses) -> Addresses:
        return Addresses.union((self, other))

    def __and__(self, other: Addresses) -> Addresses:
        return EVERYBODY - ((EVERYBODY - self) | (EVERYBODY - other))

    def __sub__(self, other: Addresses) -> Addresses:
        return Addresses(tuple(self._without(other)))

    def _without(self, other: Addresses) -> Iterator[tuple[int, int]]:
        removed, index = other.ranges, 0
        for low, high in self.ranges:
            begin = low
            while index < len(removed) and removed[index][0] <= high:
                first, last = removed[index]
                if first > begin:
                    yield begin, first - 1
                begin = max(begin, last + 1)
                if last > high:
                    break  # this removed range may also overlap the next range
                index += 1
            if begin <= high:
                yield begin, high


def _number(address: IPv4Address | IPv6Address) -> int:
    return int(address) + (_IPV4_OFFSET if isinstance(address, IPv4Address) else 0)


NOBODY = Addresses()
EVERYBODY = Addresses(((0, _LAST_ADDRESS),))


@dataclass(frozen=True, slots=True)
class Family:
    """The addresses of one IP version."""

    all: Addresses
    public: Addresses
    """The globally routable addresses."""


_V4 = Addresses.from_prefixes("0.0.0.0/0")
IPV4 = Family(
    _V4,
    # Not public (RFC 6890): this network, private, shared, loopback and link-local addresses; classes D and E.
    _V4
    - Addresses.from_prefixes(
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
        "192.168.0.0/16", "224.0.0.0/3",
    ),
)  # fmt: skip
IPV6 = Family(EVERYBODY - Addresses.from_prefixes("::/4"), Addresses.from_prefixes("2000::/3"))
"""As for Squid's word "ipv6", ::/4 is left out. 2000::/3 is the allocated part (RFC 4291, 2.4)."""
LOOPBACK = Addresses.from_prefixes("127.0.0.0/8", "::1/128")
