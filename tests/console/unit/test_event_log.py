# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for events: they are kept for an hour in bounded memory, and can be filtered by their fields."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from mptcp_console import event_log
from mptcp_console.event_log import MAX_TEXT_CHARACTERS, SPAN, EventFilter, EventLog

NOW = 1_795_000_000.0


def event(time: float = NOW, **fields: Any) -> dict[str, Any]:
    return {"seq": 1, "time": time, "kind": "applied", "text": "a cap", **fields}


def texts(log: EventLog, event_filter: EventFilter | None = None, limit: int = 100) -> list[str]:
    return [json.loads(each.text)["text"] for each in log.newest(event_filter or EventFilter(), limit)[0]]


def test_newest_events_are_kept_and_complete_since_a_known_time() -> None:
    log = EventLog(limit=3)
    for number in range(3):
        log.add(event(NOW + number, text=str(number)))
    assert log.since is None
    log.add(event(NOW + 3, text="3"))
    assert texts(log) == ["1", "2", "3"]
    assert log.since == NOW + 1


def test_counts_outlast_dropped_events() -> None:
    """Defect: if there were many events, nothing was known about a time ten minutes ago."""
    log = EventLog(limit=3)
    log.mark_missing_before(NOW - 100)
    for number in range(50):
        log.add(event(NOW + number, kind="applied" if number % 2 else "lifted"))
    assert len(log) == 3
    assert log.counts.between(NOW, NOW + 49).kinds == {"applied": 25, "lifted": 25}
    assert (log.since, log.counted_since) == (NOW + 47, NOW - 100)


def test_complete_since_is_within_the_last_hour() -> None:
    """Defect: without any event, the page showed that the list of events was complete from the beginning."""
    log = EventLog()
    log.mark_missing_before(NOW - 2 * SPAN)
    log.forget(NOW)
    assert (log.since, log.counted_since) == (NOW - SPAN, NOW - SPAN)
    log.mark_missing_before(NOW)
    log.forget(NOW + 10)
    assert (log.since, log.counted_since) == (NOW, NOW)
    log.forget(NOW - 500)
    assert (log.since, log.counted_since) == (NOW - 500, NOW - 500)


def test_nearest_events_are_in_order_and_more_are_reported() -> None:
    """Defect: of too many events around a time, the latest were returned instead of the nearest."""
    log = EventLog()
    for number in range(100):
        log.add(event(NOW + number, text=str(number)))
    found, has_more = log.nearest(EventFilter(first=NOW + 20, last=NOW + 60), NOW + 40.4, 3)
    assert [json.loads(each.text)["text"] for each in found] == ["39", "40", "41"]
    assert has_more
    found, has_more = log.nearest(EventFilter(first=NOW + 39, last=NOW + 41), NOW + 40.4, 3)
    assert [each.time for each in found] == [NOW + 39, NOW + 40, NOW + 41]
    assert not has_more


class CountingTime(float):
    """A time that counts how often it is compared with another time."""

    comparisons = 0

    def __rsub__(self, other: float) -> float:
        self.comparisons += 1
        return other - float(self)

    def __gt__(self, other: float) -> bool:
        self.comparisons += 1
        return float(self) > other


def test_nearest_compares_only_events_around_the_time() -> None:
    """Defect: a request computed the distances of all 40,000 events, and all other requests waited for that."""
    log = EventLog()
    for number in range(5000):
        log.add(event(NOW + number))
    time = CountingTime(NOW + 2500)
    found, has_more = log.nearest(EventFilter(), time, 3)
    assert ([each.time for each in found], has_more) == ([NOW + 2499, NOW + 2500, NOW + 2501], True)
    assert 0 < time.comparisons < 30


