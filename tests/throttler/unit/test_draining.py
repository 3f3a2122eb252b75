# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ended subflows: their entries and limits stay until the data assigned to them have been sent."""

from __future__ import annotations

import pytest
from policy_values import a_throttle
from test_rate_transition import IDLE
from test_shaping_plan import NOW, planner_for, policy, rule, subflow, throttle, uncapped, verdict
from test_transitions import Scene

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.policy.model import Onset, Share
from mptcp_throttler.shaping import plan
from mptcp_throttler.shaping.birth import held
from mptcp_throttler.shaping.model import NO_LIMIT
from mptcp_throttler.shaping.plan import CONNECTION_IDLE_SECONDS, DRAIN_SECONDS

BUSY = IDLE._replace(unacked=1)


def ended(tcp: TcpInfo) -> Scene:
    """Return a scene with a subflow that was capped from its beginning and has ended. *tcp* is its socket's state."""
    scene = Scene(rule(), obeys=False)
    scene.tcp[subflow(1)] = tcp
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.run(0.1)
    scene.planner.set_verdicts(1, (), NOW)
    scene.run(1.0, start=1.0)
    return scene


def test_one_that_ended_keeps_its_limits() -> None:
    scene = ended(BUSY)
    assert scene.limits == {1: held(5_000_000)}
    assert set(scene.planner.entries.desired) == {subflow(1)}


def test_one_that_is_still_sending_keeps_its_entry_until_it_is_done() -> None:
    scene = ended(BUSY)
    scene.planner.expire(NOW + DRAIN_SECONDS)
    scene.run(0.1, start=11.0)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    scene.tcp[subflow(1)] = IDLE
    scene.planner.expire(NOW + 2 * DRAIN_SECONDS)
    scene.run(0.1, start=21.0)
    assert not scene.planner.entries.desired
    assert scene.limits == {1: NO_LIMIT}


def test_one_whose_socket_is_gone_loses_its_entry() -> None:
    scene = ended(BUSY)
    del scene.tcp[subflow(1)]
    scene.planner.expire(NOW + DRAIN_SECONDS)
    scene.run(0.1, start=11.0)
    assert not scene.planner.entries.desired
    assert not scene.planner.overdue(10)


def test_where_no_socket_can_be_sampled_the_time_alone_counts() -> None:
    scene = ended(BUSY)
    scene.planner.expire(NOW + DRAIN_SECONDS)
    scene.do(scene.transitions.missed(11.0))
    assert not scene.planner.entries.desired


def test_a_new_policy_does_not_wait_for_them() -> None:
    scene = ended(BUSY)
    scene.planner.expire(NOW + DRAIN_SECONDS)
    assert scene.planner.overdue(10)
    scene.planner.set_policy(policy())
    assert not scene.planner.entries.desired


def test_many_are_dropped_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "DRAIN_SLICE", 3)
    planner = planner_for(rule())
    planner.set_verdicts(1, [verdict(number, rule()) for number in range(5)], NOW)
    planner.set_verdicts(1, (), NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    assert len(planner.entries.desired) == 2
    planner.expire(NOW + DRAIN_SECONDS + 1)
    assert not planner.entries.desired


def test_the_class_of_a_connection_goes_soon_after_it() -> None:
    cap = rule(cap=throttle(share=Share.CONNECTION))
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap)], NOW)
    planner.set_verdicts(1, (), NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    planner.expire(NOW + DRAIN_SECONDS + CONNECTION_IDLE_SECONDS)
    assert not planner.classes.desired


def test_nobody_collects_moves_that_nobody_follows() -> None:
    planner = planner_for(rule())
    for token in range(100):
        planner.set_verdicts(token, [verdict(token, rule())], NOW)
        planner.set_verdicts(token, (), NOW)
    assert not planner.has_moved


def test_one_released_before_it_was_sampled_takes_back_what_it_began_with() -> None:
    scene = Scene(rule())
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.do(scene.transitions.follow(0.0))
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.do(scene.transitions.follow(0.1))
    scene.tcp[subflow(1)] = IDLE
    scene.run(0.03, start=0.2)
    assert scene.limits == {1: NO_LIMIT}
    scene.run(3.0, start=0.3)
    assert not scene.transitions._sockets, "more was acknowledged: it has taken that"


def test_an_old_subflow_that_comes_to_a_soft_cap_is_not_charged_what_it_ever_sent() -> None:
    at_once = rule(cap=a_throttle(5_000_000, 5_000_000, None, Share.PATH, Onset.IMMEDIATE))
    scene = Scene(at_once)
    scene.planner.set_verdicts(1, [verdict(1, at_once)], NOW, [subflow(1)])
    scene.tcp[subflow(1)] = IDLE._replace(unacked=1_000_000)
    scene.planner.set_policy(policy(rule()))
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW + 3600)
    scene.run(1.0, start=3600.0)
    assert [spec.ceil for spec in scene.planner.classes.desired.values()] == [5_000_000]
