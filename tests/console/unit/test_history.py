# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for values over time: which values are kept, how they are merged, and that their size stays small."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_console.history import (
    COARSE_SLOTS,
    COARSE_STEP,
    FINE_SLOTS,
    MAX_TRACKS,
    SPAN,
    Tracks,
    highest,
    latest,
    mean,
)

START = 1_795_000_000


def values(tracks: Tracks, step: int = 1, first: int = 0, last: int = 1 << 40) -> dict[object, dict[int, float]]:
    """Return the kept values by the second at which each begins."""
    window = tracks.window(first, last, step)
    return {
        key: {window.first + index * step: value for index, value in enumerate(row) if value is not None}
        for key, row in window
    }


def test_value_is_valid_from_its_second_until_now() -> None:
    tracks = Tracks()
    tracks.advance(START)
    tracks.put("a", START, 5)
    tracks.advance(START + 5)
    tracks.put("a", START + 3, 7)
    assert values(tracks) == {"a": {START: 5, START + 3: 7, START + 4: 7, START + 5: 7}}


def test_values_older_than_ten_minutes_are_merged_to_ten_seconds() -> None:
    tracks = Tracks()
    for second in range(START, START + SPAN):
        tracks.advance(second)
        tracks.put("mean", second, second % 10, mean)
        tracks.put("last", second, second % 10, latest)
        tracks.put("highest", second, 9 - second % 10, highest)
    fine, coarse = values(tracks), values(tracks, COARSE_STEP)
    assert {len(row) for row in fine.values()} == {FINE_SLOTS}
    assert {len(row) for row in coarse.values()} == {COARSE_SLOTS}
    assert min(coarse["mean"]) == START
    assert [set(map(float, coarse[key].values())) for key in ("mean", "last", "highest")] == [{4.5}, {9.0}, {9.0}]


def test_gap_shows_no_old_values() -> None:
    tracks = Tracks()
    for second in range(START, START + FINE_SLOTS):
        tracks.advance(second)
        tracks.put("a", second, 1)
    later = START + FINE_SLOTS + 99
    tracks.advance(later)
    tracks.put("a", later, 2)
    remaining = values(tracks)["a"]
    assert set(remaining) == {*range(later - FINE_SLOTS + 1, START + FINE_SLOTS), later}
    tracks.advance(START + 3 * SPAN)
    assert values(tracks) == {}
    assert len(tracks) == 0


@pytest.mark.parametrize("back", [50, 600, SPAN, 7200])
def test_clock_set_back_before_all_values_empties_the_history(back: int) -> None:
    tracks = Tracks()
    tracks.advance(START)
    tracks.put("a", START, 1)
    tracks.advance(START - back)
    tracks.put("a", START - back, 2)
    assert values(tracks) == {"a": {START - back: 2}}


@pytest.mark.parametrize("back", [1, 2, 9, 10, 11, 599, 600, 601, 1_999, SPAN])
@pytest.mark.parametrize("step", [1, 10])
def test_clock_set_back_removes_only_later_values(back: int, step: int) -> None:
    """Defect: setting the clock back by two seconds emptied the whole hour."""
    tracks, now = Tracks(), START + 2_000
    for second in range(START, now + 1):
        tracks.advance(second)
        tracks.put("a", second, second, latest)
    earlier = now - back
    tracks.advance(earlier)
    tracks.put("a", earlier, 7, latest)
    remaining = values(tracks, step).get("a", {})
    assert remaining.pop(earlier // step * step) == 7
    slots = FINE_SLOTS if step == 1 else COARSE_SLOTS
    first = max(START, (now // step - slots + 1) * step)
    assert sorted(remaining) == list(range(first, earlier // step * step, step)) * (back <= 2_000)
    tracks.advance(now)
    assert set(values(tracks, step).get("a", {})) == {
        each for each in (*remaining, earlier // step * step) if each >= first
    }


@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(0, 20), st.integers(0, 10**12)), min_size=1, max_size=40),
    st.sampled_from([1, 10]),
)
def test_window_has_the_latest_value_of_each_slot(steps: list[tuple[int, int, int]], step: int) -> None:
    tracks = Tracks()
    now, expected = START, {}
    for ahead, back, value in steps:
        now += ahead
        tracks.advance(now)
        tracks.put("a", now - back, value, latest)
        expected.update(dict.fromkeys(range(max(now - back, now - FINE_SLOTS + 1), now + 1), value))
    slots = FINE_SLOTS if step == 1 else COARSE_SLOTS
    coarse = {second // step * step: value for second, value in sorted(expected.items())}
    first = max(now // step - slots + 1, (START + steps[0][0]) // step) * step
    assert values(tracks, step).get("a", {}) == {second: value for second, value in coarse.items() if second >= first}


def test_memory_is_bounded_for_many_tracks() -> None:
    tracks = Tracks()
    tracemalloc.start()
    try:
        for second in range(START, START + 20):
            tracks.advance(second)
            for number in range(2 * MAX_TRACKS):
                tracks.put(number, second, 1)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(tracks) == MAX_TRACKS
    assert tracks.refused == 20 * MAX_TRACKS
    assert size < 5_000_000


@pytest.mark.parametrize("step", [1, 10])
def test_window_returns_the_requested_part(step: int) -> None:
    tracks = Tracks()
    for second in range(START, START + 600):
        tracks.advance(second)
        tracks.put("a", second, 1)
    assert sorted(values(tracks, step, START + 100, START + 119)["a"]) == list(range(START + 100, START + 120, step))
    assert values(tracks, step, START + 119, START + 100) == {}