def test_nearest_checks_only_events_of_the_span(monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog()
    for number in range(5000):
        log.add(event(NOW + number))
    search_sizes = record_searches(monkeypatch)
    span = EventFilter(first=NOW + 2490, last=NOW + 2510, client="10.0.0.1")
    assert log.nearest(span, NOW + 2500, 3) == ([], False)
    assert search_sizes == [21]


def test_newest_checks_events_in_batches_until_enough_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: each event was checked by its own function call. If no event matched, 40,000 calls took 10 ms."""
    log = EventLog()
    for number in range(3500):
        log.add(event(NOW + number))
    search_sizes = record_searches(monkeypatch)
    assert log.newest(EventFilter(client="10.0.0.1"), 10) == ([], False)
    assert search_sizes == [1000, 1000, 1000, 500]
    search_sizes.clear()
    assert len(log.newest(EventFilter(), 10)[0]) == 10
    assert search_sizes == [1000]
    search_sizes.clear()
    assert len(log.newest(EventFilter(after=3490), 100)[0]) == 10
    assert search_sizes == [10]


def record_searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that records how many events each search step compares."""
    sizes: list[int] = []
    real = EventFilter.matching

    def matching(event_filter: EventFilter, events: list[event_log.LoggedEvent]) -> list[event_log.LoggedEvent]:
        sizes.append(len(events))
        return real(event_filter, events)

    monkeypatch.setattr(EventFilter, "matching", matching)
    return sizes


@pytest.mark.parametrize("seed", range(100))
def test_nearest_agrees_with_a_full_search_under_clock_changes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is set forward and back, and old events are dropped."""
    monkeypatch.setattr(event_log, "_MAX_DROPPED", 5)
    rng = random.Random(seed)
    log = EventLog(limit=rng.randint(1, 40))
    now = NOW
    for _ in range(rng.randint(0, 120)):
        now += rng.choice([0, 0.5, 1, 1, 1, 1, 1, 1, rng.randint(-5000, 5000)])
        log.add(event(now - rng.choice([0, 0, 0, 0.3]), client=rng.choice(["10.0.0.1", "10.0.0.2"])))
        if rng.random() < 0.1:
            log.forget(now)
    existing = log.newest(EventFilter(), 1000)[0]
    for _ in range(20):
        event_filter = EventFilter(
            after=rng.choice([0, rng.randint(0, log.serial)]),
            first=rng.choice([None, now - rng.randint(0, 50)]),
            last=rng.choice([None, now - rng.randint(0, 10)]),
            client=rng.choice([None, "10.0.0.1"]),
        )
        time, limit = now - rng.randint(-5, 50), rng.randint(1, 10)
        found, has_more = log.nearest(event_filter, time, limit)
        matching_events = event_filter.matching(existing)
        assert set(found) <= set(matching_events)
        assert [each.serial for each in found] == sorted({each.serial for each in found})
        distances = sorted(abs(each.time - time) for each in matching_events)
        assert sorted(abs(each.time - time) for each in found) == distances[:limit]
        assert has_more == (len(matching_events) > limit)


def test_dropped_events_are_removed_from_the_time_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_MAX_DROPPED", 5)
    log = EventLog(limit=10)
    for number in range(100):
        log.add(event(NOW + number))
        assert len(log._by_time) <= 15
    log.forget(NOW + 2 * SPAN)
    assert log._by_time == []
    assert log.nearest(EventFilter(), NOW, 5) == ([], False)


def test_bytes_of_kept_events_are_bounded() -> None:
    log = EventLog(max_bytes=10_000)
    for _ in range(1000):
        log.add(event(text="ä" * 5000, rule="r" * 5000))
    assert log.bytes <= 10_000
    assert 0 < len(log) < 30
    assert log.bytes == sum(len(each.text) for each in log.newest(EventFilter(), 1000)[0])
    assert len(texts(log)[0]) == MAX_TEXT_CHARACTERS


def test_events_are_forgotten_after_an_hour() -> None:
    log = EventLog()
    log.add(event(NOW, text="old"))
    log.add(event(NOW + 10, text="new"))
    log.forget(NOW + SPAN + 5)
    assert texts(log) == ["new"]
    assert log.bytes == len(log.newest(EventFilter(), 1)[0][0].text)


FILTERS = {
    "kind": EventFilter(kind="applied"),
    "token": EventFilter(token="00000001"),
    "client": EventFilter(client="10.0.0.1"),
    "rule": EventFilter(rule="a"),
    "first": EventFilter(first=NOW + 1),
    "last": EventFilter(last=NOW - 1),
}


@pytest.mark.parametrize("name", FILTERS)
def test_events_are_filtered_by_each_field(name: str) -> None:
    log = EventLog()
    matching_fields = {
        "time": NOW + 1 if name == "first" else NOW - 1,
        "token": "00000001",
        "client": "10.0.0.1",
        "rule": "a",
    }
    other_fields = {
        "time": NOW - 1 if name == "first" else NOW + 1,
        "token": "00000002",
        "client": "10.0.0.2",
        "rule": "b",
    }
    log.add(event(kind="applied", text="right", **matching_fields))  # type: ignore[arg-type]
    log.add(event(kind="lifted", text="wrong", **other_fields))  # type: ignore[arg-type]
    assert texts(log, FILTERS[name]) == ["right"]


def test_newest_events_report_that_there_are_more() -> None:
    log = EventLog()
    for number in range(5):
        log.add(event(text=str(number)))
    found, has_more = log.newest(EventFilter(), 2)
    assert [each.serial for each in found] == [4, 5]
    assert has_more
    assert not log.newest(EventFilter(), 5)[1]
    assert [each.serial for each in log.newest(EventFilter(after=3), 5)[0]] == [4, 5]


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        {"time": "now", "text": ""},
        {"time": 1.0},
        {"time": 1.0, "text": None},
        {"time": float("nan"), "text": ""},
        {"time": -1.0, "text": ""},
        {"time": float("inf"), "text": ""},
    ],
    ids=["empty", "time-as-text", "no-text", "text-none", "time-nan", "time-negative", "time-infinite"],
)
def test_malformed_event_is_not_kept(malformed: dict[str, Any]) -> None:
    log = EventLog()
    log.add(malformed)
    assert len(log) == 0
