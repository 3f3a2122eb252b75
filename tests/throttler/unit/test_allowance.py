# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the allowance that the transitions of a cap share, and for subflows that are capped from the start."""

from __future__ import annotations

from policy_values import a_throttle
from test_rate_transition import IDLE, MUCH_IN_FLIGHT
from test_shaping_plan import NOW, rule, subflow, verdict
from test_transitions import Scene, soft_planner

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.policy.model import Direction, Share
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.cap import LiveCap
from mptcp_throttler.shaping.model import SocketLimit
from mptcp_throttler.shaping.onset.downloads import SMALL_BOUND_SECONDS
from mptcp_throttler.shaping.onset.rate_transition import ALLOWANCE_PAUSE_SECONDS, begin_allowance, spend_allowance

CEIL = 8_000_000
"""Rate of the cap in bit/s: one megabyte per second."""
START, TARGET = 100_000_000, 5_000_000
"""Rates in bit/s at which the transitions begin and end."""


def cap_of(minor: int = 7) -> LiveCap:
    found = a_throttle(CEIL, CEIL, None, Share.PATH)
    return LiveCap(ScopeKey("cap", Share.PATH), minor, Direction.DOWN, found, found)


def test_simultaneous_transitions_share_one_allowance() -> None:
    single, shared = cap_of(), cap_of()
    assert begin_allowance(single, START, TARGET, 0.0)
    sent = 0
    while spend_allowance(single, 100_000, 0.1):
        sent += 100_000
    assert begin_allowance(shared, START, TARGET, 0.0)
    assert begin_allowance(shared, START, TARGET, 0.05)
    sent_by_two = 0
    while spend_allowance(shared, 100_000, 0.1):
        sent_by_two += 100_000
    assert sent_by_two == sent


def test_allowance_is_enough_for_one_transition_and_returns_after_a_pause() -> None:
    cap = cap_of()
    assert begin_allowance(cap, START, TARGET, 0.0)
    drain, ramp = 0.3 * START, 0.6 * START / 3  # bits: 0.3 s at START, then 0.6 s at a third of it on average
    assert spend_allowance(cap, (drain + ramp) / 8, 0.9)
    assert not spend_allowance(cap, 10_000_000, 1.0)
    assert not begin_allowance(cap, START, TARGET, ALLOWANCE_PAUSE_SECONDS)
    assert begin_allowance(cap, START, TARGET, 2.1 * ALLOWANCE_PAUSE_SECONDS)


def test_young_subflow_enters_its_class_immediately() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    assert set(planner.entries.desired) == {subflow(1)}
    planner.set_verdicts(2, [verdict(2, rule())], NOW)
    assert planner.pending() == [subflow(2)]


def add_subflow(scene: Scene, number: int, tcp: TcpInfo, now: float, *, young: bool) -> None:
    """Add a subflow to the cap and sample it immediately."""
    scene.tcp[subflow(number)] = tcp
    scene.planner.set_verdicts(number, [verdict(number, rule())], NOW, [subflow(number)] if young else [])
    scene.perform(scene.transitions.process_plan_changes(now))
    scene.observe([subflow(number)], now)
    scene.perform(scene.transitions.process_plan_changes(now))


def test_cap_begins_immediately_if_the_allowance_is_used_up() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, MUCH_IN_FLIGHT._replace(unacked=0), 10.0, young=False)
    add_subflow(scene, 2, MUCH_IN_FLIGHT._replace(unacked=0), 10.0, young=False)
    assert len(scene.planner.pending()) == 2
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT._replace(unacked=10_000)  # far more than one transition may have
    scene.run(0.1, 10.02)
    assert not scene.planner.pending(), "a transition continued although the allowance was used up"
    add_subflow(scene, 3, MUCH_IN_FLIGHT, 11.0, young=False)
    assert not scene.planner.pending()


def test_subflow_capped_from_the_start_has_a_small_backlog_at_first() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, IDLE._replace(unacked=1), 10.0, young=True)
    scene.run(SMALL_BOUND_SECONDS - 0.1, 10.0)
    assert scene.limits[1] == SocketLimit(5_000_000, 625)
    scene.run(0.2, 10.0 + SMALL_BOUND_SECONDS)
    assert scene.limits[1] == SocketLimit(5_000_000), (
        "the backlog stayed small, which would also keep the other paths' backlog small"
    )
