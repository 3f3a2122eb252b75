# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for emulated paths as data: arguments of tc(8) and of the emulator, and firewalls that queue packets to it."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from mptcp_lab.emulation import userspace
from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, PathError, UniformLoss, seed_of
from mptcp_lab.testbed import Topology, paths
from mptcp_lab.testbed.model import Hop
from mptcp_lab.testbed.plan import steps

MBIT = 1_000_000
ETHERNET = EmulatedPath("ethernet", Direction(100 * MBIT, 1_000), Direction(100 * MBIT, 1_000))
WIFI = EmulatedPath(
    "wifi",
    down=Direction(20 * MBIT, 8_000, 2_000, GilbertElliott(0.01, 0.3, 0.7, 0.001)),
    up=Direction(10 * MBIT, loss=UniformLoss(0.005), queue_ms=100),
)
NAMES = {name: name for name in ("client", "core", "proxy", "origin", "hop1", "hop2")}


def commands(topology: Topology, node: str, *, netem: bool = False, seed: int | None = None) -> list[str]:
    return [" ".join(step.argv) for step in steps(topology, NAMES, netem=netem, seed=seed) if step.node == node]


def qdiscs(topology: Topology, node: str, *, netem: bool = False, seed: int | None = None) -> list[str]:
    return [c for c in commands(topology, node, netem=netem, seed=seed) if c.startswith("tc ")]


def test_plan_shapes_only_at_the_hop_without_netem() -> None:
    topology = paths((ETHERNET, WIFI))
    assert qdiscs(topology, "hop2") == [
        "tc qdisc add dev lan root tbf rate 20000000bit burst 5000 limit 130000",
        "tc qdisc add dev wan root tbf rate 10000000bit burst 3028 limit 128028",
    ]
    assert [node for node in ("client", "core", "proxy", "origin") if qdiscs(topology, node)] == []


def test_plan_puts_the_rate_below_delay_and_loss_with_netem() -> None:
    assert qdiscs(paths((ETHERNET, WIFI)), "hop2", netem=True) == [
        "tc qdisc add dev lan root handle 1: netem limit 65536 delay 8000us 2000us "
        "loss gemodel 1% 30% 70% 0.1% rate 100gbit",
        "tc qdisc add dev lan parent 1:1 handle 10: tbf rate 20000000bit burst 5000 limit 130000",
        "tc qdisc add dev wan root handle 1: netem limit 65536 loss random 0.5%",
        "tc qdisc add dev wan parent 1:1 handle 10: tbf rate 10000000bit burst 3028 limit 128028",
    ]


def test_each_direction_of_each_path_has_its_own_seed() -> None:
    topology = paths((ETHERNET, WIFI))
    seeds = [
        c.split(" seed ")[1] for n in ("hop1", "hop2") for c in qdiscs(topology, n, netem=True, seed=5) if "netem" in c
    ]
    assert seeds == [str(seed_of(5, path, direction)) for path in ("ethernet", "wifi") for direction in ("down", "up")]
    assert len(set(seeds)) == 4


def test_emulated_path_has_its_own_router() -> None:
    topology = paths((ETHERNET, 30 * MBIT, WIFI), proxy_interfaces=True)
    assert topology.hops == (Hop("hop1", ETHERNET, "eth0"), Hop("hop3", WIFI, "path3"))
    assert topology.end("hop1", "lan").address(4) == "10.77.1.1"
    assert topology.end("core", "to-wlan0").address(4) == "10.77.2.1"
    core = [" ".join(s.argv) for s in steps(topology, {**NAMES, "hop3": "hop3"}) if s.node == "core"]
    assert "ip -4 route add 10.77.1.0/24 via 10.77.33.2 dev to-eth0" in core
    assert "ip -6 route add fd77:3::/64 via fd77:35::2 dev to-path3" in core
    assert "ip -6 rule add iif to-path3 table 103" in core
    hop = [" ".join(s.argv) for s in steps(topology, {**NAMES, "hop3": "hop3"}) if s.node == "hop3"]
    assert "ip -4 route add default via 10.77.35.1 dev wan" in hop
    assert any("net.ipv4.ip_forward=1" in c and "net.ipv6.conf.all.forwarding=1" in c for c in hop)


