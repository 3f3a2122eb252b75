# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment ``starvation``: layouts, counters, and when a path carries its cap again."""

from __future__ import annotations

from math import inf

import pytest

from mptcp_bench.experiments.starvation import SCENARIO, judge, octets, recovered, table
from mptcp_bench.experiments.starvation_layouts import LAYOUTS, Layout
from mptcp_bench.experiments.subflow_ends import peers
from mptcp_lab.testbed.plan import steps
from mptcp_lab.testbed.recorder import Sample
from mptcp_throttler.policy.load import load_policy

TIMES = [step / 4 for step in range(60)]


def test_only_what_a_path_carries_in_the_measured_time_counts() -> None:
    seen = [round(2.5e6 * max(0.0, min(time, 12.0) - 4.0)) for time in TIMES]
    samples = [Sample(t, dict.fromkeys("abc", each)) for t, each in zip(TIMES, seen, strict=True)]
    found = judge(samples, LAYOUTS["three"], 4.0, 4.0)
    assert [carried.share for carried in found.values()] == pytest.approx([1.0, 20.0, 1.0], rel=0.01)


def test_a_path_has_recovered_when_it_begins_to_carry_its_cap() -> None:
    capped = LAYOUTS["vanished-4"].load("a")
    back = [Sample(time, {"a": round(max(0.0, time - 3.0) * 625_000)}) for time in TIMES]
    assert recovered(back, capped, 2.0) == pytest.approx(1.0)
    assert recovered([Sample(time, {"a": 0}) for time in TIMES], capped, 2.0) == inf


def test_layouts_are_compared_with_slow_links_where_they_have_links_of_their_own() -> None:
    planned = {(turn.cell.layout.name, turn.cell.variant) for turn in SCENARIO.plan(SCENARIO.chosen({}))}
    assert {layout for layout, variant in planned if variant == "cap"} == LAYOUTS.keys() - {"vanished-1000"}
    assert planned.isdisjoint({("prefixes", "link"), ("vanished-4", "link")})
    assert ("vanished-0", "link") in planned


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=lambda layout: layout.name)
def test_every_layout_can_be_built_and_its_policy_caps_what_it_says(layout: Layout) -> None:
    for physical in (False, True):
        topology = layout.topology(physical)
        assert steps(topology, {node.name: node.name for node in topology.nodes})
    policy = load_policy(layout.policy(), layout.name)
    capped = {load.name: load.cap for load in layout.loads if load.cap is not None}
    assert {rule.name: rule.throttle.rate for rule in policy.rules if rule.throttle} == capped


def test_counters_have_the_ethernet_headers_of_their_packets() -> None:
    assert "ip6 daddr fd77:2::2 counter name from_b" in table({"a": "10.77.1.2", "b": "fd77:2::2"})
    listed = '{"nftables": [{"metainfo": {}}, {"counter": {"name": "from_a", "packets": 2, "bytes": 3000}}]}'
    assert octets(listed) == {"a": 3028}


def test_the_clients_ends_of_subflows_are_the_peers_of_the_proxys_sockets() -> None:
    listing = """\
0  0  [::ffff:10.77.8.2]:3128  [::ffff:10.77.1.2]:41000
0  0  10.77.8.2%wan0:3128      10.77.2.2:41001
0  40 [fd77:8::2]:3128         [fd77:2::2]:41002
"""
    assert peers(listing) == ["10.77.1.2", "10.77.2.2", "fd77:2::2"]
    assert peers("") == []
