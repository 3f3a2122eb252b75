# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the requests that the shipped conf/squid.conf refuses, by target and by client."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from listening_socket import serving
from proxying import fetch

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Origin, Proxy, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
REFUSED = 403
# Documentation addresses, which are unassigned and not private (RFC 5737 and RFC 3849).
PUBLIC = {4: "203.0.113.5", 6: "2001:db8::5"}


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, require: Callable[..., None]) -> Proxy:
    require("squid", "apache2", "curl", "gcc")
    return start_proxy(module_testbed["proxy"])


@pytest.fixture(scope="module")
def origin(module_testbed: Testbed) -> Origin:
    return start_origin(module_testbed["origin"], {"file.bin": 1000}, ports=(80, 443, 8443))


def test_allowed_requests_succeed(module_testbed: Testbed, proxy: Proxy, origin: Origin) -> None:
    """Without requests that succeed, the refusals in the other tests would prove nothing."""
    client = module_testbed["client"]
    for family in (4, 6):
        assert fetch(client, origin.url("file.bin", family=family), proxy.url()).status == 200
        assert fetch(client, origin.url("file.bin", family=family, port=8443), proxy.url()).status == 200
        tunnelled = origin.url("file.bin", family=family, port=443)
        assert fetch(client, tunnelled, proxy.url(), tunnel=True).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "127.255.255.254",
        "2130706433",
        "0x7f000001",
        "localhost",
        "0",
        "0.0.0.0",
        "0.1.2.3",
        "[::]",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::ffff:0.0.0.0]",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "[fd20:ce::254]",
        "100.100.100.200",
        "[::ffff:100.100.100.200]",
        "168.63.129.16",
        "[::ffff:168.63.129.16]",
        "192.0.0.192",
        "10.77.8.2",
        "[::ffff:10.77.8.2]",
        "[fd77:8::2]",
        "10.77.8.2:3128",
        "10.77.8.2:3128/squid-internal-mgr/info#",
    ],
)
def test_loopback_link_local_and_own_addresses_are_refused(module_testbed: Testbed, proxy: Proxy, host: str) -> None:
    assert fetch(module_testbed["client"], f"http://{host}/", proxy.url()).status == REFUSED


@pytest.mark.parametrize(
    "target",
    [
        "10.77.9.2:22",
        "10.77.9.2:80",
        "10.77.9.2:8443",
        "[fd77:9::2]:8443",
        "127.0.0.1:443",
        "[::1]:443",
        "[::ffff:127.0.0.1]:443",
        "169.254.169.254:443",
        "168.63.129.16:443",
        "10.77.8.2:443",
        "[fd77:8::2]:443",
    ],
)
def test_tunnels_to_other_ports_and_forbidden_addresses_are_refused(
    module_testbed: Testbed, proxy: Proxy, origin: Origin, target: str
) -> None:
    assert fetch(module_testbed["client"], f"http://{target}/", proxy.url(), tunnel=True).status == REFUSED


def test_ports_of_other_services_are_refused(module_testbed: Testbed, proxy: Proxy) -> None:
    assert fetch(module_testbed["client"], "http://10.77.9.2:25/", proxy.url()).status == REFUSED


@pytest.mark.parametrize("family", [4, 6])
def test_clients_with_public_addresses_are_refused(
    module_testbed: Testbed, proxy: Proxy, origin: Origin, family: int
) -> None:
    client, core = module_testbed["client"], module_testbed["core"]
    address, ip = PUBLIC[family], ["ip", f"-{family}"]
    nodad = ["nodad"] if family == 6 else []
    return_route = [address, "via", client.address("eth0", family), "dev", "to-eth0"]
    with (
        client.changed(
            [*ip, "addr", "add", address, "dev", "eth0", *nodad], [*ip, "addr", "del", address, "dev", "eth0"]
        ),
        core.changed([*ip, "route", "add", *return_route], [*ip, "route", "del", *return_route]),
    ):
        url, proxy_url = origin.url("file.bin", family=family), proxy.url(family)
        assert fetch(client, url, proxy_url, options=["--interface", address]).status == REFUSED
        own = client.address("eth0", family)
        assert fetch(client, url, proxy_url, options=["--interface", own]).status == 200


def test_address_added_later_is_refused(module_testbed: Testbed, proxy: Proxy, origin: Origin) -> None:
    """The address belongs to the origin, so requests for it succeed before it is added and after it is removed."""
    client, node = module_testbed["client"], module_testbed["proxy"]
    address = [f"{origin.host.address('eth0')}/32", "dev", "lo"]

    def wait_for_status(status: int) -> None:
        wait_until(
            lambda: fetch(client, origin.url("file.bin"), proxy.url()).status == status,
            f"requests for the address are answered with {status}",
            process=proxy.process,
        )

    assert fetch(client, origin.url("file.bin"), proxy.url()).status == 200
    with node.changed(["ip", "addr", "add", *address], ["ip", "addr", "del", *address]):
        wait_for_status(REFUSED)
    wait_for_status(200)


@pytest.mark.nightly
def test_prefix_routed_to_this_host_later_is_refused(module_testbed: Testbed, proxy: Proxy) -> None:
    client, node = module_testbed["client"], module_testbed["proxy"]
    for prefix, host in (("10.99.0.0/24", "10.99.0.1"), ("fd99::/64", "[fd99::1]")):
        route = ["local", prefix, "dev", "lo"]

        def is_refused(url: str = f"http://{host}:8081/") -> bool:
            return fetch(client, url, proxy.url()).status == REFUSED

        assert not is_refused()
        with node.changed(["ip", "route", "add", *route], ["ip", "route", "del", *route]):
            wait_until(is_refused, f"requests for {prefix} are refused", process=proxy.process)


def test_request_to_the_origin_does_not_reveal_the_client(module_testbed: Testbed, proxy: Proxy) -> None:
    """The origin of this test returns the request as it arrived."""
    node = module_testbed["origin"]
    with node.entered():
        listener = socket.create_server(("", 8080))
    requests: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        connection.settimeout(60)
        requests.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

    claimed_address = ["-H", "X-Forwarded-For: 192.0.2.9"]
    with serving(listener, answer):
        download = fetch(module_testbed["client"], "http://10.77.9.2:8080/", proxy.url(), options=claimed_address)

    assert download.status == 204
    text = requests[0].decode().lower()
    assert "via: 1.1 mptcpproxy (squid)\r\n" in text
    assert "forwarded" not in text
    assert "10.77.1.2" not in text
    version = node.run(["squid", "-v"]).stdout.split("Version ")[1].split()[0]
    assert version not in text
