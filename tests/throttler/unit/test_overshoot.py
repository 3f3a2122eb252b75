# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for overshoot: bytes that bypassed a cap's class are compensated; transitions of a cap share an allowance."""

from __future__ import annotations

from policy_values import a_throttle
from test_rate_transition import FULL_FLIGHT, IDLE
from test_shaping_plan import NOW, policy, rule, subflow, throttle, uncapped, verdict
from test_transitions import Scene, soft_planner

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.policy.model import Direction, Share
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.cap import LiveCap
from mptcp_throttler.shaping.model import SocketLimit
from mptcp_throttler.shaping.onset.downloads import SHORT_SECONDS
from mptcp_throttler.shaping.onset.rate_transition import (
    FORGOTTEN_SECONDS,
    LOWERED_SHARE,
    MAX_DEBT_SECONDS,
    MIN_DEBT_SECONDS,
    PAUSE_SECONDS,
    OvershootCompensation,
    begin_allowance,
    spend_allowance,
)

CEIL = 8_000_000
"""In bit/s: a megabyte a second."""


def cap_of(minor: int = 7) -> LiveCap:
    found = a_throttle(CEIL, CEIL, None, Share.PATH)
    return LiveCap(ScopeKey("cap", Share.PATH), minor, Direction.DOWN, found, found)


def apply_changes(compensation: OvershootCompensation, now: float) -> dict[int, float | None]:
    """Apply the wanted changes to the caps' classes, and return them."""
    changes = compensation.changed(now)
    for cap, share in changes:
        cap.lowered = share
    return {cap.minor: share for cap, share in changes}


def test_debt_lowers_the_class_until_it_is_compensated() -> None:
    compensation, cap = OvershootCompensation(), cap_of()
    compensation.charge(cap, 500_000, 10.0)
    assert apply_changes(compensation, 10.0) == {7: LOWERED_SHARE}
    assert apply_changes(compensation, 10.5) == {}
    end = 10.0 + 0.5 / (1 - LOWERED_SHARE)
    assert apply_changes(compensation, end - 0.01) == {}
    assert apply_changes(compensation, end + 0.01) == {7: None}
    assert apply_changes(compensation, end + 1) == {}


def test_small_debts_add_up_before_the_class_changes() -> None:
    compensation, cap = OvershootCompensation(), cap_of()
    for number in range(4):
        assert apply_changes(compensation, 10.0 + number) == {}
        compensation.charge(cap, MIN_DEBT_SECONDS * 1_000_000 / 3.5, 10.0 + number)
    assert apply_changes(compensation, 14.0) == {7: LOWERED_SHARE}


def test_small_debts_are_forgotten_after_a_while() -> None:
    compensation, cap = OvershootCompensation(), cap_of()
    for number in range(10):
        compensation.charge(cap, MIN_DEBT_SECONDS * 1_000_000 / 3.5, 10.0 + 1.1 * FORGOTTEN_SECONDS * number)
        assert apply_changes(compensation, 10.0 + 1.1 * FORGOTTEN_SECONDS * number) == {}


def test_debt_is_bounded() -> None:
    compensation = OvershootCompensation()
    compensation.charge(cap_of(), 1_000_000_000, 10.0)
    assert apply_changes(compensation, 10.0) == {7: LOWERED_SHARE}
    assert apply_changes(compensation, 10.0 + MAX_DEBT_SECONDS / (1 - LOWERED_SHARE) + 0.01) == {7: None}


def test_debt_forgotten_with_a_new_policy_is_not_compensated() -> None:
    compensation, cap = OvershootCompensation(), cap_of()
    compensation.charge(cap, 500_000, 10.0)
    apply_changes(compensation, 10.0)
    cap.forget_overshoot()
    apply_changes(compensation, 10.1)
    assert (cap.lowered, apply_changes(compensation, 20.0)) == (None, {})


def test_debt_of_a_cap_is_removed_with_it() -> None:
    own = rule(cap=throttle(share=Share.CONNECTION))
    scene = Scene(own)
    scene.tcp[subflow(1)] = IDLE._replace(unacked=1000)
    scene.planner.set_verdicts(1, [verdict(1, own)], NOW, [subflow(1)])
    scene.do(scene.transitions.follow(10.0))
    scene.observe([subflow(1)], 10.0)
    scene.planner.set_verdicts(1, [uncapped(1, own)], NOW)
    scene.planner.expire(NOW + 100)
    assert not scene.planner.caps
    scene.do(scene.transitions.follow(10.1))
    scene.do(scene.transitions.follow(10.1 + 2 * MAX_DEBT_SECONDS))
    assert not scene.transitions._overshoot._compensating


def test_simultaneous_transitions_share_one_allowance() -> None:
    single, together = cap_of(), cap_of()
    assert begin_allowance(single, 100_000_000, 5_000_000, 0.0)
    sent = 0
    while spend_allowance(single, 100_000, 0.1):
        sent += 100_000
    assert begin_allowance(together, 100_000_000, 5_000_000, 0.0)
    assert begin_allowance(together, 100_000_000, 5_000_000, 0.05)
    both = 0
    while spend_allowance(together, 100_000, 0.1):
        both += 100_000
    assert both == sent


