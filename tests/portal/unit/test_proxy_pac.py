# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for proxy.pac in a real engine: which requests use the proxy, and which are sent directly."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pac_engine import pac_engine
from portal_settings import onboarding

from mptcp_portal.proxy_pac import LOCAL_NETWORKS, proxy_pac

PROXY = "PROXY 192.168.1.10:3128"


@pytest.mark.parametrize(
    "host",
    [
        "printer", "localhost", "nas.local", "NAS.Local", "router.lan", "a.home.arpa", "x.internal", "nas.local.",
        "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.10", "127.0.0.1", "127.255.255.255", "169.254.169.254",
        "100.64.0.1", "0.0.0.0", "::1", "[::1]", "fd00::1", "fe80::1", "fe80::1%eth0", "fdff:ffff::", "::ffff:10.0.0.1",
    ],
)  # fmt: skip
def test_local_hosts_are_reached_directly(host: str) -> None:
    with pac_engine(proxy_pac(onboarding())) as find:
        assert find(f"http://{host}/", host) == "DIRECT"


@pytest.mark.parametrize(
    "host",
    [
        "example.com", "local.example.com", "notlocal.net", "mylocal.org", "internal.example", "10.example.net",
        "11.0.0.1", "172.32.0.1", "172.15.255.255", "192.169.0.1", "100.128.0.1", "128.0.0.1", "8.8.8.8", "256.1.1.1",
        "2001:db8::1", "[2001:db8::1]", "fec0::1", "fbff::1", "::2", "::ffff:8.8.8.8", "check.mptcp.internal",
        "Check.MPTCP.Internal.",
    ],
)  # fmt: skip
def test_other_hosts_use_the_proxy(host: str) -> None:
    with pac_engine(proxy_pac(onboarding())) as find:
        assert find(f"http://{host}/", host) == PROXY


def test_direct_fallback_is_optional_and_not_for_the_check_page() -> None:
    with pac_engine(proxy_pac(onboarding("direct_fallback: true"))) as find:
        assert find("https://example.com/", "example.com") == f"{PROXY}; DIRECT"
        assert find("http://check.mptcp.internal/", "check.mptcp.internal") == PROXY


def test_configured_exceptions_are_reached_directly() -> None:
    lines = 'direct: [203.0.113.0/24, "2001:db8:1::/48", "*.example.net", bank.example]'
    with pac_engine(proxy_pac(onboarding(lines))) as find:
        for host in ("203.0.113.9", "2001:db8:1:2::3", "example.net", "www.example.net", "bank.example"):
            assert find("http://x/", host) == "DIRECT", host
        for host in ("203.0.114.9", "2001:db8:2::3", "notexample.net", "example.net.org"):
            assert find("http://x/", host) == PROXY, host


def test_ipv6_address_of_the_proxy_is_in_brackets() -> None:
    base = 'proxy: {address: "fd00::1", port: 8080}\nonboarding:\n  listen: "[fd00::1]:3181"\n'
    with pac_engine(proxy_pac(onboarding(base=base))) as find:
        assert find("http://example.com/", "example.com") == "PROXY [fd00::1]:8080"


def test_script_looks_up_no_names() -> None:
    """dnsResolve, isResolvable, and isInNet with a name would delay the browser, and reveal names to a name server."""
    script = proxy_pac(onboarding())
    for function in ("dnsResolve", "isResolvable", "isInNet", "myIpAddress"):
        assert function not in script


def is_local(address: IPv4Address | IPv6Address) -> bool:
    unmapped = getattr(address, "ipv4_mapped", None) or address
    return any(unmapped in network for network in LOCAL_NETWORKS)


def test_script_agrees_with_python_about_local_addresses() -> None:
    with pac_engine(proxy_pac(onboarding())) as find:

        @given(
            st.one_of(st.ip_addresses(), st.sampled_from(LOCAL_NETWORKS).flatmap(lambda n: st.ip_addresses(network=n)))
        )
        def compare(address: IPv4Address | IPv6Address) -> None:
            assert find("http://x/", str(address)) == ("DIRECT" if is_local(address) else PROXY)

        compare()
        for network in LOCAL_NETWORKS:
            kind = type(network.network_address)
            for number in (int(network.network_address) - 1, int(network.broadcast_address) + 1):
                if 0 <= number < 1 << network.max_prefixlen:
                    address = kind(number)
                    assert find("http://x/", str(address)) == ("DIRECT" if is_local(address) else PROXY), address
