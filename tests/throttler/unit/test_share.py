# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a subflow's demand on a shared cap: a subflow keeps its share while its data arrive."""

from __future__ import annotations

import pytest
from test_rate_transition import IDLE, MUCH_IN_FLIGHT
from test_shaping_plan import NOW, rule, subflow, throttle, verdict
from test_transitions import Scene

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo
from mptcp_throttler.shaping.model import MTU
from mptcp_throttler.shaping.onset.share import SHARE_SECONDS, SILENT_SECONDS, Demand

CAP = 5_000_000
BACKLOGGED = MUCH_IN_FLIGHT._replace(not_sent=50_000)


def sample(acked: int, tcp: TcpInfo = BACKLOGGED) -> KernelSubflow:
    return KernelSubflow(1, subflow(1), True, 0, 0, False, 0.0, acked, cookie=1, tcp=tcp)


def seconds_until_share_is_lost(
    demand: Demand, acked: int, start: float, tcp: TcpInfo = BACKLOGGED, round_seconds: float = 0.0
) -> float:
    """Return after how many seconds without progress since *start* other subflows get the share."""
    now = start
    while demand.rate is None:
        now += SHARE_SECONDS
        demand.count(sample(acked, tcp), now, round_seconds)
        assert now < start + 60
    return now - start


def test_share_is_lost_after_a_second_and_returns_with_the_first_byte() -> None:
    demand = Demand()
    for step in range(10):
        demand.count(sample(step * 100_000), step * SHARE_SECONDS, 0.0)
        assert demand.rate is None
    assert seconds_until_share_is_lost(demand, 900_000, 9 * SHARE_SECONDS) <= 1.0
    demand.count(sample(900_000), 60.0, 0.0)
    assert demand.rate == 0, "the demand changed while no data arrived"
    demand.count(sample(901_448), 60.0 + SHARE_SECONDS, 0.0)
    assert demand.rate is None


def test_data_after_a_lost_segment_count_as_progress() -> None:
    demand = Demand()
    for step in range(10):
        demand.count(sample(0, BACKLOGGED._replace(sacked=step)), step * SHARE_SECONDS, 0.0)
        assert demand.rate is None


def test_subflow_with_a_long_round_trip_keeps_its_share() -> None:
    slow = BACKLOGGED._replace(rtt=1_000_000)
    demand = Demand()
    for step in range(20):
        demand.count(sample(step // 3 * 1448, slow), step * SHARE_SECONDS, 0.0)
        assert demand.rate is None, "the share was lost after 1.5 s without data"
    assert seconds_until_share_is_lost(demand, 6 * 1448, 19 * SHARE_SECONDS, slow) <= 2.5


def test_subflow_with_a_very_small_share_keeps_it_between_packets() -> None:
    round_seconds = 8 * MTU * 1000 / 10_000_000
    assert round_seconds == pytest.approx(1.2, abs=0.02)
    demand = Demand()
    for step in range(60):
        packet_count = int(step * SHARE_SECONDS / (1.5 * round_seconds))
        demand.count(sample(packet_count * 1448), step * SHARE_SECONDS, round_seconds)
        assert demand.rate is None, "the share was lost, although a packet arrives every 1.8 s"
    assert seconds_until_share_is_lost(demand, 15 * 1448, 30.0, round_seconds=round_seconds) > SILENT_SECONDS


def test_demand_without_backlog_is_the_arrival_rate() -> None:
    demand = Demand()
    for step in range(5):
        demand.count(sample(step * 62_500, IDLE), step * SHARE_SECONDS, 0.0)
    assert demand.rate == 1_000_000
    assert not demand.has_outstanding


def scene_of(users: int, cap: int = CAP) -> tuple[Scene, list[FourTuple]]:
    shared = rule(cap=throttle(cap))
    scene = Scene(shared)
    tuples = [FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\1", 1024 + number) for number in range(users)]
    for number, each in enumerate(tuples):
        scene.tcp[each], scene.cookies[each] = BACKLOGGED, number + 1
        verdicts = [verdict(1, shared)._replace(four_tuple=each)]
        scene.planner.set_verdicts(number, verdicts, NOW)
    scene.perform(scene.transitions.process_plan_changes(0.0))
    return scene, tuples


def observe(scene: Scene, start: float, seconds: float) -> None:
    """Sample like the sampler: subflows in a transition often, the others twice per second."""
    steps = round(seconds / SHARE_SECONDS)
    for step in range(steps):
        now = start + step * SHARE_SECONDS
        while len(scene.transitions.urgent()) and now < start + (step + 1) * SHARE_SECONDS:
            scene.perform(scene.transitions.process_plan_changes(now))
            scene.observe(scene.transitions.urgent(), now)
            now += 0.1
        scene.perform(scene.transitions.process_plan_changes(start + step * SHARE_SECONDS))
        scene.observe(scene.watched(), start + (step + 1) * SHARE_SECONDS)


@pytest.mark.parametrize("stalled_count", [1, 4, 9, 1000])
def test_remaining_subflow_gets_the_whole_cap_when_others_stall(stalled_count: int) -> None:
    scene, tuples = scene_of(stalled_count + 1)
    observe(scene, 0.0, 6.0)
    before = scene.limits[1].rate
    assert before is not None
    assert before < CAP
    scene.stalled = set(tuples[1:])
    # With a thousand backlogged subflows, 5 Mbit/s carry one packet of each in 2.4 s. The redistribution may take two
    # such rounds.
    observe(scene, 6.0, 1.0 if stalled_count < 100 else 6.0)
    assert scene.limits[1].rate == CAP
    scene.stalled = set()
    observe(scene, 20.0, 1.0)
    assert scene.limits[1].rate == pytest.approx(before, rel=0.01), (
        "the stalled subflows did not get their shares again"
    )


def test_no_limit_is_set_while_demands_do_not_change() -> None:
    scene, tuples = scene_of(1001)
    observe(scene, 0.0, 6.0)
    scene.stalled = set(tuples[1:])
    observe(scene, 6.0, 6.0)
    found = {each: limit for each in tuples if (limit := scene.sample(each, 13.0)) is not None}
    limits = list(scene.transitions.observe(tuples, found, 13.0))
    assert sum(len(each.limits) for each in limits) == 0


def test_demand_is_measured_between_two_readings_of_the_socket() -> None:
    scene = Scene(rule(), applies_limits=False)
    scene.tcp = dict.fromkeys((subflow(1), subflow(2)), IDLE)
    scene.planner.set_verdicts(1, [verdict(number, rule()) for number in (1, 2)], NOW)
    scene.run(1.0)
    socket = scene.transitions._sockets[subflow(1)]
    before = scene.acked[subflow(1)]
    scene.observe([subflow(1), subflow(2)], 3.0, read=1.0)  # This sweep took 2 s.
    scene.acked[subflow(1)] = before + 125_000
    scene.observe([subflow(1), subflow(2)], 3.1, read=3.0)
    assert socket.demand.rate == pytest.approx(500_000, rel=0.05)
