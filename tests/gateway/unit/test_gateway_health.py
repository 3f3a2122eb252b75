# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the verdicts on ways (each is an uplink with one IP version), according to the outcomes of trials."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_gateway.health import (
    DEAD_SECONDS,
    IDLE_SECONDS,
    MAX_CHANGES,
    MAX_FAILURES,
    MIN_ANSWERS,
    MIN_TRIAL_SECONDS,
    SUSPECT_SECONDS,
    HealthWatch,
)
from mptcp_gateway.model import Access, Outcome, Verdict, Way

DSL, LTE, LTE6 = Way("dsl", 4), Way("lte", 4), Way("lte", 6)
DSL_ACCESS = Access("eth0", 2, ip_address("10.0.0.2"), ip_network("10.0.0.0/24"), ip_address("10.0.0.1"))
LTE_ACCESS = Access("wwan0", 3, ip_address("10.1.0.2"), ip_network("10.1.0.0/24"), ip_address("10.1.0.1"))
LTE6_ACCESS = Access("wwan0", 3, ip_address("2001:db8::2"), None, ip_address("fe80::1"))
GOOD, PLAIN, DEAD = (Outcome(verdict) for verdict in (Verdict.GOOD, Verdict.PLAIN, Verdict.DEAD))
REFUSED = Outcome(Verdict.GOOD, unproven=True)
VERSIONS = (4, 6)


def record_outcome(watch: HealthWatch, way: Way, outcome: Outcome, now: float) -> bool:
    return watch.record(way, watch.ways[way].generation, outcome, now)


def watch_with_good_ways(now: float = 0.0) -> HealthWatch:
    """Return a watch with three good ways."""
    watch = HealthWatch()
    watch.update_ways({DSL: DSL_ACCESS, LTE: LTE_ACCESS, LTE6: LTE6_ACCESS}, now)
    for way in list(watch.begin_due_trials(now, VERSIONS)):
        record_outcome(watch, way, GOOD, now)
    return watch


@given(st.lists(st.sampled_from([PLAIN, DEAD]), min_size=1))
def test_verdict_is_the_last_answer_or_dead_after_repeated_failures(outcomes: list[Outcome]) -> None:
    """In this test, the way has never been good."""
    watch, now, expected, failures = HealthWatch(), 0.0, Verdict.UNTRIED, 0
    watch.update_ways({DSL: DSL_ACCESS}, now)
    for outcome in outcomes:
        now = max(now + 61, watch.ways[DSL].next_trial)  # so long after the last trial that damping does not apply
        assert list(watch.begin_due_trials(now, VERSIONS)) == [DSL]
        assert list(watch.begin_due_trials(now + 100, VERSIONS)) == [], "a second trial began during the first"
        before = expected
        failures = failures + 1 if outcome is DEAD else 0
        if outcome is not DEAD or failures >= MAX_FAILURES:
            expected = outcome.verdict
        assert record_outcome(watch, DSL, outcome, now) is (before is not expected)
        assert watch.verdicts == {DSL: expected}
        due = watch.ways[DSL].next_trial
        assert due <= now + DEAD_SECONDS if failures else due == now + IDLE_SECONDS


@given(st.lists(st.tuples(st.sampled_from([DSL, LTE]), st.sampled_from([DEAD, REFUSED])), max_size=30))
def test_uplinks_survive_an_unavailable_parent(outcomes: list[tuple[Way, Outcome]]) -> None:
    """Defect: all endpoints were removed, one after the other."""
    watch, now = watch_with_good_ways(), 0.0
    for way, outcome in outcomes:
        now = max(now, watch.ways[way].next_trial)
        assert list(watch.find_dead(now)) == []
        list(watch.begin_due_trials(now, VERSIONS))
        record_outcome(watch, way, outcome, now + 4)
        watch.mark_suspects({DSL_ACCESS.address, LTE_ACCESS.address}, now + 4)
        assert watch.find_dead(now + 4) == [], "a way was considered dead before another had an answer"
        assert watch.verdicts == dict.fromkeys((DSL, LTE, LTE6), Verdict.GOOD)


def test_ipv6_uplink_does_not_count_for_ipv4() -> None:
    watch = watch_with_good_ways()
    watch.ways[DSL].next_trial = 1
    list(watch.begin_due_trials(1, VERSIONS))
    watch.mark_suspects({DSL_ACCESS.address}, 2)
    watch.find_dead(2)
    assert watch.ways[LTE6].next_trial == IDLE_SECONDS
    watch.ways[LTE6].proven_at = 100
    assert watch.find_dead(5) == []


