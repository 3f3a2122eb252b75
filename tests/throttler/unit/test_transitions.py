# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the transitions of one planner: the limits of each subflow, and when its cap is in the plan."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from policy_values import a_throttle, replace
from test_rate_transition import IDLE, MUCH_IN_FLIGHT
from test_shaping_plan import NOW, policy, rule, subflow, throttle, uncapped, verdict

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo
from mptcp_throttler.policy.model import Onset, Rule, Share
from mptcp_throttler.shaping.model import NO_LIMIT, Ownership, SocketLimit
from mptcp_throttler.shaping.onset import downloads
from mptcp_throttler.shaping.onset.downloads import (
    FIRST_CHECK_SECONDS,
    MAX_UNSAMPLED_SECONDS,
    DownloadOnsets,
    SocketChanges,
)
from mptcp_throttler.shaping.onset.share import HEADROOM, max_min_level
from mptcp_throttler.shaping.plan import Planner


def soft_planner(*rules: Rule) -> Planner:
    planner = Planner(Ownership())
    planner.soft_caps = True
    planner.set_policy(policy(*rules))
    planner.prepare_path_classes(NOW)
    return planner


def test_entry_of_a_soft_cap_is_created_after_the_transition() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    assert planner.pending() == [subflow(1)]
    assert not planner.entries.desired
    planner.complete(subflow(1))
    assert set(planner.entries.desired) == {subflow(1)}
    assert not planner.pending()
    planner.complete(subflow(2))
    assert set(planner.entries.desired) == {subflow(1)}


def test_subflow_that_ends_in_a_transition_gets_no_entry() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.set_verdicts(1, (), NOW)
    assert not planner.pending()
    planner.complete(subflow(1))
    assert not planner.entries.desired


def test_entry_of_a_killed_daemon_needs_no_transition() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.complete(subflow(1))
    classes, entries = dict(planner.classes.desired), dict(planner.entries.desired)
    successor = Planner(planner.ownership)
    successor.soft_caps = True
    successor.set_policy(policy(rule()))
    successor.adopt(classes, entries)
    successor.set_verdicts(1, [verdict(1, rule())], NOW)
    assert not successor.pending()
    assert set(successor.entries.desired) == {subflow(1)}


def test_lower_cap_changes_its_class_after_all_transitions() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule()), verdict(2, rule())], NOW)
    for number in (1, 2):
        planner.complete(subflow(number))
    lower = rule(cap=throttle(1_000_000))
    planner.set_policy(policy(lower))
    planner.set_verdicts(1, [verdict(1, lower), verdict(2, lower)], NOW)
    rates = [spec.rate for spec in planner.classes.desired.values()]
    assert rates == [5_000_000]
    assert set(planner.pending()) == {subflow(1), subflow(2)}
    planner.complete(subflow(1))
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000]
    planner.complete(subflow(2))
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]
    planner.set_policy(policy(rule()))
    assert [spec.rate for spec in planner.classes.desired.values()] == [5_000_000], (
        "a higher cap did not apply immediately"
    )


def test_lower_cap_changes_its_class_when_pending_users_end() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.complete(subflow(1))
    planner.set_policy(policy(rule(cap=throttle(1_000_000))))
    planner.set_verdicts(1, (), NOW)
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]


def test_cap_that_starts_at_once_has_no_transition() -> None:
    immediate = rule(cap=a_throttle(5_000_000, 5_000_000, None, Share.PATH, Onset.IMMEDIATE))
    planner = soft_planner(immediate)
    planner.set_verdicts(1, [verdict(1, immediate)], NOW)
    assert set(planner.entries.desired) == {subflow(1)}
    assert planner.soft_cap(subflow(1)) is None


