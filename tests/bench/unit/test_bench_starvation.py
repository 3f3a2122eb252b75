# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the verdicts of the experiment ``starvation`` on made-up counters, and for its layouts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.packet_counters import octets, table
from mptcp_bench.experiments.starvation_judging import (
    Measured,
    Outcome,
    PathLoad,
    aims,
    judge,
    mean_outcomes,
    recovered,
    together,
)
from mptcp_bench.experiments.starvation_layouts import LAYOUTS, Layout
from mptcp_bench.experiments.subflow_ends import peers
from mptcp_lab.testbed.plan import steps
from mptcp_lab.testbed.recorder import Sample
from mptcp_throttler.policy.load import load_policy

FREE = PathLoad("a", "10.77.1.2", 20_000_000)
CAPPED = PathLoad("b", "10.77.2.2", 20_000_000, 1_000_000)


def samples(free: float, capped: float, seconds: float = 10.0) -> list[Sample]:
    """Return samples of two paths with *free* and *capped* bits/s."""
    times = [step * 0.25 for step in range(int(seconds * 4) + 1)]
    return [Sample(time, {"a": int(free / 8 * time), "b": int(capped / 8 * time)}) for time in times]


def complaints(free: float, capped: float) -> list[str]:
    outcomes = judge(samples(free, capped), (FREE, CAPPED), 2.0, 10.0)
    return list(missed([each.aim("x", 0) for each in outcomes]))


def test_paths_that_carry_their_share_miss_no_aim() -> None:
    assert not complaints(19.5e6, 1e6)
    outcomes = judge(samples(20e6, 1e6), (FREE, CAPPED), 2.0, 10.0)
    assert together(outcomes) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("free", "capped", "said"),
    [
        (18.9e6, 1e6, "x: a, of its link: 0.945, wanted"),
        (20e6, 0.96e6, "x: b, of its cap: 0.96, wanted"),
        (20e6, 1.06e6, "x: b, of its cap: 1.06, wanted"),
    ],
)
def test_a_path_that_starves_and_a_cap_that_does_not_hold_miss_an_aim(free: float, capped: float, said: str) -> None:
    (complaint,) = complaints(free, capped)
    assert complaint.startswith(said)


def test_what_came_before_and_after_does_not_count() -> None:
    stalled = [Sample(s.time, {"a": int(max(0.0, min(s.time, 8.0) - 4.0) * 2.5e6), "b": 0}) for s in samples(0, 0)]
    (outcome,) = judge(stalled, (FREE,), 4.0, 8.0)
    assert outcome.share == pytest.approx(1.0, rel=0.01)


def test_a_path_that_carries_again_does_so_from_then_on() -> None:
    back = [Sample(s.time, {"b": int(max(0.0, s.time - 3.0) * 125_000)}) for s in samples(0, 0)]
    assert recovered(back, CAPPED, 2.0) == pytest.approx(1.0)
    silent = [Sample(s.time, {"b": 0}) for s in samples(0, 0)]
    assert recovered(silent, CAPPED, 2.0) is None


def test_a_layout_fails_by_the_mean_of_its_runs_and_real_links_never_do() -> None:
    def measured(share: float, variant: str) -> Measured:
        return Measured("three", variant, (Outcome(FREE, share), Outcome(CAPPED, 1.0)), None)

    good, bad = measured(1.0, "cap"), measured(0.8, "cap")
    assert [each.share for each in mean_outcomes([good, bad])] == [0.9, 1.0]
    assert not missed(aims([good, good], [("three", "cap")], 2))
    [complaint] = missed(aims([good, bad], [("three", "cap")], 2))
    assert complaint.startswith("three: a, of its link: 0.9, wanted")
    assert not missed(aims([replace(bad, variant="link")], [("three", "link")], 1))


@pytest.mark.parametrize("layout", [make() for make in LAYOUTS.values()], ids=lambda layout: layout.name)
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
