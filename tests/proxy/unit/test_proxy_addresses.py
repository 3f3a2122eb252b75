# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for sets of addresses: most compare them with Python's sets of a few small numbers."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_proxy.configuration.addresses import EVERYBODY, IPV4, IPV6, NOBODY, Addresses

_SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=6)
"""Lists of spans: the first number, and the distance from it to the last number."""


def as_addresses_and_set(spans: list[tuple[int, int]]) -> tuple[Addresses, set[int]]:
    """Return the same addresses as an Addresses object and as a Python set."""
    plain = {number for first, distance in spans for number in range(first, first + distance + 1)}
    parts = [Addresses(((first, first + distance),)) for first, distance in spans]
    return Addresses.union(parts), plain


def numbers(addresses: Addresses) -> set[int]:
    return {number for low, high in addresses.ranges for number in range(low, high + 1)}


@given(_SPANS, _SPANS)
def test_arithmetic_agrees_with_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    (a, plain_a), (b, plain_b) = as_addresses_and_set(left), as_addresses_and_set(right)
    assert numbers(a | b) == plain_a | plain_b
    assert numbers(a & b) == plain_a & plain_b
    assert numbers(a - b) == plain_a - plain_b
    assert (a | b).count == len(plain_a | plain_b)
    assert bool(a) == bool(plain_a)
    for low, high in (a | b).ranges:
        assert low - 1 not in numbers(a | b)
        assert high + 1 not in numbers(a | b)


def test_ipv4_address_equals_its_ipv6_form() -> None:
    assert Addresses.from_prefixes("10.0.0.0/8") == Addresses.from_prefixes("::ffff:10.0.0.0/104")
    assert Addresses.from_prefixes("0.0.0.0/0") == Addresses.from_prefixes("::ffff:0:0/96")
    assert IPV4.all.count == 1 << 32
    assert IPV4.public.count < IPV4.all.count
    assert not IPV4.public & Addresses.from_prefixes("10.1.2.3", "127.0.0.1", "192.168.7.7")
    assert not IPV6.public & Addresses.from_prefixes("fe80::/10", "fc00::/7", "::1")


def test_all_addresses_and_the_empty_set() -> None:
    assert EVERYBODY - NOBODY == EVERYBODY
    assert EVERYBODY - EVERYBODY == NOBODY
    assert Addresses.intersection([]) == EVERYBODY
    assert Addresses.union([]) == NOBODY
    with pytest.raises(ValueError, match="is after"):
        Addresses.between(ip_address("10.0.0.2"), ip_address("10.0.0.1"))
