# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the ring of events: numbers without gaps, bounded memory, and an event for each kind of report."""

from __future__ import annotations

import gc
import tracemalloc

from fake_kernel import four_tuple
from hypothesis import given
from hypothesis import strategies as st
from policy_values import a_rule, a_throttle

from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple
from mptcp_throttler.policy.model import Direction, Share, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.telemetry import events
from mptcp_throttler.telemetry.decision import Comparer
from mptcp_throttler.telemetry.events import (
    KINDS,
    MAX_DETAIL,
    MAX_EVENTS,
    MAX_REFUSED_JOINS,
    EventRecorder,
    EventRing,
    RateLimiter,
)
from mptcp_throttler.telemetry.traffic import Traffic

MAX_RING_BYTES = 19_000_000
WIFI = four_tuple("10.1.0.1")
THROTTLE, SLOWER_THROTTLE = (a_throttle(rate, rate, None, Share.PATH) for rate in (5_000_000, 1_000_000))
RULE = a_rule("cap", ("a",), THROTTLE)


@given(st.integers(0, 30), st.integers(0, 40))
def test_event_numbers_have_no_gaps_and_the_oldest_are_dropped(count: int, after: int) -> None:
    ring = EventRing(limit=10)
    for number in range(1, count + 1):
        ring.add(float(number), "closed", detail=str(number))
    found = list(ring.events_after(after))
    assert [each.sequence for each in found] == [each for each in range(ring.first, count + 1) if each > after]
    assert [each.detail for each in found] == [str(each.sequence) for each in found]
    assert (ring.first, ring.last) == (max(1, count - 9), count)


def test_event_is_returned_with_all_its_fields() -> None:
    ring = EventRing()
    ring.add(1.5, "decided", 7, WIFI, "a", "cap", "down", "because")
    ring.add(2.5, "reload")
    first, second = ring.events_after(0)
    assert first == (1, 1.5, "decided", 7, WIFI, "a", "cap", "down", "because")
    assert second == (2, 2.5, "reload", None, None, None, None, None, "")


def test_long_detail_is_cut() -> None:
    ring = EventRing()
    ring.add(1.0, "fault", detail="x" * 10_000)
    (found,) = ring.events_after(0)
    assert len(found.detail) == MAX_DETAIL