class Scene:
    """A planner and its transitions with simulated sockets."""

    def __init__(self, *rules: Rule, applies_limits: bool = True) -> None:
        self.planner = soft_planner(*rules)
        self.transitions = DownloadOnsets(self.planner)
        self.tcp: dict[FourTuple, TcpInfo] = {}
        self.cookies: dict[FourTuple, int] = {}
        self.limits: dict[int, SocketLimit] = {}
        self.applies_limits = applies_limits
        self.stalled: set[FourTuple] = set()
        self.acked: dict[FourTuple, int] = {}
        self.plan_changes = self.urgent_changes = 0
        self.sampled = 0

    def sample(self, four_tuple: FourTuple, read: float) -> KernelSubflow | None:
        tcp = self.tcp.get(four_tuple)
        if tcp is None:
            return None
        cookie = self.cookies.get(four_tuple, four_tuple.remote[-1])
        limit = self.limits.get(cookie, NO_LIMIT)
        if self.applies_limits and limit.rate is not None:
            tcp = tcp._replace(max_pacing_rate=limit.rate, pacing_rate=limit.rate, not_sent=limit.not_sent or 50_000)
        if four_tuple not in self.stalled:
            self.acked[four_tuple] = self.acked.get(four_tuple, 0) + 1448
        acked = self.acked.get(four_tuple, 0)
        return KernelSubflow(1, four_tuple, True, 0, 0, False, read, acked, cookie=cookie, tcp=tcp)

    def perform(self, changes: SocketChanges) -> None:
        self.limits |= changes.limits
        for cookie in changes.dropped:
            self.limits.pop(cookie, None)
        self.plan_changes += changes.plan_changed
        self.urgent_changes += changes.is_urgent

    def observe(self, queried: Iterable[FourTuple], now: float, read: float | None = None) -> None:
        """Sample the sockets *queried*. *read*: the time when the sockets were read (default *now*)."""
        requested = list(queried)
        read = now if read is None else read
        samples = {each: sample for each in requested if (sample := self.sample(each, read)) is not None}
        self.sampled += len(requested)
        for changes in self.transitions.observe(requested, samples, now):
            self.perform(changes)

    def watched(self) -> list[FourTuple]:
        return [four_tuple for cap in self.planner.shared_soft_caps() for four_tuple in cap.users]

    def run(self, seconds: float, start: float = 0.0) -> None:
        now = start
        while now < start + seconds:
            self.perform(self.transitions.process_plan_changes(now))
            self.observe(self.transitions.urgent(), now)
            self.observe(self.watched(), now)
            now += 0.02
            for four_tuple, tcp in self.tcp.items():
                self.tcp[four_tuple] = tcp._replace(not_sent=max(0, tcp.not_sent - 250_000))


def test_subflow_with_much_data_in_flight_is_capped_within_a_second() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.5)
    assert not scene.planner.entries.desired
    scene.run(0.5, start=0.5)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    scene.run(1.0, start=1.0)
    assert scene.limits == {1: SocketLimit(5_000_000)}
    assert scene.plan_changes == 1


def test_idle_subflow_is_capped_and_paced_immediately() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    assert scene.limits == {1: SocketLimit(5_000_000)}


@pytest.mark.parametrize("has_cap", [True, False])
def test_resting_subflow_is_used_immediately_after_its_rest(has_cap: bool) -> None:
    """With a limit of 0, the scheduler gives the subflow no data.

    Since the subflow is then idle, a new limit must take effect immediately.
    """
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    verdict_without_rest = verdict(1, rule()) if has_cap else uncapped(1, rule())
    scene.planner.set_verdicts(1, [verdict_without_rest], NOW)
    scene.run(0.1)
    scene.planner.set_verdicts(1, [replace(verdict_without_rest, rests=True)], NOW)
    scene.run(0.1)
    assert scene.limits == {1: SocketLimit(0, 1)}
    assert scene.urgent_changes
    assert (subflow(1) in scene.planner.entries.desired) is has_cap
    scene.urgent_changes = 0
    scene.planner.set_verdicts(1, [verdict_without_rest], NOW)
    scene.perform(scene.transitions.process_plan_changes(1.0))
    assert scene.limits == {1: SocketLimit(5_000_000) if has_cap else NO_LIMIT}
    assert scene.urgent_changes
    scene.planner.set_verdicts(1, [replace(verdict_without_rest, rests=True)], NOW)
    scene.run(0.1)
    scene.urgent_changes = 0
    scene.planner.set_verdicts(1, (), NOW)
    scene.perform(scene.transitions.process_plan_changes(2.0))
    assert not scene.planner.rests(subflow(1))
    scene.tcp.clear()
    scene.planner.expire(NOW + 1000)
    scene.run(1.0, start=3.0)
    assert not scene.limits


def test_new_subflow_without_a_cap_does_not_stay_at_rest() -> None:
    scene = Scene(rule())
    scene.planner.joins_rest = True
    scene.tcp[subflow(1)] = IDLE._replace(max_pacing_rate=0)
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW, {subflow(1)})
    scene.run(0.1)
    assert scene.limits == {1: NO_LIMIT}
    assert scene.urgent_changes


def test_subflow_without_a_socket_is_capped_immediately() -> None:
    scene = Scene(rule())
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    assert set(scene.planner.entries.desired) == {subflow(1)}


