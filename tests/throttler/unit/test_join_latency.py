# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the time from a join to its cap: which joins count, and in which bucket of the histogram."""

from __future__ import annotations

import pytest
from fake_kernel import four_tuple

from mptcp_throttler.telemetry.latency import JOIN_BOUNDS, MAX_JOIN_SECONDS, MAX_REMEMBERED, JoinLatency

WIFI, LTE = four_tuple("10.1.0.1"), four_tuple("10.2.0.1")


def totals(latency: JoinLatency) -> tuple[int, float]:
    """Return the number of counted joins, and the sum of their times in seconds."""
    found = latency.as_json()
    return found["total"], round(found["sum"], 6)


@pytest.mark.parametrize("seconds", [0.0003, 0.0005, 0.0015, 1.9, 5.0])
def test_time_counts_in_its_bucket_and_all_higher_buckets(seconds: float) -> None:
    latency = JoinLatency()
    latency.record_join(0.0, [WIFI, LTE], {LTE})
    latency.record_entries([LTE], seconds)
    found = latency.as_json()
    assert found["le"] == list(JOIN_BOUNDS)
    assert found["count"] == [int(seconds <= bound) for bound in JOIN_BOUNDS]
    assert (found["total"], found["sum"]) == (1, seconds)


def test_entry_may_be_created_before_the_join_is_read() -> None:
    latency = JoinLatency()
    latency.record_entries([LTE], 100.25)
    latency.record_join(100.0, [WIFI, LTE], ())
    assert totals(latency) == (1, 0.25)
    latency.record_join(100.1, [WIFI, LTE], ())  # The tracker reads the join's packet again.
    assert totals(latency) == (1, 0.25)


def test_cap_on_the_first_subflow_counts_for_the_join() -> None:
    latency = JoinLatency()
    latency.record_join(100.0, [WIFI, LTE], {WIFI})
    latency.record_entries([WIFI, LTE], 100.25)
    assert totals(latency) == (1, 0.25)


def test_older_and_unneeded_entries_do_not_count() -> None:
    latency = JoinLatency()
    latency.record_entries([WIFI], 99.0)
    latency.record_join(100.0, [WIFI, LTE], ())
    latency.record_entries([LTE], 100.5)  # This can happen after a transition.
    assert totals(latency) == (0, 0.0)


def test_late_entries_do_not_count() -> None:
    latency = JoinLatency()
    latency.record_join(100.0, [LTE], {LTE})
    latency.record_entries([LTE], 100.0 + MAX_JOIN_SECONDS + 1)
    assert totals(latency) == (0, 0.0)


def test_number_of_stored_joins_is_bounded() -> None:
    latency = JoinLatency()
    for number in range(2 * MAX_REMEMBERED):
        applied, pending = four_tuple("10.1.0.1", number + 1), four_tuple("10.2.0.1", number + 1)
        latency.record_entries([applied], 100.0)
        latency.record_join(100.0, [pending], {pending})
    assert len(latency._entries) == len(latency._pending) == MAX_REMEMBERED