def test_mtu_of_a_direction_is_that_of_its_sender() -> None:
    small = Direction(mtu=1000)
    both, down, up = (
        paths((EmulatedPath("p", d, u),)) for d, u in ((small, small), (small, Direction()), (Direction(), small))
    )
    assert "ip link add eth0 index 1001 mtu 1000 type veth peer name lan mtu 1000 netns hop1" in commands(
        both, "client"
    )
    assert not [c for c in commands(both, "client") + commands(both, "hop1") if "route" in c and "mtu" in c]
    for topology in (down, up):
        assert any(
            "eth0 index 1001 mtu 1500 type veth peer name lan mtu 1500" in c for c in commands(topology, "client")
        )
    assert "ip -4 route add 10.77.1.2/32 via 10.77.1.2 dev lan mtu 1000" in commands(down, "hop1")
    assert "ip -6 route add fd77:1::2/128 via fd77:1::2 dev lan mtu 1000" in commands(down, "hop1")
    assert "ip -4 route add default via 10.77.1.1 dev eth0 table 101 mtu 1000" in commands(up, "client")
    assert not [c for c in commands(down, "client") if "route" in c and "mtu" in c]


def test_emulator_is_given_loss_before_delay() -> None:
    words = userspace.arguments(WIFI, seed=4)
    seeds = [str(seed_of(4, "wifi", *names)) for names in (("down", "loss"), ("down", "delay"), ("up", "loss"))]
    assert words == (
        *("queue", "0", "gemodel", "0.01", "0.3", "0.7", "0.001", seeds[0], "delay", "8000", "2000", seeds[1]),
        *("queue", "1", "random", "0.005", seeds[2]),
    )


def test_rules_queue_packets_by_the_device_they_leave_by() -> None:
    nftables, legacy, iptables = userspace.rules({"down": "lan", "up": "wan"})
    assert nftables.do == (
        (
            "nft",
            "table inet emulation { chain forward { type filter hook forward priority filter; "
            'oifname "lan" queue num 0; oifname "wan" queue num 1; }; }',
        ),
    )
    assert [" ".join(command) for command in legacy.do] == [
        "iptables-legacy --wait -A FORWARD -o lan -j NFQUEUE --queue-num 0",
        "iptables-legacy --wait -A FORWARD -o wan -j NFQUEUE --queue-num 1",
        "ip6tables-legacy --wait -A FORWARD -o lan -j NFQUEUE --queue-num 0",
        "ip6tables-legacy --wait -A FORWARD -o wan -j NFQUEUE --queue-num 1",
    ]
    assert len(iptables.do) == 4
    assert userspace.rules({"up": "wan"})[2].do[0][:4] == ("iptables", "--wait", "-A", "FORWARD")
    assert userspace.rules({"up": "wan"})[2].do[0][-1] == "1"


def test_counts_include_what_the_kernel_dropped() -> None:
    kernel = "    0  12345   17 1     0     3     4      999  1\n    1  12345    0 1     0     0     0       42  1\n"
    counts = userspace.counts(WIFI, struct.pack("=10Q", 10, 2, 8, 1, 5, 20, 0, 20, 0, 0), kernel)
    assert counts == {"down": userspace.Counts(10, 2, 8, 1, 5 + 3 + 4), "up": userspace.Counts(20, 0, 20, 0, 0)}
    only_up = userspace.counts(replace(WIFI, down=Direction()), struct.pack("=5Q", 20, 0, 20, 0, 0), kernel)
    assert list(only_up) == ["up"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Direction(rate=7_999), "rate 7999 bit/s: at least 8000"),
        (lambda: Direction(delay=-1), "delay -1 µs: 0 to 10 seconds"),
        (lambda: Direction(delay=100, jitter=101), "jitter 101 µs: 0 to the delay, 100"),
        (lambda: Direction(mtu=575), "mtu 575: 576 to 9000"),
        (lambda: UniformLoss(1.5), "loss 1.5: a probability is 0 to 1"),
        (lambda: GilbertElliott(0.1, -0.1), "r -0.1: a probability"),
        (lambda: GilbertElliott(0.0, 0.0), "never leave"),
    ],
)
def test_path_is_refused_when_it_cannot_be_emulated(make: object, said: str) -> None:
    with pytest.raises(PathError, match=said):
        make()  # type: ignore[operator]


def test_fault_is_reported_only_once() -> None:
    before = userspace.Counts(seen=1_000, lost=10, passed=900, late=500, dropped=7)
    assert before.since(None) == before
    assert before.since(before).fault() is None
    one_more = replace(before, dropped=8, seen=1_001)
    assert "1 of 2 packets were dropped and not asked to be" in str(one_more.since(before).fault())


@pytest.mark.parametrize(
    ("passed", "late", "said"),
    [
        (100, 100, None),  # too few to judge
        (101, 101, "101 of 101 packets came late, let go more than 1 ms after they were due"),
        (100_000, 2_000, None),
        (100_000, 2_001, "2001 of 100000 packets came late"),
    ],
)
def test_too_many_late_packets_are_a_fault(passed: int, late: int, said: str | None) -> None:
    fault = userspace.Counts(seen=2 * passed, lost=passed, passed=passed, late=late, dropped=0).fault()
    assert fault is None if said is None else fault is not None and fault.startswith(said)