def test_silent_uplink_is_dead_once_another_has_answered() -> None:
    watch = watch_with_good_ways()
    watch.mark_suspects({DSL_ACCESS.address}, 0.5)
    assert list(watch.begin_due_trials(SUSPECT_SECONDS - 0.1, VERSIONS)) == [], "a lossy way was tried too early"
    assert list(watch.begin_due_trials(SUSPECT_SECONDS, VERSIONS)) == [DSL]
    now = SUSPECT_SECONDS + 1
    assert watch.find_dead(now) == []
    assert list(watch.begin_due_trials(now, VERSIONS)) == [LTE], "the other way was not tried at once"
    record_outcome(watch, LTE, GOOD, now + 0.1)
    assert watch.find_dead(now + 0.1) == [], "the way was considered dead before the parent could answer the second SYN"
    assert watch.find_dead(SUSPECT_SECONDS + MIN_TRIAL_SECONDS) == [DSL]
    assert watch.verdicts[DSL] is Verdict.DEAD
    assert not record_outcome(watch, DSL, DEAD, 6)


def test_uplinks_stay_good_when_the_parent_returns() -> None:
    """The other uplink, which also got no answer while the parent was down, is tried again before it counts as dead."""
    watch, return_time = watch_with_good_ways(), 48.0
    for way in (DSL, LTE):
        watch.ways[way].next_trial, watch.ways[way].failures = 40, 1
    for begin in (40.0, 44.0):
        list(watch.begin_due_trials(begin, (4,)))
        for way in (DSL, LTE):
            record_outcome(watch, way, DEAD, begin + 3)
        assert watch.find_dead(begin + 3) == []
        watch.ways[DSL].next_trial, watch.ways[LTE].next_trial = begin + 4, begin + 4
    watch.ways[DSL].next_trial = return_time + 2
    assert list(watch.begin_due_trials(return_time, (4,))) == [LTE]
    record_outcome(watch, LTE, GOOD, return_time + 0.1)
    assert watch.find_dead(return_time + 0.1) == []
    assert list(watch.begin_due_trials(return_time + 0.1, (4,))) == [DSL], "the other uplink was not tried at once"
    assert watch.find_dead(return_time + 0.2) == []
    record_outcome(watch, DSL, GOOD, return_time + 0.3)
    assert watch.find_dead(return_time + 10) == []


def test_uplink_with_a_short_carrier_loss_recovers() -> None:
    watch = watch_with_good_ways()
    down = {DSL: replace(DSL_ACCESS, carrier=False), LTE: LTE_ACCESS}
    watch.update_ways(down, 5)
    assert watch.find_dead(5) == []
    assert LTE in watch.begin_due_trials(5, VERSIONS)
    record_outcome(watch, LTE, GOOD, 5.1)
    assert watch.find_dead(5.1) == [DSL]
    watch.update_ways({DSL: DSL_ACCESS, LTE: LTE_ACCESS}, 6)
    assert watch.ways[DSL].next_trial == 6
    new = HealthWatch()
    new.update_ways(down, 0)
    assert list(new.ways) == [LTE], "a way without a link was tried"


def test_ip_version_without_a_known_parent_is_not_tried() -> None:
    watch = watch_with_good_ways()
    assert list(watch.begin_due_trials(100, ())) == []
    assert set(watch.begin_due_trials(100, (4,))) == {DSL, LTE}


def test_flapping_uplink_must_answer_several_times() -> None:
    watch, now = HealthWatch(), 0.0
    watch.update_ways({DSL: DSL_ACCESS}, now)
    verdict_changes = []
    outcomes = [PLAIN, DEAD, DEAD, PLAIN, DEAD, DEAD, *[PLAIN] * MIN_ANSWERS]
    for outcome in outcomes:
        now = max(now + 1, min(now + 5, watch.ways[DSL].next_trial))
        watch.ways[DSL].next_trial = now
        list(watch.begin_due_trials(now, VERSIONS))
        verdict_changes.append(record_outcome(watch, DSL, outcome, now))
    assert verdict_changes == [True, False, True, True, False, True, False, False, True]
    assert MAX_CHANGES == 3


def test_returned_link_counts_as_a_new_way() -> None:
    """A link that was removed for a time counts as a new way, even with the same address."""
    watch = watch_with_good_ways()
    watch.ways[DSL].next_trial = 1
    list(watch.begin_due_trials(1, VERSIONS))
    generation = watch.ways[DSL].generation
    watch.update_ways({LTE: LTE_ACCESS}, 1)
    watch.update_ways({DSL: DSL_ACCESS, LTE: LTE_ACCESS}, 1)
    assert watch.verdicts[DSL] is Verdict.UNTRIED
    assert list(watch.begin_due_trials(1, VERSIONS)) == [DSL]
    assert not watch.record(DSL, generation, GOOD, 2), "the outcome of a trial over the earlier link counted"
    assert watch.ways[DSL].in_trial


@pytest.mark.parametrize("before", [Verdict.UNTRIED, Verdict.DEAD])
def test_refusal_proves_that_the_uplink_works(before: Verdict) -> None:
    watch = HealthWatch()
    watch.update_ways({DSL: DSL_ACCESS}, 0)
    watch.ways[DSL].verdict = before
    list(watch.begin_due_trials(0, VERSIONS))
    assert record_outcome(watch, DSL, REFUSED, 1)
    assert watch.verdicts == {DSL: Verdict.GOOD}
