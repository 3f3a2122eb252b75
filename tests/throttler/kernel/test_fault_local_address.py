# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which a local address of the proxy is removed and restored while a capped subflow uses it.

The proxy announces a second address (ADD_ADDR, RFC 8684, 3.4.1), and the client joins it from Ethernet. Ethernet has
the cap, and now has two subflows, one to each address. If the announcing endpoint is removed with the address, the
kernel closes the subflow to this address, and the client joins again when both are restored. If only the address is
removed, the subflow stalls until the address is restored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from faults import LONG_TIMEOUT, RARE_INTERVAL, Pulse, traffic
from flood import Flood, flood, incoming_rate
from throttler_site import POLICY, Site, connected, listening, read_status, running, until

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Throttler, write_throttler_config

pytestmark = pytest.mark.kernel

SECOND_ADDRESS, ETHERNET, WIFI = "10.77.8.20", "10.77.1.0/24", "10.77.2.0/24"
CAPPED, TOLERANCE, MIN_RATE = 5_000_000, 1.5, 200_000
"""Cap and minimum rate in bit/s, and tolerance for the cap. The paths carry 100 and 30 Mbit/s. A busy machine forwards
in bursts, and slowly."""
IPPROTO_TCP = 6
ADDRESS = f"ip address {{}} {SECOND_ADDRESS}/24 dev wan0"
ENDPOINT = {"add": f"ip mptcp endpoint add {SECOND_ADDRESS} id 9 signal", "del": "ip mptcp endpoint delete id 9"}


@dataclass
class Scene:
    site: Site
    throttler: Throttler
    data: Flood
    """Data over all paths."""
    pulse: Pulse
    """Traffic over Ethernet to the first address. It is plain TCP, so no cap applies."""

    def run(self, command: str) -> None:
        self.site.proxy.run(["sh", "-c", command])

    def subflows(self) -> dict[str, str]:
        """Map the client's end of each capped Ethernet subflow to the proxy's address, according to the status."""
        connections = read_status(self.throttler.socket)["connections"]
        ethernet = [each for connection in connections for each in connection["subflows"] if each["path"] == "ethernet"]
        capped = [each for each in ethernet if each["rate"] == CAPPED]
        ends = ((each["remote"].rpartition(":"), each["local"]) for each in capped)
        return {f"{address} {port}": local.rpartition(":")[0] for (address, _, port), local in ends}

    def sockets(self) -> dict[str, str]:
        """Return the same map according to the kernel."""
        listed = self.site.proxy.run(["ss", "-HOtn", "state", "established", "dst", ETHERNET]).stdout
        found = {}
        for line in listed.splitlines():
            if "tcp-ulp-mptcp" not in self.socket_details(line):
                continue
            local, remote = (word.replace("[::ffff:", "").replace("]", "") for word in line.split()[2:4])
            address, _, port = remote.rpartition(":")
            found[f"{address} {port}"] = local.rpartition(":")[0]
        return found

    def socket_details(self, line: str) -> str:
        local, remote = line.split()[2:4]
        return self.site.proxy.run(["ss", "-HOtni", "src", local, "dst", remote]).stdout

    def is_correct(self, subflows: int) -> bool:
        """Return whether Ethernet has *subflows* subflows.

        All must be capped according to kernel and status, and their rate must be within the cap.
        """
        found = self.subflows()
        if len(found) != subflows or found != self.sockets() or found.keys() != self.site.entries().keys():
            return False
        rate = incoming_rate(self.site, ETHERNET, 1.0)
        print(f"Ethernet carries {rate / 1e6:.1f} Mbit/s over {subflows} subflows")
        return MIN_RATE < rate < CAPPED * TOLERANCE

    def received_bytes(self) -> int:
        """Return the number of bytes that the client received from the second address."""
        output = self.site.client.run(["ss", "-HOtni", "dst", SECOND_ADDRESS]).stdout
        return sum(int(each) for each in re.findall(r"bytes_received:(\d+)", output))

    def check_other_traffic(self) -> None:
        """Check that traffic over the other path and the plain TCP traffic continue."""
        trips_before = self.pulse.round_trips
        self.data.wait_for_data()
        until(lambda: incoming_rate(self.site, WIFI, 1.0) > MIN_RATE, timeout=LONG_TIMEOUT)
        until(lambda: self.pulse.round_trips > trips_before + 10, timeout=LONG_TIMEOUT)


@pytest.fixture
def scene(make_testbed: Callable[..., Testbed], require: Any) -> Iterator[Scene]:
    require("htb", "nftables", "bpf-pacing", "mptcp-pm")
    testbed = make_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    config = write_throttler_config(
        testbed["proxy"], policy, settings={"netfilter": "nftables", "verify_interval": RARE_INTERVAL}
    )
    site = Site(testbed, "nftables", policy, config)
    site.proxy.run(["sh", "-c", f"{ADDRESS.format('add')} && {ENDPOINT['add']}"])
    before = site.state()
    with ExitStack() as stack:
        throttler = stack.enter_context(running(site))
        listener = stack.enter_context(listening(site))
        plain_tcp = stack.enter_context(connected(site, listener, protocol=IPPROTO_TCP))
        scene = Scene(
            site, throttler, stack.enter_context(flood(site, listener)), stack.enter_context(traffic(plain_tcp))
        )
        until(lambda: scene.is_correct(2), timeout=LONG_TIMEOUT)
        assert set(scene.subflows().values()) == {site.proxy.address("wan0"), SECOND_ADDRESS}
        yield scene
        assert "ERROR" not in throttler.process.output()
    site.assert_nothing_left(before)


def test_subflow_stalls_if_only_its_address_is_removed(scene: Scene) -> None:
    scene.run(ADDRESS.format("del"))
    scene.check_other_traffic()
    # The kernel keeps the subflow, which may continue at any time. The throttler must therefore keep its cap.
    until(lambda: scene.is_correct(2), timeout=LONG_TIMEOUT)
    received_before = scene.received_bytes()
    scene.check_other_traffic()
    assert scene.received_bytes() == received_before
    scene.run(ADDRESS.format("add"))
    until(lambda: scene.received_bytes() > received_before + 100_000, timeout=2 * LONG_TIMEOUT)
    until(lambda: scene.is_correct(2), timeout=LONG_TIMEOUT)
    scene.check_other_traffic()


@pytest.mark.nightly
def test_subflow_closes_if_its_address_and_endpoint_are_removed(scene: Scene) -> None:
    former_subflows = {end for end, local in scene.subflows().items() if local == SECOND_ADDRESS}
    scene.run(f"{ENDPOINT['del']}; {ADDRESS.format('del')}")
    scene.check_other_traffic()
    until(lambda: scene.is_correct(1), timeout=LONG_TIMEOUT)
    assert set(scene.subflows().values()) == {scene.site.proxy.address("wan0")}
    scene.run(f"{ADDRESS.format('add')}; {ENDPOINT['add']}")
    until(lambda: scene.is_correct(2), timeout=LONG_TIMEOUT)
    # The client joined with a new subflow, which has a cap like the one before.
    assert former_subflows.isdisjoint(end for end, local in scene.subflows().items() if local == SECOND_ADDRESS)
    until(lambda: scene.received_bytes() > 100_000, timeout=LONG_TIMEOUT)
    scene.check_other_traffic()
