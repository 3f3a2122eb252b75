# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for overshoot: bytes that bypassed a cap's class are repaid, and a cap's transitions share one allowance."""

from __future__ import annotations

from policy_values import a_throttle
from test_rate_transition import FULL_FLIGHT, IDLE
from test_shaping_plan import NOW, policy, rule, subflow, throttle, uncapped, verdict
from test_transitions import Scene, soft_planner

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.policy.model import Direction, Share
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.birth import held
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


def changed(owing: OvershootCompensation, now: float) -> dict[int, float | None]:
    """Apply the wanted changes to the caps' classes, and return them."""
    changes = owing.changed(now)
    for cap, share in changes:
        cap.lowered = share
    return {cap.minor: share for cap, share in changes}


def test_a_debt_lowers_the_class_until_it_is_compensated() -> None:
    owing, cap = OvershootCompensation(), cap_of()
    owing.charge(cap, 500_000, 10.0)
    assert changed(owing, 10.0) == {7: LOWERED_SHARE}
    assert changed(owing, 10.5) == {}
    end = 10.0 + 0.5 / (1 - LOWERED_SHARE)
    assert changed(owing, end - 0.01) == {}
    assert changed(owing, end + 0.01) == {7: None}
    assert changed(owing, end + 1) == {}


def test_small_debts_add_up_before_the_class_is_changed() -> None:
    owing, cap = OvershootCompensation(), cap_of()
    for number in range(4):
        assert changed(owing, 10.0 + number) == {}
        owing.charge(cap, MIN_DEBT_SECONDS * 1_000_000 / 3.5, 10.0 + number)
    assert changed(owing, 14.0) == {7: LOWERED_SHARE}


def test_small_debts_are_forgotten() -> None:
    owing, cap = OvershootCompensation(), cap_of()
    for number in range(10):
        owing.charge(cap, MIN_DEBT_SECONDS * 1_000_000 / 3.5, 10.0 + 1.1 * FORGOTTEN_SECONDS * number)
        assert changed(owing, 10.0 + 1.1 * FORGOTTEN_SECONDS * number) == {}


def test_a_debt_is_bounded() -> None:
    owing = OvershootCompensation()
    owing.charge(cap_of(), 1_000_000_000, 10.0)
    assert changed(owing, 10.0) == {7: LOWERED_SHARE}
    assert changed(owing, 10.0 + MAX_DEBT_SECONDS / (1 - LOWERED_SHARE) + 0.01) == {7: None}


def test_what_is_forgotten_with_a_new_policy_is_not_compensated() -> None:
    owing, cap = OvershootCompensation(), cap_of()
    owing.charge(cap, 500_000, 10.0)
    changed(owing, 10.0)
    cap.forget_overshoot()
    changed(owing, 10.1)
    assert (cap.lowered, changed(owing, 20.0)) == (None, {})


def test_what_a_cap_owed_goes_with_it() -> None:
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


def test_transitions_at_a_time_share_one_allowance() -> None:
    alone, together = cap_of(), cap_of()
    assert begin_allowance(alone, 100_000_000, 5_000_000, 0.0)
    sent = 0
    while spend_allowance(alone, 100_000, 0.1):
        sent += 100_000
    assert begin_allowance(together, 100_000_000, 5_000_000, 0.0)
    assert begin_allowance(together, 100_000_000, 5_000_000, 0.05)
    both = 0
    while spend_allowance(together, 100_000, 0.1):
        both += 100_000
    assert both == sent


def test_an_allowance_is_enough_for_one_and_comes_again_after_a_pause() -> None:
    cap = cap_of()
    assert begin_allowance(cap, 100_000_000, 5_000_000, 0.0)
    assert spend_allowance(cap, 100e6 / 8 * 0.3 + 100e6 / 8 * 0.6 / 3, 0.9)
    assert not spend_allowance(cap, 10_000_000, 1.0)
    assert not begin_allowance(cap, 100_000_000, 5_000_000, PAUSE_SECONDS)
    assert begin_allowance(cap, 100_000_000, 5_000_000, 2.1 * PAUSE_SECONDS)


def test_a_young_subflow_is_in_its_class_at_once() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    assert set(planner.entries.desired) == {subflow(1)}
    planner.set_verdicts(2, [verdict(2, rule())], NOW)
    assert planner.pending() == [subflow(2)]


def come(scene: Scene, number: int, tcp: TcpInfo, now: float, *, young: bool) -> None:
    """Add a subflow to the cap, and sample it at once."""
    scene.tcp[subflow(number)] = tcp
    scene.planner.set_verdicts(number, [verdict(number, rule())], NOW, [subflow(number)] if young else [])
    scene.do(scene.transitions.follow(now))
    scene.observe([subflow(number)], now)
    scene.do(scene.transitions.follow(now))