def test_full_ring_has_bounded_memory() -> None:
    """All events have different addresses, details and tokens, and there are more events than the ring keeps."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    ring = EventRing()
    for number in range(MAX_EVENTS + MAX_EVENTS // 10):
        octets = number.to_bytes(16, "big")
        address = FourTuple(bytes(octets), 3128, bytes(reversed(octets)), 1_024 + number % 60_000)
        ring.add(1e9 + number / 7, "decided", (1 << 31) + number, address, "lte", "rule", "down", f"{number:0200d}")
    used_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert ring.last - ring.first + 1 == MAX_EVENTS
    assert used_bytes < MAX_RING_BYTES, used_bytes


def test_ring_holds_the_events_of_one_client_for_an_hour() -> None:
    """A connection with two subflows every 1.2 s causes ten events: opened, joined, capped, applied, ended."""
    assert MAX_EVENTS >= 3600 / 1.2 * 10


class Scene:
    """A recorder of events, and the verdicts about one connection."""

    def __init__(self) -> None:
        self.traffic = Traffic(lambda: 0.0, lambda: 0.0)
        self.recorder = EventRecorder(self.traffic, lambda: 0.0)
        self.comparer = Comparer()
        self.verdicts: tuple[Verdict, ...] = ()

    def decide(self, *verdicts: Verdict) -> None:
        decision = self.comparer.compare(7, None, self.verdicts, verdicts, 10.0, is_dry=False)
        self.traffic.record_decision(decision)
        self.recorder.record_decision(decision)
        self.verdicts = verdicts

    @property
    def events(self) -> list[tuple[str, str | None, str | None]]:
        return [(each.kind, each.rule, each.direction) for each in self.recorder.ring.events_after(0)]


def capped(
    throttle: Throttle = THROTTLE, scope: ScopeKey | None = None, direction: Direction = Direction.DOWN
) -> Verdict:
    scope = scope or ScopeKey("cap", Share.PATH, direction=direction)
    return Verdict(WIFI, "a", RULE, scope, throttle, "rule cap caps path a", direction)


UNCAPPED = Verdict(WIFI, "a", None, None, None, "no rule matches")


def test_each_decision_is_recorded_once() -> None:
    scene = Scene()
    scene.decide(UNCAPPED)
    assert scene.events == []
    scene.decide(capped())
    scene.decide(capped())
    assert scene.events == [("decided", "cap", "down")]
    scene.decide(capped(SLOWER_THROTTLE))
    scene.decide(UNCAPPED)
    assert scene.events[1:] == [("decided", "cap", "down"), ("decided", None, "down")]
    scene.decide()
    assert len(scene.events) == 3, "the end of a subflow was recorded as a decision"


def test_balancing_cap_is_recorded_once_even_if_its_rate_changes() -> None:
    scene = Scene()
    balance = ScopeKey("cap", Share.CONNECTION, (7, "a"))
    scene.decide(capped(THROTTLE, balance))
    scene.decide(capped(SLOWER_THROTTLE, balance))
    assert scene.events == [("decided", "cap", "down")]


def test_entries_are_recorded_as_applied_or_lifted_caps() -> None:
    scene = Scene()
    scene.decide(capped(), capped(direction=Direction.UP))
    scene.recorder.record_entries(Direction.DOWN, [WIFI], True, 11.0)
    scene.recorder.record_entries(Direction.UP, [WIFI], True, 11.0)
    scene.decide(UNCAPPED)
    scene.recorder.record_entries(Direction.DOWN, [WIFI], False, 12.0)
    assert scene.events[2:] == [
        ("applied", "cap", "down"),
        ("applied", "cap", "up"),
        ("decided", None, "down"),
        ("lifted", None, "down"),
    ]
    scene.decide()
    scene.recorder.record_entries(Direction.DOWN, [WIFI], False, 13.0)
    assert len(scene.events) == 6, "the removal of an ended subflow's entry was recorded"
    # This entry selects the default class for an uncapped subflow that inherited the class of a cap.
    scene.decide(UNCAPPED)
    scene.recorder.record_entries(Direction.DOWN, [WIFI], True, 14.0)
    assert scene.events[-1] == ("lifted", None, "down")


def test_tracker_events_are_recorded_by_kind() -> None:
    scene = Scene()
    scene.recorder.record_tracker_events([Event(kind, 5.0, 7, WIFI, "because") for kind in EventKind])
    found = list(scene.recorder.ring.events_after(0))
    assert {each.time for each in found} == {5.0}
    assert [each.kind for each in found] == ["connection", "closed", "subflow", "subflow", "closed", "fault", "fault"]
    assert found[-2].detail == "join refused: because"


def test_flood_of_refused_joins_does_not_displace_other_events() -> None:
    scene = Scene()
    flood = [Event(EventKind.JOIN_REFUSED, 60.0 + number / 100, 0, WIFI, "unknown token") for number in range(1_000)]
    scene.recorder.record_tracker_events(flood)
    assert len(scene.events) == MAX_REFUSED_JOINS
    scene.recorder.record_tracker_events([Event(EventKind.JOIN_REFUSED, 120.0, 0, WIFI, "unknown token")])
    assert len(scene.events) == MAX_REFUSED_JOINS + 1


def test_list_of_kinds_is_complete() -> None:
    assert len(set(KINDS)) == 12
    assert {getattr(events, kind.upper()) for kind in KINDS} == set(KINDS)


def test_rate_limiter_allows_a_number_per_minute() -> None:
    limiter = RateLimiter(2)
    times = [60.0, 61.0, 119.9, 120.0, 120.0, 121.0, 300.0]
    assert [limiter.allow(now) for now in times] == [True, True, False, True, True, False, True]
