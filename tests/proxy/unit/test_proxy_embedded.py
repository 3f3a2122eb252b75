# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that IPv4 addresses are extracted from IPv6 addresses, which the tests build as the RFCs describe."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_proxy.configuration.addresses import IPV4, Addresses
from mptcp_proxy.configuration.embedded import EMBEDDINGS, Embedding, embedded_ipv4

_V4 = st.integers(0, (1 << 32) - 1)


def _all_forms(v4: int) -> list[tuple[int, IPv6Address]]:
    """Return addresses that contain *v4*, one for each scheme, with the scheme's index in EMBEDDINGS."""
    local = int(IPv6Address("64:ff9b:1::"))
    return [
        (0, IPv6Address(0x2002 << 112 | v4 << 80)),
        (1, IPv6Address(int(IPv6Address("64:ff9b::")) | v4)),
        (2, IPv6Address(int(IPv6Address("2001:0:102:304::")) | (v4 ^ 0xFFFFFFFF))),
        # RFC 6052, 2.2: 16 bits before and 16 bits after the zero octet; 8 before and 24 after; 32 after; 32 at the
        # end.
        (3, IPv6Address(local | v4 >> 16 << 64 | (v4 & 0xFFFF) << 40)),
        (4, IPv6Address(local | 0xAB << 72 | v4 >> 24 << 64 | (v4 & 0xFFFFFF) << 32)),
        (5, IPv6Address(local | 0xABCD << 64 | v4 << 24)),
        (6, IPv6Address(local | 0xABCD << 64 | v4)),
        (7, IPv6Address(v4)),
        (8, IPv6Address(0xFFFF << 48 | v4)),
    ]


@given(_V4)
def test_address_that_was_embedded_is_extracted(v4: int) -> None:
    for index, embedded in _all_forms(v4):
        assert embedded_ipv4(Addresses.from_prefixes(str(embedded)), EMBEDDINGS[index]) == Addresses.from_prefixes(
            str(IPv4Address(v4))
        ), embedded


@given(_V4, _V4)
def test_range_of_addresses_is_extracted(first_v4: int, second_v4: int) -> None:
    low, high = sorted((first_v4, second_v4))
    for (index, first), (_, last) in zip(_all_forms(low), _all_forms(high), strict=True):
        ends = sorted((first, last))
        found = embedded_ipv4(Addresses.between(*ends), EMBEDDINGS[index])
        assert found == Addresses.between(IPv4Address(low), IPv4Address(high)), ends


@pytest.mark.parametrize("embedding", EMBEDDINGS, ids=lambda embedding: f"{embedding.name}-{embedding.bits_after}")
def test_whole_prefix_contains_all_of_ipv4(embedding: Embedding) -> None:
    assert embedded_ipv4(embedding.prefix, embedding) == IPV4.all


def test_range_across_two_prefixes_contains_the_end_and_the_start_of_ipv4() -> None:
    v4 = "128.0.0.0/1", "0.0.0.0/2"
    first, last = IPv6Address("64:ff9b:1:1::8000:0"), IPv6Address("64:ff9b:1:1:0:1:3fff:ffff")
    assert embedded_ipv4(Addresses.between(first, last), EMBEDDINGS[6]) == Addresses.from_prefixes(*v4)


def test_address_with_a_nonzero_reserved_octet_contains_no_ipv4_address() -> None:
    between = Addresses.between(IPv6Address("64:ff9b:1:4000:100::"), IPv6Address("64:ff9b:1:4000:ffff::"))
    assert embedded_ipv4(between, EMBEDDINGS[3]) == Addresses()
