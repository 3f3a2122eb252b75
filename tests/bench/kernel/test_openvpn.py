# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the laboratory's OpenVPN: over UDP, over Multipath TCP, by CONNECT through the proxy, over our tunnel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from mptcp_bench.experiments.tunnel_parts import STREAM_PORT, received, receiving
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.openvpn import OpenVpn, over_tcp, over_udp
from mptcp_lab.testbed.services import PROXY_PORT, Origin, start_origin, start_proxy, wait_until
from mptcp_lab.testbed.transfer import Added
from mptcp_lab.testbed.tunnel import PORT, tunnel

pytestmark = pytest.mark.kernel
SIZE = 200_000


@pytest.fixture(scope="module")
def origin(module_testbed: Testbed, require: Callable[..., None]) -> Origin:
    require("openvpn", "apache2", "curl", "mptcpize", "openssl")
    return start_origin(module_testbed["origin"], {"file": SIZE}, ports=(80,))


def brought(testbed: Testbed, pair: OpenVpn) -> int:
    """Return the octets of a download through *pair*."""
    argv = ["curl", "-sS", "-m", "30", "-o", "/dev/null", "-w", "%{size_download}"]
    return int(testbed["client"].run([*argv, f"http://{pair.server_address}/file"], timeout=40).stdout)


def udp(testbed: Testbed) -> AbstractContextManager[OpenVpn]:
    client, server = testbed["client"], testbed["origin"]
    return over_udp(client, server, server.service_address(), number=1, local=client.address("wlan0"))


@pytest.mark.nightly
def test_over_udp_it_takes_the_path_of_its_address(module_testbed: Testbed, origin: Origin) -> None:
    before = module_testbed["client"].counters()
    with udp(module_testbed) as pair:
        assert brought(module_testbed, pair) == SIZE
    after = module_testbed["client"].counters()
    assert after["wlan0"].received - before["wlan0"].received > SIZE
    assert after["eth0"].received - before["eth0"].received < SIZE / 10


@pytest.mark.nightly  # tests/throttler/kernel/test_vpn_live.py tests both in the gate
@pytest.mark.parametrize("by_proxy", [False, True])
def test_over_tcp_it_is_multipath(module_testbed: Testbed, origin: Origin, by_proxy: bool) -> None:
    client, server = module_testbed["client"], module_testbed["origin"]
    proxy = None
    if by_proxy:
        start_proxy(module_testbed["proxy"])
        proxy = module_testbed["proxy"].service_address(), PROXY_PORT
    added = Added(client)
    number = 2 + by_proxy
    with over_tcp(client, server, server.service_address(), number=number, proxy=proxy) as pair:
        assert brought(module_testbed, pair) == SIZE
    assert added.read()[0].get("MPTcpExtMPJoinSynAckRx", 0) >= 1


@pytest.mark.nightly
def test_over_the_tunnel_a_stream_goes_by_both_paths(module_testbed: Testbed, require: Callable[..., None]) -> None:
    require("openvpn", "openssl")
    client, server = module_testbed["client"], module_testbed["origin"]
    result = client.directory / "stream.json"
    over = {"a": "eth0", "b": "wlan0"}
    address = server.service_address()
    with (
        tunnel(client, server, over, uplink="eth0") as both,
        over_udp(client, server, address, number=4, port=PORT) as pair,
    ):
        with receiving(client, pair.client_address, result):
            # The data is more than one path may carry at first.
            argv = server.agent("stream", "send", pair.client_address, str(STREAM_PORT), "3000", "1000", "1")
            server.run(argv)
            wait_until(lambda: sum(path["packets_received"] for path in both.relay.paths()) > 2000, "it comes")
        assert all(path["packets_received"] > 50 for path in both.relay.paths())
    came = received(result)
    assert len({number for number, _, _ in came}) >= 2000
    assert all(0 < arrived - sent < 10**9 for _, sent, arrived in came)
