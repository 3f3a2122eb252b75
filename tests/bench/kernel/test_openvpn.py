"""OpenVPN of the laboratory: over UDP, over Multipath TCP, and through the proxy by CONNECT."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.openvpn import OpenVpn, over_tcp, over_udp
from mptcp_lab.testbed.services import PROXY_PORT, Origin, start_origin, start_proxy
from mptcp_lab.testbed.transfer import Added

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


def test_over_udp_it_takes_the_path_of_its_address(module_testbed: Testbed, origin: Origin) -> None:
    before = module_testbed["client"].counters()
    with udp(module_testbed) as pair:
        assert brought(module_testbed, pair) == SIZE
    after = module_testbed["client"].counters()
    assert after["wlan0"].received - before["wlan0"].received > SIZE
    assert after["eth0"].received - before["eth0"].received < SIZE / 10


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
