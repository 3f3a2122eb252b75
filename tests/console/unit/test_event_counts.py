# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the counts of events by kind: for a whole hour, in constant memory."""

from __future__ import annotations

import tracemalloc

from mptcp_console.event_counts import MAX_KINDS, OTHERS, EventCounts
from mptcp_console.history import COARSE_STEP, SPAN

START = 1_795_000_000
"""The start of a slot."""


def test_events_are_counted_by_kind_and_time() -> None:
    counts = EventCounts()
    for time, kind in ((START, "applied"), (START + 9.9, "applied"), (START + 10, "lifted"), (START + 30, "applied")):
        counts.add(time, kind)
    found = counts.between(START + 5, START + 15)
    assert (found.first, found.last) == (START, START + 20)
    assert found.kinds == {"applied": 2, "lifted": 1}
    assert counts.between(START + 20, START + 25).kinds == {}


def test_late_event_is_counted_at_its_time() -> None:
    counts = EventCounts()
    counts.add(START + 100, "applied")
    counts.add(START, "applied")
    assert counts.between(START, START).kinds == {"applied": 1}


def test_counts_are_dropped_after_an_hour() -> None:
    counts = EventCounts()
    counts.add(START, "applied")
    counts.add(START + SPAN - 1, "applied")
    assert counts.between(START, START).kinds == {"applied": 1}
    counts.add(START + SPAN, "lifted")
    assert counts.between(START, START).kinds == {}
    assert counts.between(START, START + 2 * SPAN).kinds == {}
    assert counts.between(START + 1, START + SPAN).kinds == {"applied": 1, "lifted": 1}
    counts.add(START, "applied")
    assert counts.between(START + SPAN, START + SPAN).kinds == {"lifted": 1}


def test_counting_continues_after_the_clock_is_set_back() -> None:
    counts = EventCounts()
    counts.add(START + 24 * SPAN, "applied")
    counts.forget_after(START)
    counts.add(START, "lifted")
    assert counts.between(START, START).kinds == {"lifted": 1}
    assert counts.between(START, START + 24 * SPAN).kinds == {}
    counts.forget_after(START + COARSE_STEP)
    assert counts.between(START, START).kinds == {"lifted": 1}


def test_memory_is_bounded_for_many_events_and_kinds() -> None:
    counts = EventCounts()
    tracemalloc.start()
    try:
        for second in range(START, START + 2 * SPAN, 5):
            for number in range(2 * MAX_KINDS):
                counts.add(second, f"kind-{number}")
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kinds = counts.between(START + 2 * SPAN - 10, START + 2 * SPAN - 1).kinds
    assert len(kinds) == MAX_KINDS
    # Two steps of 5 s in a slot; all but the first MAX_KINDS - 1 kinds count as others.
    assert kinds[OTHERS] == 2 * (MAX_KINDS + 1)
    assert size < 200_000