def test_socket_that_applies_no_limit_is_capped() -> None:
    scene = Scene(rule(), applies_limits=False)
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(1.0)
    assert set(scene.planner.entries.desired) == {subflow(1)}
    scene.run(1.0, start=1.0)
    assert scene.limits == {1: SocketLimit(5_000_000)}, "the limit was removed, although the socket may apply it later"


def test_subflow_that_loses_its_cap_loses_its_limit() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(1.0)
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.run(0.01, start=1.0)
    assert scene.limits == {1: NO_LIMIT}
    scene.run(0.01, start=1.0 + FIRST_CHECK_SECONDS)
    assert scene.limits == {}


def test_released_idle_socket_is_sampled_at_growing_intervals() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.applies_limits = False
    scene.tcp[subflow(1)] = IDLE._replace(max_pacing_rate=5_000_000)
    scene.perform(scene.transitions.process_plan_changes(1.0))
    before = scene.sampled
    for second in range(1, 301):
        scene.perform(scene.transitions.process_plan_changes(float(second)))
        scene.observe(scene.transitions.urgent(), float(second))
    assert scene.sampled - before <= 12
    assert scene.limits == {1: NO_LIMIT}


def test_new_socket_on_a_port_does_not_get_the_limit_of_the_old_socket() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.run(0.01)
    scene.cookies[subflow(1)] = 77
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.planner.set_verdicts(2, [verdict(1, rule())], NOW)
    scene.run(0.05, start=1.0)
    assert scene.limits == {77: SocketLimit(5_000_000)}


def test_simultaneous_subflows_get_equal_shares() -> None:
    scene = Scene(rule())
    verdicts = [verdict(number, rule()) for number in range(1, 11)]
    for each in verdicts:
        scene.tcp[each.four_tuple] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, verdicts, NOW)
    scene.run(1.0)
    assert len(scene.planner.entries.desired) == 10
    scene.run(4.0, start=1.0)
    assert {limit.rate for limit in scene.limits.values()} == {round(500_000 * HEADROOM)}


def test_level_of_a_cap_is_computed_once_for_all_new_subflows(monkeypatch: pytest.MonkeyPatch) -> None:
    user_counts: list[int] = []

    def count_users(ceil: int, demands: list[int | None]) -> int:
        user_counts.append(len(demands))
        return max_min_level(ceil, demands)

    monkeypatch.setattr(downloads, "max_min_level", count_users)
    scene = Scene(rule())
    tuples = [FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\1\0\1", 1024 + number) for number in range(2000)]
    for number, each in enumerate(tuples):
        scene.planner.set_verdicts(number, [replace(verdict(1, rule()), four_tuple=each)], NOW)
    scene.perform(scene.transitions.process_plan_changes(0.0))
    samples = {
        each: KernelSubflow(1, each, True, 0, 0, False, 0.0, cookie=number + 1, tcp=IDLE)
        for number, each in enumerate(tuples)
    }
    for limits in scene.transitions.observe(tuples, samples, 0.0):
        scene.perform(limits)
    assert len(scene.planner.entries.desired) == 2000
    assert user_counts == [2000], "the level was not computed exactly once"


def test_subflow_without_samples_is_capped_after_the_timeout() -> None:
    scene = Scene(rule())
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.perform(scene.transitions.process_plan_changes(0.0))
    scene.perform(scene.transitions.handle_failed_sampling(MAX_UNSAMPLED_SECONDS / 2))
    assert not scene.planner.entries.desired
    scene.perform(scene.transitions.handle_failed_sampling(MAX_UNSAMPLED_SECONDS + 0.1))
    assert set(scene.planner.entries.desired) == {subflow(1)}


def test_caps_begin_immediately_if_limits_are_refused() -> None:
    scene = Scene(rule())
    for number in (1, 2):
        scene.tcp[subflow(number)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule()), verdict(2, rule())], NOW)
    scene.run(0.1)
    assert not scene.planner.entries.desired
    scene.transitions.handle_refusal()
    assert set(scene.planner.entries.desired) == {subflow(1), subflow(2)}


def test_remaining_subflow_may_use_the_whole_cap() -> None:
    scene = Scene(rule())
    for number in (1, 2):
        scene.tcp[subflow(number)] = MUCH_IN_FLIGHT
        scene.planner.set_verdicts(number, [verdict(number, rule())], NOW)
    scene.run(5.0)
    assert scene.limits[1].rate == round(2_500_000 * HEADROOM)
    scene.planner.set_verdicts(2, (), NOW)
    scene.run(0.1, start=5.0)
    assert scene.limits[1].rate == 5_000_000


