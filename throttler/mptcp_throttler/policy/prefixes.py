"""Something for each of many client prefixes, found by one look-up for each of their lengths. Pure.

A policy may have ten thousand prefixes, of which nearly all have the same few lengths. To go through all of them for
one address would take half a millisecond, in which nothing else is answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from mptcp_throttler.policy.values import Network

T = TypeVar("T")


class Prefixes(Generic[T]):
    """What was given with each prefix; where one was given twice, the first counts."""

    __slots__ = ("_by_version",)

    def __init__(self, given: Iterable[tuple[Network, T]]) -> None:
        by_version: dict[int, dict[int, dict[int, T]]] = {4: {}, 6: {}}
        for network, value in given:
            shift = network.max_prefixlen - network.prefixlen
            values = by_version[network.version].setdefault(shift, {})
            values.setdefault(int(network.network_address) >> shift, value)
        self._by_version = {version: tuple(sorted(by_shift.items())) for version, by_shift in by_version.items()}
        """By how many bits an address is shifted, which leaves those of the prefix: its value."""

    def holds(self, address: bytes) -> bool:
        """Tell whether any of the prefixes has a packed *address* in it; one of IPv6 has no IPv4 address."""
        number = int.from_bytes(address, "big")
        by_shift = self._by_version[4 if len(address) == 4 else 6]
        return any(number >> shift in values for shift, values in by_shift)

    def around(self, network: Network) -> Iterator[T]:
        """Yield what was given with the prefixes that have all of *network* in them, the longest first."""
        number, least = int(network.network_address), network.max_prefixlen - network.prefixlen
        for shift, values in self._by_version[network.version]:
            if shift >= least and number >> shift in values:
                yield values[number >> shift]
