# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the client that an address belongs to: an IPv4 address or an IPv6 network."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mptcp_common.clients import client_of, client_text


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.2", "192.0.2.2"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::2", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1", "fe80::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("64:ff9b::192.0.2.1", "192.0.2.1"),
        ("64:ff9b::192.0.2.2", "192.0.2.2"),
        ("64:ff9b:0:0:1::192.0.2.1", "64:ff9b::/64"),
        ("64:ff9b:1::192.0.2.1", "64:ff9b:1::/64"),
    ],
)
def test_client_is_an_ipv4_address_or_an_ipv6_network(address: str, client: str) -> None:
    assert client_text(client_of(ip_address(address).packed)) == client
