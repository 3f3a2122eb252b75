# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for intervals, percentiles and comparisons: the values of SciPy, and samples without an interval."""

from __future__ import annotations

import math
import statistics as standard

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from mptcp_bench.statistics import compare, exact_median_interval, mean_bounds, mean_interval, median, percentile

SAMPLES = st.lists(st.floats(-1e3, 1e3).map(lambda value: round(value, 3)), min_size=2, max_size=12)


@given(SAMPLES, SAMPLES, st.sampled_from([0.5, 0.95, 1.0, 2.0]))
def test_intervals_are_those_of_student_and_welch(sample: list[float], reference: list[float], factor: float) -> None:
    scaled = [factor * value for value in reference]
    assume(standard.variance(sample) > 1e-6 and standard.variance(scaled) > 1e-6)
    mean, found = mean_interval(sample), compare(sample, reference, factor)
    assert mean.half is not None
    student, welch = stats.ttest_1samp(sample, 0), stats.ttest_ind(sample, scaled, equal_var=False)
    # Two one-sided bounds of 95 % form a two-sided interval of 90 %.
    for pair, interval in (
        ((mean.mean - mean.half, mean.mean + mean.half), student.confidence_interval()),
        (mean_bounds(sample), student.confidence_interval(0.9)),
        ((found.low, found.high), welch.confidence_interval(0.9)),
    ):
        assert pair == pytest.approx((interval.low, interval.high), rel=1e-6, abs=1e-6)


def test_a_single_run_has_no_bounds_and_equal_values_have_no_spread() -> None:
    assert (mean_interval([7.0, 7.0, 7.0]).half, mean_interval([4.0]).half) == (0, None)
    assert (mean_bounds([7.0, 7.0]), mean_bounds([1.0, math.inf])) == ((7, 7), (math.inf, math.inf))
    assert all(map(math.isnan, (*mean_bounds([]), *mean_bounds([3.0]), *mean_bounds([3.0, math.nan]))))
    assert compare([200.0], [100.0, 101.0]).low is compare([200.0, 201.0], [100.0]).high is None
    assert (compare([9.0, 9.0], [7.0, 7.0]).low, compare([9.0, 9.0], 7.0).high) == (2, 2)


def test_percentile_may_be_infinite() -> None:
    assert (median([1.0, math.inf, math.inf]), median([1.0, 2.0, math.inf])) == (math.inf, 2.0)
    assert percentile([], 99, default=math.inf) == math.inf


def test_interval_of_the_median() -> None:
    # Ranks from Conover's table.
    ranks = {0: None, 5: None, 6: (1, 6), 8: (1, 8), 9: (2, 8), 12: (3, 10), 20: (6, 15)}
    assert {n: exact_median_interval(range(n, 0, -1)) for n in ranks} == ranks
