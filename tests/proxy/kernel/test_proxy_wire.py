# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of packets and counters: MPTCP to clients, plain TCP to origins, and the same bytes at both ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from proxying import (
    MPTCP_OPTION,
    captured_syns,
    count_connections,
    count_subflows,
    curl_command,
    fetch,
    mptcp_listeners,
    write_configuration,
)

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import PROXY_PORT, Origin, Proxy, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
FILE = "file.bin"
SIZE = 6_000_000


@dataclass(frozen=True)
class Scene:
    testbed: Testbed
    origin: Origin
    proxy: Proxy

    def fetch_and_count(self, family: int, *, mptcp: bool, tunnel: bool) -> dict[str, int]:
        """Download, check the bytes, and return the increase of the proxy's and the origin's MPTCP counters."""
        nodes = ("proxy", "origin")
        before = {name: self.testbed[name].mib() for name in nodes}
        url = self.origin.url(FILE, family=family, port=443 if tunnel else 80)
        # The download takes two seconds, because on a busy machine the second subflow joins late.
        limit = ["--limit-rate", "3M"]
        download = fetch(self.testbed["client"], url, self.proxy.url(family), mptcp=mptcp, tunnel=tunnel, options=limit)
        assert (download.status, download.size) == (200, SIZE)
        assert download.sha256 == self.origin.digests[FILE]
        return {
            f"{name}.{counter.removeprefix('MPTcpExt')}": self.testbed[name].mib()[counter] - before[name][counter]
            for name in nodes
            for counter in ("MPTcpExtMPCapableSYNRX", "MPTcpExtMPCapableSYNTX", "MPTcpExtMPJoinAckRx")
        }


@pytest.fixture(scope="module")
def scene(module_testbed: Testbed, require: Callable[..., None]) -> Scene:
    require("squid", "apache2", "curl", "mptcpize", "tcpdump", "gcc")
    origin = start_origin(module_testbed["origin"], {FILE: SIZE})
    # Each request opens a new connection to the origin, so that a SYN can be captured.
    node = module_testbed["proxy"]
    return Scene(
        module_testbed, origin, start_proxy(node, write_configuration(node, "server_persistent_connections off"))
    )


@pytest.mark.parametrize("tunnel", [False, True], ids=["GET", "CONNECT"])
@pytest.mark.parametrize("family", [4, 6])
def test_proxy_uses_mptcp_to_clients_and_plain_tcp_to_origins(scene: Scene, family: int, tunnel: bool) -> None:
    counted = scene.fetch_and_count(family, mptcp=True, tunnel=tunnel)

    assert counted["proxy.MPCapableSYNRX"] == 1
    assert counted["proxy.MPJoinAckRx"] >= 1
    assert counted["proxy.MPCapableSYNTX"] == 0
    assert counted["origin.MPCapableSYNRX"] == 0


@pytest.mark.parametrize("tunnel", [False, True], ids=["GET", "CONNECT"])
@pytest.mark.parametrize("family", [4, 6])
def test_client_without_mptcp_is_served_over_tcp(scene: Scene, family: int, tunnel: bool) -> None:
    assert set(scene.fetch_and_count(family, mptcp=False, tunnel=tunnel).values()) == {0}


@pytest.mark.parametrize("family", [4, 6])
def test_client_has_two_subflows(scene: Scene, family: int) -> None:
    client = scene.testbed["client"]
    # The download would take two minutes; the test ends it as soon as both subflows exist.
    slow = ["--limit-rate", "50K", "-o", "/dev/null"]
    command = curl_command(
        scene.origin.url(FILE, family=family), scene.proxy.url(family), mptcp=True, tunnel=False, options=slow
    )
    download = client.popen(command, name="curl")
    wait_until(
        lambda: count_connections(client, PROXY_PORT) == 1 and count_subflows(client, PROXY_PORT) >= 2,
        "one MPTCP connection with at least two subflows",
        process=download,
    )
    download.kill_tree()


def test_one_listener_accepts_both_families(scene: Scene) -> None:
    assert mptcp_listeners(scene.testbed["proxy"]) == {f"*:{PROXY_PORT}"}


def test_syns_to_the_origin_have_no_mptcp_option(scene: Scene) -> None:
    testbed = scene.testbed
    origin, proxy = testbed["origin"], testbed["proxy"]
    # The clients open four connections, and the proxy opens four to the origin, through the same device.
    with captured_syns(origin, "eth0", 8) as to_origin, captured_syns(proxy, "wan0", 16) as at_proxy:
        for family in (4, 6):
            scene.fetch_and_count(family, mptcp=True, tunnel=False)
            scene.fetch_and_count(family, mptcp=True, tunnel=True)

    assert sorted(port for port, _ in to_origin) == [80, 80, 443, 443]
    assert not any(MPTCP_OPTION in kinds for _, kinds in to_origin)
    # The capture on the client's side contains the option in each SYN.
    from_client = [kinds for port, kinds in at_proxy if port == PROXY_PORT]
    assert len(from_client) >= 4
    assert all(MPTCP_OPTION in kinds for kinds in from_client)
