# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for topologies as data: which ones are refused, and the commands for the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mptcp_lab.testbed import (
    RELAY,
    TWO_PATHS,
    End,
    Endpoint,
    Limits,
    Link,
    Node,
    Route,
    Topology,
    TopologyError,
    paths,
)
from mptcp_lab.testbed.plan import steps, tbf

NAMES = {name: f"mpx-0-{name}" for name in ("client", "core", "proxy", "origin", "a", "b")}
A, B = Node("a"), Node("b")


def commands(topology: Topology, node: str) -> list[str]:
    return [" ".join(step.argv) for step in steps(topology, NAMES) if step.node == node]


def test_plan_of_a_client_with_two_paths_is_in_commands_of_iproute2() -> None:
    assert commands(TWO_PATHS, "client")[1:] == [
        "ip link set lo up",
        "ip link add eth0 index 1001 mtu 1500 type veth peer name to-eth0 mtu 1500 netns mpx-0-core",
        "ethtool -K eth0 tso off gso off gro off",
        "ip address add 10.77.1.2/24 dev eth0",
        "ip address add fd77:1::2/64 dev eth0 nodad",
        "ip link set eth0 up",
        "tc qdisc add dev eth0 root tbf rate 100000000bit burst 25000 limit 650000",
        "ip link add wlan0 index 1002 mtu 1500 type veth peer name to-wlan0 mtu 1500 netns mpx-0-core",
        "ethtool -K wlan0 tso off gso off gro off",
        "ip address add 10.77.2.2/24 dev wlan0",
        "ip address add fd77:2::2/64 dev wlan0 nodad",
        "ip link set wlan0 up",
        "tc qdisc add dev wlan0 root tbf rate 30000000bit burst 7500 limit 195000",
        "ip -4 route add default via 10.77.1.1 dev eth0 metric 100",
        "ip -4 route add default via 10.77.1.1 dev eth0 table 101",
        "ip -6 route add default via fd77:1::1 dev eth0 metric 100",
        "ip -6 route add default via fd77:1::1 dev eth0 table 101",
        "ip -4 route add default via 10.77.2.1 dev wlan0 metric 200",
        "ip -4 route add default via 10.77.2.1 dev wlan0 table 102",
        "ip -6 route add default via fd77:2::1 dev wlan0 metric 200",
        "ip -6 route add default via fd77:2::1 dev wlan0 table 102",
        "ip -4 rule add from 10.77.1.2 table 101",
        "ip -6 rule add from fd77:1::2 table 101",
        "ip -4 rule add from 10.77.2.2 table 102",
        "ip -6 rule add from fd77:2::2 table 102",
        "ip mptcp limits set subflow 8 add_addr_accepted 8",
        "ip mptcp endpoint add 10.77.1.2 dev eth0 id 2 subflow",
        "ip mptcp endpoint add fd77:1::2 dev eth0 id 3 subflow",
        "ip mptcp endpoint add 10.77.2.2 dev wlan0 id 4 subflow",
        "ip mptcp endpoint add fd77:2::2 dev wlan0 id 5 subflow",
    ]


def test_multi_homed_proxy_has_each_path_on_its_own_interface() -> None:
    topology = paths([1_000_000, 1_000_000, 1_000_000], proxy_interfaces=True)
    assert topology.devices("proxy") == ("wan0", "wan1", "wan2")
    proxy, core = commands(topology, "proxy"), commands(topology, "core")
    assert "ip -4 route add 10.77.3.0/24 via 10.77.19.1 dev wan2" in proxy
    assert "ip -6 rule add iif to-path3 table 103" in core
    assert "ip -6 route add fd77:8::2 via fd77:19::2 dev to-proxy2 table 103" in core


def test_relay_has_the_paths_and_its_client_has_the_relay() -> None:
    assert RELAY.devices("relay") == ("lan0", "eth0", "wlan0")
    assert RELAY.devices("client") == ("eth0",)
    assert RELAY.end("relay", "lan0").address(4) == "10.77.48.1"
    names = {node.name: f"mpx-0-{node.name}" for node in RELAY.nodes}
    said = [" ".join(step.argv) for step in steps(RELAY, names) if step.node == "client"]
    assert "ip -4 route add default via 10.77.48.1 dev eth0" in said
    assert not any("endpoint" in each for each in said)
    uplinks = [" ".join(step.argv) for step in steps(RELAY, names) if step.node == "relay"]
    assert "ip mptcp endpoint add 10.77.2.2 dev wlan0 id 4 subflow" in uplinks
    # The relay forwards nothing except through Squid.
    assert not any("forward" in each for each in uplinks)
    assert RELAY.end("proxy2", "wan0").address(6) == "fd77:11::2"


@pytest.mark.parametrize("rate", [8_000, 1_000_000, 30_000_000, 100_000_000, 10_000_000_000])
def test_shaper_passes_a_full_frame(rate: int) -> None:
    words = tbf(rate, queue_ms=30)
    burst, limit = int(words[words.index("burst") + 1]), int(words[words.index("limit") + 1])
    assert burst >= 1514
    assert limit >= burst + 10 * 1514


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": (A, A, B)}, "two nodes are called 'a'"),
        ({"nodes": (Node("a b"), B)}, "letters and digits"),
        ({"links": (Link(End("a", "x"), End("c", "y")),)}, "c:y: no such node; there are a, b"),
        ({"links": (Link(End("a", "x"), End("b", "y")),) * 2}, "a:x: two links end in this device"),
        ({"links": (Link(End("a", "x" * 16), End("b", "y")),)}, "1 to 15 characters"),
        ({"links": (Link(End("a", "x"), End("b", "y"), rate=5),)}, "rate 5 bit/s: at least 8000"),
        ({"nodes": (replace(A, routes=(Route("default", "10.0.0.1", "z"),)), B)}, "no device 'z'"),
        ({"nodes": (replace(A, endpoints=(Endpoint("10.0.0.1", "z", 1),)), B)}, "no device 'z'"),
        ({"nodes": (replace(A, limits=Limits(9, 0)), B)}, "MPTCP limit 9: 0 to 8"),
    ],
)
def test_wrong_topology_is_refused_before_it_is_built(change: dict[str, object], said: str) -> None:
    right: dict[str, object] = {"nodes": (A, B), "links": (Link(End("a", "x"), End("b", "y")),)}
    Topology("right", **right)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match=said):
        Topology("wrong", **{**right, **change})  # type: ignore[arg-type]
