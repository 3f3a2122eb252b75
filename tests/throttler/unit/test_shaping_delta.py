# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that compare the delta tracker with a direct computation of the difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.shaping.model import DeltaTracker

KEYS = st.integers(0, 5)
VALUES = st.integers(0, 3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set_desired"), KEYS, VALUES),
        st.tuples(st.just("drop"), KEYS),
        st.tuples(st.just("set_actual"), st.dictionaries(KEYS, VALUES)),
        st.tuples(st.just("record_upserts"), st.dictionaries(KEYS, VALUES)),
        st.tuples(st.just("record_deletes"), st.lists(KEYS)),
    )
)


@given(STEPS)
def test_pending_changes_equal_the_difference(steps: list[tuple[object, ...]]) -> None:
    tracker: DeltaTracker[int, int] = DeltaTracker()
    for name, *arguments in steps:
        getattr(tracker, str(name))(*arguments)
        missing = {k: v for k, v in tracker.desired.items() if tracker.actual.get(k) != v}
        assert tracker.upserts == missing
        assert tracker.deletes == tracker.actual.keys() - tracker.desired.keys()
        assert tracker.settled is (tracker.desired == tracker.actual)


@given(STEPS)
def test_tracker_is_settled_after_the_pending_changes_were_applied(steps: list[tuple[object, ...]]) -> None:
    tracker: DeltaTracker[int, int] = DeltaTracker()
    for name, *arguments in steps:
        getattr(tracker, str(name))(*arguments)
    tracker.record_upserts(dict(tracker.upserts))
    tracker.record_deletes(set(tracker.deletes))
    assert tracker.settled


def test_value_that_counts_as_equal_is_not_changed() -> None:
    tracker: DeltaTracker[str, float] = DeltaTracker(same=lambda one, other: abs(one - other) < 0.1)
    tracker.set_actual({"a": 1.01})
    tracker.set_desired("a", 1.0)
    assert tracker.settled
