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
from mptcp_throttler.shaping.model import NO_LIMIT, SocketLimit
from mptcp_throttler.shaping.plan import CONNECTION_IDLE_SECONDS, DRAIN_SECONDS

STILL_SENDING = IDLE._replace(unacked=1)


def scene_with_ended_subflow(tcp: TcpInfo) -> Scene:
    """Return a scene with an ended subflow that was capped from its beginning. *tcp* is the state of its socket."""
    scene = Scene(rule(), applies_limits=False)
    scene.tcp[subflow(1)] = tcp
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.run(0.1)
    scene.planner.set_verdicts(1, (), NOW)
    scene.run(1.0, start=1.0)
    return scene


def test_ended_subflow_keeps_its_limit_and_entry() -> None:
    scene = scene_with_ended_subflow(STILL_SENDING)
    assert scene.limits == {1: SocketLimit(5_000_000, 625)}
    assert set(scene.planner.entries.desired) == {subflow(1)}


def test_ended_subflow_keeps_its_entry_until_its_data_are_sent() -> None:
    scene = scene_with_ended_subflow(STILL_SENDING)
    scene.planner.expire(NOW + DRAIN_SECONDS)
    scene.run(0.1, start=11.0)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    scene.tcp[subflow(1)] = IDLE
    scene.planner.expire(NOW + 2 * DRAIN_SECONDS)
    scene.run(0.1, start=21.0)
    assert not scene.planner.entries.desired
    assert scene.limits == {1: NO_LIMIT}


def test_ended_subflow_without_a_socket_loses_its_entry() -> None:
    scene = scene_with_ended_subflow(STILL_SENDING)
    del scene.tcp[subflow(1)]
    scene.planner.expire(NOW + DRAIN_SECONDS)
    scene.run(0.1, start=11.0)
    assert not scene.planner.entries.desired
    assert not scene.planner.overdue(10)


def test_entry_is_removed_after_the_timeout_if_no_socket_can_be_sampled() -> None:
    scene = scene_with_ended_subflow(STILL_SENDING)
    scene.planner.expire(NOW + DRAIN_SECONDS)
    scene.perform(scene.transitions.handle_failed_sampling(11.0))
    assert not scene.planner.entries.desired


def test_new_policy_does_not_wait_for_ended_subflows() -> None:
    scene = scene_with_ended_subflow(STILL_SENDING)
    scene.planner.expire(NOW + DRAIN_SECONDS)
    assert scene.planner.overdue(10)
    scene.planner.set_policy(policy())
    assert not scene.planner.entries.desired


def test_ended_subflows_are_removed_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "DRAIN_SLICE", 3)
    planner = planner_for(rule())
    planner.set_verdicts(1, [verdict(number, rule()) for number in range(5)], NOW)
    planner.set_verdicts(1, (), NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    assert len(planner.entries.desired) == 2
    planner.expire(NOW + DRAIN_SECONDS + 1)
    assert not planner.entries.desired


def test_class_of_an_ended_connection_is_removed_after_its_idle_time() -> None:
    cap = rule(cap=throttle(share=Share.CONNECTION))
    planner = planner_for(cap)
    planner.set_verdicts(1, [verdict(1, cap)], NOW)
    planner.set_verdicts(1, (), NOW)
    planner.expire(NOW + DRAIN_SECONDS)
    planner.expire(NOW + DRAIN_SECONDS + CONNECTION_IDLE_SECONDS)
    assert not planner.classes.desired


def test_changes_are_discarded_without_a_consumer() -> None:
    planner = planner_for(rule())
    for token in range(100):
        planner.set_verdicts(token, [verdict(token, rule())], NOW)
        planner.set_verdicts(token, (), NOW)
    assert not planner.changed_subflows


def test_subflow_uncapped_before_its_first_sample_loses_its_initial_options() -> None:
    scene = Scene(rule())
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.perform(scene.transitions.process_plan_changes(0.0))
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.perform(scene.transitions.process_plan_changes(0.1))
    scene.tcp[subflow(1)] = IDLE
    scene.run(0.03, start=0.2)
    assert scene.limits == {1: NO_LIMIT}
    scene.run(3.0, start=0.3)
    assert not scene.transitions._sockets, "the socket is still followed although its limit was lifted"


def test_bytes_sent_under_an_immediate_cap_do_not_delay_a_soft_cap() -> None:
    """The policy changes from an immediate to a soft cap. An hour later, the subflow gets a new verdict."""
    immediate = rule(cap=a_throttle(5_000_000, 5_000_000, None, Share.PATH, Onset.IMMEDIATE))
    scene = Scene(immediate)
    scene.planner.set_verdicts(1, [verdict(1, immediate)], NOW, [subflow(1)])
    scene.tcp[subflow(1)] = IDLE._replace(unacked=1_000_000)
    scene.planner.set_policy(policy(rule()))
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW + 3600)
    scene.run(1.0, start=3600.0)
    assert [spec.ceil for spec in scene.planner.classes.desired.values()] == [5_000_000]
