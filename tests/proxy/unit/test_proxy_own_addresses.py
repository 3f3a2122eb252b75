# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the list of the host's own addresses that Squid gets."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from mptcp_proxy import own_addresses


def test_addresses_within_others_are_not_written() -> None:
    names = ("10.0.0.1/32", "127.0.0.0/8", "127.0.0.1/32", "fd00::1/128", "::1/128", "10.9.0.0/16", "10.9.1.0/24")
    assert own_addresses.render(frozenset(map(ip_network, names))).split() == [
        "10.0.0.1/32",
        "10.9.0.0/16",
        "127.0.0.0/8",
        "::1/128",
        "64:ff9b::a00:1/128",
        "64:ff9b::a09:0/112",
        "64:ff9b::7f00:0/104",
        "2002:a00:1::/48",
        "2002:a09::/32",
        "2002:7f00::/24",
        "fd00::1/128",
    ]
    assert own_addresses.render(()) != "", "Squid would warn of an empty list"


@given(st.integers(0, 32), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**80 - 1))
def test_own_ipv4_address_is_included_as_embedded_in_ipv6(length: int, own: int, other: int, suffix: int) -> None:
    """In NAT64, the IPv4 address is at the end; in 6to4, it follows the first 16 bits."""
    prefix = IPv4Network((own, length), strict=False)
    nat64, six_to_four = own_addresses.embedding_prefixes(prefix)
    for each in (own, other):
        is_own = IPv4Address(each) in prefix
        assert (IPv6Address((0x64FF9B << 96) | each) in nat64) is is_own
        assert (IPv6Address((0x2002 << 112) | each << 80 | suffix) in six_to_four) is is_own


def test_addresses_that_the_fixed_rules_cover_are_omitted() -> None:
    names = ("10.0.0.1/32", "127.0.0.0/8", "169.254.1.1/32", "fe80::1/128", "::1/128", "fd00::1/128", "192.0.2.1/32")
    listed = own_addresses.without_fixed_rule(map(ip_network, names))
    assert {str(prefix) for prefix in listed} == {"10.0.0.1/32", "fd00::1/128", "192.0.2.1/32"}