def ceil_of(scene: Scene) -> int:
    (spec,) = scene.planner.classes.desired.values()
    return spec.ceil


def test_what_a_young_subflow_sent_before_its_entry_lowers_the_class_until_it_is_repaid() -> None:
    scene = Scene(rule())
    come(scene, 1, IDLE._replace(unacked=100), 10.0, young=True)
    assert ceil_of(scene) == LOWERED_SHARE * 5_000_000
    owed = 8 * 100 * IDLE.mss / 5_000_000 / (1 - LOWERED_SHARE)
    scene.run(owed - 0.05, 10.0)
    assert ceil_of(scene) == LOWERED_SHARE * 5_000_000
    scene.run(0.2, 10.0 + owed)
    assert ceil_of(scene) == 5_000_000


def test_while_the_class_is_lower_its_users_are_paced_lower() -> None:
    scene = Scene(rule())
    come(scene, 1, IDLE._replace(unacked=300), 10.0, young=True)
    scene.run(0.1, 10.0)
    assert scene.limits[1] == held(2_500_000)
    scene.run(0.1, 20.0)
    assert scene.limits[1] == SocketLimit(5_000_000)


def test_what_went_through_the_class_is_not_charged() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE._replace(unacked=100)
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.do(scene.transitions.follow(10.0))
    scene.observe([subflow(1)], 10.5)  # 145 kB in half a second are less than 5 Mbit/s
    scene.do(scene.transitions.follow(10.5))
    assert ceil_of(scene) == 5_000_000


def test_a_sample_from_before_a_subflow_came_to_the_cap_charges_no_more_than_was_sent() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW, [subflow(1)])
    scene.do(scene.transitions.follow(10.0))
    scene.observe([subflow(1)], 9.0)  # With many joins a second, sockets are listed before the join is known
    scene.do(scene.transitions.follow(10.0))
    assert ceil_of(scene) == 5_000_000


def test_the_first_transition_of_a_cap_is_not_charged_and_later_ones_are() -> None:
    scene = Scene(rule())
    come(scene, 1, FULL_FLIGHT, 10.0, young=False)
    scene.run(2.0, 10.0)
    assert not scene.planner.pending()
    assert ceil_of(scene) == 5_000_000
    scene.tcp[subflow(2)] = FULL_FLIGHT._replace(unacked=0, not_sent=9_000_000)
    scene.planner.set_verdicts(2, [verdict(2, rule())], NOW)
    scene.run(0.1, 30.0)
    scene.tcp[subflow(2)] = FULL_FLIGHT._replace(unacked=1000, not_sent=9_000_000)
    scene.run(0.1, 30.1)
    assert ceil_of(scene) == LOWERED_SHARE * 5_000_000


def test_with_the_allowance_used_up_a_cap_begins_at_once() -> None:
    scene = Scene(rule())
    come(scene, 1, FULL_FLIGHT._replace(unacked=0), 10.0, young=False)
    come(scene, 2, FULL_FLIGHT._replace(unacked=0), 10.0, young=False)
    assert len(scene.planner.pending()) == 2
    scene.tcp[subflow(1)] = FULL_FLIGHT._replace(unacked=10_000)  # Far more than one subflow needs
    scene.run(0.1, 10.02)
    assert not scene.planner.pending(), "neither of them goes on"
    come(scene, 3, FULL_FLIGHT, 11.0, young=False)
    assert not scene.planner.pending()


def test_a_new_policy_begins_without_debts() -> None:
    scene = Scene(rule())
    come(scene, 1, IDLE._replace(unacked=100), 10.0, young=True)
    scene.planner.set_policy(policy(rule()))
    assert ceil_of(scene) == 5_000_000


def test_on_a_subflow_that_began_under_its_cap_little_waits_while_it_may_be_a_short_one() -> None:
    scene = Scene(rule())
    come(scene, 1, IDLE._replace(unacked=1), 10.0, young=True)
    scene.run(SHORT_SECONDS - 0.1, 10.0)
    assert scene.limits[1] == held(5_000_000)
    scene.run(0.2, 10.0 + SHORT_SECONDS)
    assert scene.limits[1] == SocketLimit(5_000_000), "with little here little would wait on the other paths"


def test_samples_that_come_out_of_order_neither_lengthen_nor_shorten_a_debt() -> None:
    owing, cap = OvershootCompensation(), cap_of()
    owing.charge(cap, 500_000, 10.0)
    owing.charge(cap, 0, 9.0)
    assert changed(owing, 10.0) == {7: LOWERED_SHARE}
    assert changed(owing, 10.0 + 0.9 * 0.5 / (1 - LOWERED_SHARE)) == {}
    assert changed(owing, 10.0 + 1.1 * 0.5 / (1 - LOWERED_SHARE)) == {7: None}
