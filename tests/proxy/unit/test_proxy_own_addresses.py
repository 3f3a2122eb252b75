"""The host's own addresses, as Squid is told of them."""

from __future__ import annotations

from ipaddress import ip_network

from mptcp_proxy import own_addresses


def test_own_addresses_are_written_without_those_within_others() -> None:
    names = ("10.0.0.1/32", "127.0.0.0/8", "127.0.0.1/32", "fd00::1/128", "::1/128", "10.9.0.0/16", "10.9.1.0/24")
    assert own_addresses.render(frozenset(map(ip_network, names))).split() == [
        "10.0.0.1/32",
        "10.9.0.0/16",
        "127.0.0.0/8",
        "::1/128",
        "fd00::1/128",
    ]
    assert own_addresses.render(()) != ""


def test_squid_is_told_only_of_addresses_that_the_fixed_rules_do_not_cover() -> None:
    names = ("10.0.0.1/32", "127.0.0.0/8", "169.254.1.1/32", "fe80::1/128", "::1/128", "fd00::1/128", "192.0.2.1/32")
    told = own_addresses.reachable(map(ip_network, names))
    assert {str(prefix) for prefix in told} == {"10.0.0.1/32", "fd00::1/128", "192.0.2.1/32"}
