# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the limit on the processor share of reading captured segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.runtime.observe import (
    MAX_READING_BURST_SECONDS,
    MAX_READING_SHARE,
    ReadingShare,
)


@pytest.mark.parametrize("captures", [1, 3])
@pytest.mark.parametrize("batch_seconds", [0.0005, 0.008, 0.1])
def test_continuous_reading_is_limited_to_its_share(batch_seconds: float, captures: int) -> None:
    """All *captures* always have segments to read, and pause as long as the limit requires."""
    reading, now, work_seconds = ReadingShare(0.0), 0.0, 0.0
    next_readings = [0.0] * captures
    while now < 200.0:
        first = next_readings.index(min(next_readings))
        now = max(now, next_readings[first]) + batch_seconds
        work_seconds += batch_seconds
        next_readings[first] = now + reading.pause(now, batch_seconds)
    assert work_seconds / now == pytest.approx(MAX_READING_SHARE, abs=0.05)


def test_burst_is_read_without_a_pause_and_again_after_a_quiet_time() -> None:
    reading, now = ReadingShare(0.0), 0.0
    for _ in range(3):
        work_seconds = 0.0
        while not (pause := reading.pause(now := now + 0.008, 0.008)):
            work_seconds += 0.008
        assert MAX_READING_BURST_SECONDS <= work_seconds < 2.1 * MAX_READING_BURST_SECONDS
        now += pause + MAX_READING_BURST_SECONDS / MAX_READING_SHARE


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 0.1))))
def test_reading_below_the_share_never_pauses(readings: list[tuple[float, float]]) -> None:
    reading, now = ReadingShare(0.0), 0.0
    for gap, work_seconds in readings:
        now += gap + work_seconds / MAX_READING_SHARE + 1e-9
        assert reading.pause(now, work_seconds) == 0
