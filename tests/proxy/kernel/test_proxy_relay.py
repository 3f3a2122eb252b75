"""A relay at home: clients by plain TCP, its parents by Multipath TCP over two uplinks, nobody else by either."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from proxying import fetch, mptcp_listeners
from relaying import FILES, Chain, chain

from mptcp_lab.testbed import RELAY, Testbed

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def _needs(require: Callable[..., None]) -> None:
    require("squid", "apache2", "curl", "gcc")


@pytest.fixture(scope="module")
def relayed(make_module_testbed: Callable[..., Testbed], require: Callable[..., None]) -> Chain:
    require("squid", "apache2", "curl", "gcc", "openssl")
    return chain(make_module_testbed(RELAY), tls_port=444)


@pytest.mark.parametrize("tunnel", [False, True], ids=["HTTP", "CONNECT"])
def test_a_download_of_a_plain_client_takes_both_uplinks(relayed: Chain, tunnel: bool) -> None:
    before = relayed.testbed["proxy"].mib()
    url = relayed.origin.url("large.bin", port=443 if tunnel else 80)
    with relayed.received() as octets:
        got = fetch(relayed.client, url, relayed.relay.url(), tunnel=tunnel)
    assert (got.status, got.sha256) == (200, relayed.origin.digests["large.bin"])
    assert min(octets.values()) > FILES["large.bin"] / 10, octets
    assert relayed.testbed["proxy"].mib()["MPTcpExtMPJoinAckRx"] > before["MPTcpExtMPJoinAckRx"]
    # The client's own connection is none of Multipath TCP.
    assert mptcp_listeners(relayed.node) == set()
