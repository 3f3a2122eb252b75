# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which the interface of a capped subflow goes down, is renamed, or is removed and created again.

The proxy has one interface per path: wan0 for Ethernet, which does not change, and wan1 for Wi-Fi, whose subflow has
the cap. Traffic over Ethernet must never stop, and when wan1 is up again, the cap must apply there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from faults import LONG_TIMEOUT, RARE_INTERVAL, Pulse, traffic
from flood import Flood, flood, incoming_rate
from throttler_site import Site, clients, connected, listening, running, until

from mptcp_common import status_client
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import ANSWER_TIMEOUT, Throttler, write_throttler_config
from mptcp_lab.testbed.topologies import MBIT, paths

pytestmark = pytest.mark.kernel

POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
rules:
  - name: spare-wifi
    paths: [wifi]
    throttle: {rate: 5 Mbit/s}
"""
TOPOLOGY = paths((20 * MBIT, 30 * MBIT), proxy_interfaces=True)
"""Ethernet is slower than the sender, so that there are always data for Wi-Fi."""
WIFI = "10.77.2.0/24"
CAPPED, TOLERANCE, MIN_RATE = 5_000_000, 1.5, 200_000
"""Cap and minimum rate in bit/s, and tolerance for the cap. The path carries 30 Mbit/s. A busy machine forwards in
bursts, and slowly."""
ROUTES = "ip address replace 10.77.18.2/24 dev wan1; ip route replace 10.77.2.0/24 via 10.77.18.1 dev wan1"
"""The kernel deletes this address and route with an interface. An administrator would restore them."""
IPPROTO_TCP = 6


@dataclass
class Scene:
    site: Site
    throttler: Throttler
    data: Flood
    """Data over both paths."""
    pulse: Pulse
    """Plain TCP traffic over Ethernet only."""

    def run(self, command: str) -> str:
        return self.site.proxy.run(["sh", "-c", command]).stdout

    def is_shaped(self, name: str = "wan1") -> bool:
        return "class htb 4d50:10 " in self.site.proxy.run(["tc", "class", "show", "dev", name], check=False).stdout

    def keeps_to_the_cap(self) -> bool:
        """Return whether Wi-Fi carries data, but not more than the cap allows."""
        rate = incoming_rate(self.site, WIFI, 1.0)
        print(f"Wi-Fi carries {rate / 1e6:.1f} Mbit/s")
        return MIN_RATE < rate < CAPPED * TOLERANCE and clients(self.site.entries()) == ["10.77.2.2"]

    def captures(self) -> dict[str, bool]:
        """Return by interface whether the throttler captures on it."""
        captures: dict[str, bool] = status_client.ask(self.throttler.socket, {"query": "summary"}, ANSWER_TIMEOUT)[
            "captures"
        ]
        return captures

    def check_ethernet_traffic(self) -> None:
        trips_before = self.pulse.round_trips
        self.data.wait_for_data()
        until(lambda: self.pulse.round_trips > trips_before + 10, timeout=LONG_TIMEOUT)


@pytest.fixture
def scene(make_testbed: Callable[..., Testbed], require: Any) -> Iterator[Scene]:
    require("htb", "nftables", "bpf-pacing")
    testbed = make_testbed(TOPOLOGY)
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    settings = {"netfilter": "nftables", "verify_interval": RARE_INTERVAL}
    config = write_throttler_config(testbed["proxy"], policy, interfaces=("wan0", "wan1"), settings=settings)
    site = Site(testbed, "nftables", policy, config)
    with ExitStack() as stack:
        throttler = stack.enter_context(running(site))
        listener = stack.enter_context(listening(site))
        plain_tcp = stack.enter_context(connected(site, listener, protocol=IPPROTO_TCP))
        scene = Scene(
            site, throttler, stack.enter_context(flood(site, listener)), stack.enter_context(traffic(plain_tcp))
        )
        until(scene.keeps_to_the_cap, timeout=LONG_TIMEOUT)
        assert scene.is_shaped()
        yield scene
        assert scene.is_shaped("wan0")
    qdiscs = site.proxy.run(["tc", "qdisc", "show"]).stdout
    assert "4d50" not in qdiscs, qdiscs


def test_cap_holds_after_the_interface_was_down(scene: Scene) -> None:
    scene.run("ip link set wan1 down")
    until(lambda: "capture on wan1" in scene.throttler.process.output(), timeout=LONG_TIMEOUT)
    assert scene.captures() == {"wan0": True, "wan1": False}
    scene.check_ethernet_traffic()
    scene.run(f"ip link set wan1 up; {ROUTES}")
    until(lambda: "capturing again on wan1" in scene.throttler.process.output(), timeout=LONG_TIMEOUT)
    assert scene.captures() == {"wan0": True, "wan1": True}
    until(scene.keeps_to_the_cap, timeout=LONG_TIMEOUT)
    scene.check_ethernet_traffic()


def test_cap_holds_while_the_interface_is_renamed_and_after(scene: Scene) -> None:
    scene.run(
        f"ip link set wan1 down; ip link set wan1 name wan9; ip link set wan9 up; {ROUTES.replace('wan1', 'wan9')}"
    )
    until(lambda: "which is called wan9 now" in scene.throttler.process.output(), timeout=LONG_TIMEOUT)
    scene.check_ethernet_traffic()
    assert scene.is_shaped("wan9"), "the renamed interface lost its caps"
    until(scene.keeps_to_the_cap, timeout=LONG_TIMEOUT)
    scene.run(f"ip link set wan9 down; ip link set wan9 name wan1; ip link set wan1 up; {ROUTES}")
    until(lambda: "capturing again on wan1" in scene.throttler.process.output(), timeout=LONG_TIMEOUT)
    until(scene.keeps_to_the_cap, timeout=LONG_TIMEOUT)
    scene.check_ethernet_traffic()


def test_cap_holds_after_the_interface_was_removed_and_created_again(scene: Scene) -> None:
    core = scene.site.testbed["core"]
    route = core.run(["ip", "route", "show", "table", "102"]).stdout.strip()
    assert "dev to-proxy1" in route
    scene.run("ip link del wan1")
    until(lambda: "there is no interface wan1" in scene.throttler.process.output(), timeout=LONG_TIMEOUT)
    scene.check_ethernet_traffic()
    scene.run(f"ip link add wan1 type veth peer name to-proxy1 netns {core.namespace}; ip link set wan1 up; {ROUTES}")
    restore = f"ip address add 10.77.18.1/24 dev to-proxy1; ip link set to-proxy1 up; ip route add {route} table 102"
    core.run(["sh", "-c", restore])
    until(scene.is_shaped, timeout=LONG_TIMEOUT)
    until(scene.keeps_to_the_cap, timeout=LONG_TIMEOUT)
    scene.check_ethernet_traffic()
