"""Which ways are alive, as trials say."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_gateway.health import DEAD_SECONDS, FAILURES, IDLE_SECONDS, SUSPECT_SECONDS, HealthWatch
from mptcp_gateway.model import Access, Outcome, Verdict, Way

DSL = Way("dsl", 4)
ACCESS = Access("eth0", 2, ip_address("10.0.0.2"), ip_network("10.0.0.0/24"), ip_address("10.0.0.1"))
GOOD, PLAIN, DEAD = (Outcome(verdict) for verdict in (Verdict.GOOD, Verdict.PLAIN, Verdict.DEAD))


@pytest.fixture
def watch() -> HealthWatch:
    watch = HealthWatch()
    watch.follow({DSL: ACCESS}, 0.0)
    return watch


@given(st.lists(st.sampled_from([GOOD, PLAIN, DEAD]), min_size=1))
def test_dead_after_so_many_failures_and_else_what_the_last_answer_said(outcomes: list[Outcome]) -> None:
    watch, now, expected, failures = HealthWatch(), 0.0, Verdict.UNTRIED, 0
    watch.follow({DSL: ACCESS}, now)
    for outcome in outcomes:
        now = watch.ways[DSL].due
        assert list(watch.due(now)) == [DSL]
        assert list(watch.due(now + 100)) == [], "one trial at a time"
        before = expected
        failures = failures + 1 if outcome is DEAD else 0
        if outcome is not DEAD or failures >= FAILURES:
            expected = outcome.verdict
        assert watch.take(DSL, ACCESS, outcome, now) is (before is not expected)
        assert watch.verdicts == {DSL: expected}
        due = watch.ways[DSL].due
        assert due <= now + DEAD_SECONDS if failures else due == now + IDLE_SECONDS


def test_a_connection_that_sends_again_is_a_reason_to_try(watch: HealthWatch) -> None:
    assert list(watch.due(0)) == [DSL]
    watch.take(DSL, ACCESS, GOOD, 0)
    watch.suspect({ACCESS.address}, 0.5)
    assert list(watch.due(SUSPECT_SECONDS - 0.1)) == [], "not all the time on a lossy way"
    assert list(watch.due(SUSPECT_SECONDS)) == [DSL]
    assert watch.take(DSL, ACCESS, DEAD, 5), "two that have no answer"
    assert watch.verdicts == {DSL: Verdict.DEAD}


def test_another_address_is_another_way(watch: HealthWatch) -> None:
    watch.due(0)
    watch.take(DSL, ACCESS, GOOD, 0)
    other = Access("eth0", 2, ip_address("10.0.0.3"), ACCESS.network, ACCESS.gateway)
    watch.follow({DSL: other}, 1)
    assert watch.verdicts == {DSL: Verdict.UNTRIED}
    assert list(watch.due(1)) == [DSL]
    assert not watch.take(DSL, ACCESS, GOOD, 2), "the outcome of the other one's trial"
    assert watch.verdicts == {DSL: Verdict.UNTRIED}
    watch.follow({}, 3)
    assert watch.verdicts == {}