def test_lower_cap_does_not_wait_for_new_subflows() -> None:
    planner = soft_planner(rule())
    planner.set_verdicts(1, [verdict(1, rule())], NOW)
    planner.complete(subflow(1))
    lower = rule(cap=throttle(1_000_000))
    planner.set_policy(policy(lower))
    planner.set_verdicts(1, [verdict(1, lower)], NOW)
    planner.set_verdicts(2, [verdict(2, lower)], NOW)
    planner.complete(subflow(1))
    assert planner.pending() == [subflow(2)]
    assert [spec.rate for spec in planner.classes.desired.values()] == [1_000_000]


def test_subflow_in_a_transition_to_another_cap_keeps_the_old_cap() -> None:
    first_rule, other_rule = rule("one"), rule("other", cap=throttle(1_000_000))
    scene = Scene(first_rule)
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, first_rule)], NOW)
    scene.run(2.0)
    (entry,) = scene.planner.entries.desired.values()
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT
    scene.planner.set_policy(policy(other_rule))
    scene.planner.set_verdicts(1, [verdict(1, other_rule)], NOW)
    scene.planner.expire(NOW)
    scene.run(0.1, start=2.0)
    assert scene.planner.entries.desired == {subflow(1): entry}
    assert entry.minor in scene.planner.classes.desired
    assert scene.limits[1].rate is not None
    assert scene.limits[1].rate <= 5_000_000, "during the transition, the limit is above the old cap"
    scene.run(2.0, start=2.1)
    (new_entry,) = scene.planner.entries.desired.values()
    assert new_entry.minor != entry.minor
    scene.planner.expire(NOW)
    assert set(scene.planner.classes.desired) == {new_entry.minor}


def test_subflow_that_loses_and_gets_its_cap_between_slices_restarts_the_transition() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = IDLE
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.perform(scene.transitions.process_plan_changes(0.0))
    subflows = [subflow(1), *(FourTuple(b"\x0a\0\0\1", 3128, b"\x0a\2\0\1", port) for port in range(2000))]
    sample = scene.sample(subflow(1), 0.0)
    assert sample is not None
    slices = scene.transitions.observe(subflows, {subflow(1): sample}, 0.0)
    scene.perform(next(slices))
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.perform(scene.transitions.process_plan_changes(0.0))
    scene.planner.set_verdicts(2, [verdict(1, rule())], NOW)
    scene.perform(scene.transitions.process_plan_changes(0.0))
    for limits in slices:
        scene.perform(limits)
    scene.run(0.1, start=0.1)
    assert scene.limits == {1: SocketLimit(5_000_000)}


def test_transition_does_not_use_samples_from_before_the_cap() -> None:
    scene = Scene(rule())
    scene.tcp[subflow(1)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(1, [verdict(1, rule())], NOW)
    scene.perform(scene.transitions.process_plan_changes(10.0))
    scene.observe([subflow(1)], 10.01, read=9.0)
    scene.acked[subflow(1)] = 18_750_000
    assert list(scene.transitions.urgent()) == [subflow(1)]
    scene.observe([subflow(1)], 10.02, read=10.02)
    scene.observe([subflow(1)], 10.04, read=10.04)
    assert scene.planner.pending() == [subflow(1)]


@pytest.mark.parametrize("slice_number", range(12))
def test_policy_can_change_between_any_two_slices(slice_number: int) -> None:
    first_rule, other_rule = rule("one"), rule("other")
    scene = Scene(first_rule, other_rule)
    first_verdicts = [verdict(number, first_rule) for number in range(1, 3)]
    other_verdicts = [verdict(number, other_rule) for number in range(10, 310)]
    scene.planner.set_verdicts(1, first_verdicts, NOW)
    scene.planner.set_verdicts(2, other_verdicts, NOW)
    four_tuples = [each.four_tuple for each in (*first_verdicts, *other_verdicts)]
    scene.tcp = dict.fromkeys(four_tuples, IDLE)
    while scene.planner.changed_subflows:
        scene.perform(scene.transitions.process_plan_changes(10.0))
    samples = {each: sample for each in four_tuples if (sample := scene.sample(each, 10.0)) is not None}
    for number, limits in enumerate(scene.transitions.observe(four_tuples, samples, 10.0)):
        scene.perform(limits)
        if number == slice_number:
            scene.planner.set_policy(policy(first_rule, other_rule))
            scene.perform(scene.transitions.process_plan_changes(10.0))
    scene.run(0.1, 10.1)
    assert not scene.planner.pending()