def test_allowance_is_enough_for_one_transition_and_returns_after_a_pause() -> None:
    cap = cap_of()
    assert begin_allowance(cap, 100_000_000, 5_000_000, 0.0)
    assert spend_allowance(cap, 100e6 / 8 * 0.3 + 100e6 / 8 * 0.6 / 3, 0.9)
    assert not spend_allowance(cap, 10_000_000, 1.0)
    assert not begin_allowance(cap, 100_000_000, 5_000_000, PAUSE_SECONDS)
    assert begin_allowance(cap, 100_000_000, 5_000_000, 2.1 * PAUSE_SECONDS)


def test_young_subflow_is_in_its_class_at_once() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    assert set(planner.entries.desired) == {subflow(1)}
    planner.set_verdicts(2, [verdict(2, rule())], NOW)
    assert planner.pending() == [subflow(2)]


def add_subflow(scene: Scene, number: int, tcp: TcpInfo, now: float, *, young: bool) -> None:
    """Add a subflow to the cap and sample it at once."""
    scene.tcp[subflow(number)] = tcp
    scene.planner.set_verdicts(number, [verdict(number, rule())], NOW, [subflow(number)] if young else [])
    scene.do(scene.transitions.follow(now))
    scene.observe([subflow(number)], now)
    scene.do(scene.transitions.follow(now))


def ceil_of(scene: Scene) -> int:
    (spec,) = scene.planner.classes.desired.values()
    return spec.ceil


def test_bytes_sent_before_the_entry_lower_the_class_until_compensated() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, IDLE._replace(unacked=100), 10.0, young=True)
    assert ceil_of(scene) == LOWERED_SHARE * 5_000_000
    owed = 8 * 100 * IDLE.mss / 5_000_000 / (1 - LOWERED_SHARE)
    scene.run(owed - 0.05, 10.0)
    assert ceil_of(scene) == LOWERED_SHARE * 5_000_000
    scene.run(0.2, 10.0 + owed)
    assert ceil_of(scene) == 5_000_000


def test_subflows_of_a_lowered_class_are_paced_lower() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, IDLE._replace(unacked=300), 10.0, young=True)
    scene.run(0.1, 10.0)
    assert scene.limits[1] == SocketLimit(2_500_000, 312)
    scene.run(0.1, 20.0)
    assert scene.limits[1] == SocketLimit(5_000_000)


def test_bytes_that_went_through_the_class_are_not_charged() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE._replace(unacked=100)
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.do(scene.transitions.follow(10.0))
    scene.observe([subflow(1)], 10.5)  # 145 kB in half a second are less than 5 Mbit/s
    scene.do(scene.transitions.follow(10.5))
    assert ceil_of(scene) == 5_000_000


def test_sample_older_than_the_cap_charges_no_more_than_was_sent() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.do(scene.transitions.follow(10.0))
    scene.observe([subflow(1)], 9.0)  # With many joins per second, sockets are listed before the join is known
    scene.do(scene.transitions.follow(10.0))
    assert ceil_of(scene) == 5_000_000


def test_first_transition_of_a_cap_is_not_charged_but_later_ones_are() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, FULL_FLIGHT, 10.0, young=False)
    scene.run(2.0, 10.0)
    assert not scene.planner.pending()
    assert ceil_of(scene) == 5_000_000
    scene.tcp[subflow(2)] = FULL_FLIGHT._replace(unacked=0, not_sent=9_000_000)
    scene.planner.set_verdicts(2, [verdict(2, rule())], NOW)
    scene.run(0.1, 30.0)
    scene.tcp[subflow(2)] = FULL_FLIGHT._replace(unacked=1000, not_sent=9_000_000)
    scene.run(0.1, 30.1)
    assert ceil_of(scene) == LOWERED_SHARE * 5_000_000


def test_cap_begins_at_once_if_the_allowance_is_used_up() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, FULL_FLIGHT._replace(unacked=0), 10.0, young=False)
    add_subflow(scene, 2, FULL_FLIGHT._replace(unacked=0), 10.0, young=False)
    assert len(scene.planner.pending()) == 2
    scene.tcp[subflow(1)] = FULL_FLIGHT._replace(unacked=10_000)  # Far more than one subflow needs
    scene.run(0.1, 10.02)
    assert not scene.planner.pending(), "neither transition continues"
    add_subflow(scene, 3, FULL_FLIGHT, 11.0, young=False)
    assert not scene.planner.pending()


def test_new_policy_begins_without_debts() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, IDLE._replace(unacked=100), 10.0, young=True)
    scene.planner.set_policy(policy(rule()))
    assert ceil_of(scene) == 5_000_000


def test_subflow_that_began_under_its_cap_has_a_small_backlog_at_first() -> None:
    scene = Scene(rule())
    add_subflow(scene, 1, IDLE._replace(unacked=1), 10.0, young=True)
    scene.run(SHORT_SECONDS - 0.1, 10.0)
    assert scene.limits[1] == SocketLimit(5_000_000, 625)
    scene.run(0.2, 10.0 + SHORT_SECONDS)
    assert scene.limits[1] == SocketLimit(5_000_000), (
        "a small backlog here would also keep the other paths' backlog small"
    )


def test_samples_out_of_order_do_not_change_a_debt() -> None:
    compensation, cap = OvershootCompensation(), cap_of()
    compensation.charge(cap, 500_000, 10.0)
    compensation.charge(cap, 0, 9.0)
    assert apply_changes(compensation, 10.0) == {7: LOWERED_SHARE}
    assert apply_changes(compensation, 10.0 + 0.9 * 0.5 / (1 - LOWERED_SHARE)) == {}
    assert apply_changes(compensation, 10.0 + 1.1 * 0.5 / (1 - LOWERED_SHARE)) == {7: None}
