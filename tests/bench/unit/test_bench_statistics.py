# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for intervals, percentiles and comparisons: textbook values, and noise that confirms nothing."""

from __future__ import annotations

import ast
import math
import random
import re
import statistics as standard
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

import mptcp_bench
from mptcp_bench.statistics import (
    compare,
    exact_median_interval,
    histogram_percentiles,
    mean_bounds,
    mean_interval,
    median,
    median_interval,
    no_less_than,
    of_median,
    percentile,
    percentiles,
)

NUMBERS = st.floats(-1e9, 1e9)
SAMPLES = st.lists(st.floats(-1e3, 1e3).map(lambda value: round(value, 3)), min_size=2, max_size=12)


def test_interval_is_students() -> None:
    # t(0.975, 4) = 2.776 and standard deviation 1.5811, from any textbook's tables.
    found = mean_interval([1, 2, 3, 4, 5])
    assert (found.n, found.mean) == (5, 3)
    assert found.half == pytest.approx(2.7764 * 1.5811 / 5**0.5, rel=1e-4)
    assert found.low == pytest.approx(3 - 1.9633, abs=1e-3)


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert mean_interval([4.0]).half is None
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def test_equal_values_have_an_interval_of_no_width() -> None:
    assert mean_interval([7.0, 7.0, 7.0]).half == 0


@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_interval_lies_around_the_mean_and_narrows_with_confidence(values: list[float]) -> None:
    wide, narrow = mean_interval(values), mean_interval(values, 0.5)
    assert wide.low is not None
    assert wide.high is not None
    assert wide.low <= wide.mean <= wide.high
    assert narrow.half is not None
    assert wide.half is not None
    assert narrow.half <= wide.half


@given(st.lists(NUMBERS, min_size=1, max_size=50))
def test_percentiles_are_within_and_ascend(values: list[float]) -> None:
    found = percentiles(values, [0, 25, 50, 95, 99, 100])
    assert found == sorted(found)
    assert (found[0], found[-1]) == (min(values), max(values))
    assert found[2] == median(values) == pytest.approx(standard.median(values), rel=1e-9, abs=1e-6)


def test_a_percentile_lies_between_order_statistics() -> None:
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile([float(n) for n in range(101)], 99) == 99
    assert percentile([0.0, 10.0], 95) == 9.5


def test_what_never_came_is_infinite_and_no_percentile_is_not_a_number() -> None:
    assert median([1.0, math.inf, math.inf]) == math.inf
    assert median([1.0, 2.0, math.inf]) == 2.0
    assert percentile([1.0, math.inf], 10) == math.inf
    assert percentile([], 99, default=math.inf) == math.inf


@given(st.lists(st.floats(allow_nan=False), max_size=9), st.integers(0, 9), st.floats(0, 100))
def test_beside_what_is_no_number_there_is_no_percentile(values: list[float], place: int, percent: float) -> None:
    """A NaN at any place makes the percentile NaN, because sorting with it leaves the other values unordered."""
    values.insert(place, math.nan)
    assert math.isnan(percentile(values, percent))


@pytest.mark.parametrize("percent", [-1, 101, math.nan])
def test_a_percentile_is_between_0_and_100(percent: float) -> None:
    with pytest.raises(ValueError, match="0 to 100"):
        percentile([1.0], percent)


def test_a_percentile_of_no_values_needs_a_default() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])


def test_interval_of_the_median_holds_the_median_and_repeats_with_the_seed() -> None:
    values = [0.9, 0.95, 1.0, 1.05, 1.1]
    low, high = median_interval(values, random.Random(1))
    assert 0.9 <= low <= 1.0 <= high <= 1.1
    assert median_interval(values, random.Random(1)) == (low, high)
    with pytest.raises(ValueError, match="no values"):
        median_interval([], random.Random(1))


def test_exact_interval_of_the_median_is_the_binomials() -> None:
    # Ranks of the bounds from Conover's table for these n.
    ranks = {5: None, 6: (1, 6), 8: (1, 8), 9: (2, 8), 12: (3, 10), 20: (6, 15)}
    assert {n: exact_median_interval(range(n, 0, -1)) for n in ranks} == ranks
    assert exact_median_interval([]) is None


@given(SAMPLES, SAMPLES, st.sampled_from([0.5, 0.95, 1.0, 2.0]))
def test_a_comparison_is_welchs(sample: list[float], reference: list[float], factor: float) -> None:
    scaled = [factor * value for value in reference]
    assume(standard.variance(sample) > 1e-6 and standard.variance(scaled) > 1e-6)
    found = compare(sample, reference, factor)
    # Two one-sided bounds of 95 % form a two-sided interval of 90 %.
    interval = stats.ttest_ind(sample, scaled, equal_var=False).confidence_interval(0.9)
    assert found.low == pytest.approx(interval.low, rel=1e-6, abs=1e-6)
    assert found.high == pytest.approx(interval.high, rel=1e-6, abs=1e-6)


def test_a_constant_is_compared_with_by_the_t_test_of_one_sample() -> None:
    found = compare([5.0, 5.2, 5.1], 5.0)
    interval = stats.ttest_1samp([5.0, 5.2, 5.1], 5.0).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((interval.low - 5, interval.high - 5))


@pytest.mark.parametrize(
    ("sample", "reference", "holds"),
    [
        ([100.0, 101.0, 99.0], [100.0, 101.0, 99.0], True),
        ([97.0, 97.1, 96.9], [100.0, 100.1, 99.9], True),
        ([90.0, 90.1, 89.9], [100.0, 100.1, 99.9], False),
        # Noise confirms nothing, whichever mean is larger.
        ([60.0, 140.0, 100.0], [100.0, 101.0, 99.0], None),
        ([150.0, 90.0], [100.0, 101.0, 99.0], None),
        ([40.0, 120.0], [30.0, 180.0], None),
        # A single run has no spread to judge by.
        ([200.0], [100.0, 101.0], None),
        ([200.0, 201.0], [100.0], None),
        ([100.0, 100.0], [100.0, 100.0], True),
        ([90.0, 90.0], [100.0, 100.0], False),
    ],
)
def test_no_less_than_needs_its_bound(sample: list[float], reference: list[float], holds: bool | None) -> None:
    assert no_less_than(sample, reference, 0.05).holds is holds


@given(SAMPLES, SAMPLES)
def test_a_claim_and_its_opposite_never_both_hold(sample: list[float], reference: list[float]) -> None:
    assert not (compare(sample, reference).holds and compare(reference, sample).holds)


def test_bounds_of_a_mean_are_one_sided_and_of_one_value_there_are_none() -> None:
    # t(0.95, 4) = 2.132, standard deviation 1.5811.
    low, high = mean_bounds([1, 2, 3, 4, 5])
    assert (low, high) == pytest.approx((3 - 1.5075, 3 + 1.5075), abs=1e-3)
    assert mean_bounds([7.0, 7.0]) == (7, 7)
    assert mean_bounds([1.0, math.inf]) == (math.inf, math.inf)
    assert all(map(math.isnan, (*mean_bounds([]), *mean_bounds([3.0]), *mean_bounds([3.0, math.nan]))))


def test_a_comparison_with_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        compare([], [1.0])
    with pytest.raises(ValueError, match="no values"):
        no_less_than([1.0], [], 0.05)


def test_the_one_of_median_key_is_the_lower_of_the_two_in_the_middle() -> None:
    assert of_median(["abc", "a", "ab"], len) == "ab"
    assert of_median(iter(["abcd", "abc", "a", "ab"]), len) == "ab"
    with pytest.raises(ValueError, match="the median of nothing"):
        of_median([], len)


@given(st.lists(st.integers(0, 9), min_size=1), st.floats(0, 100))
def test_a_percentile_of_a_histogram_is_the_nearest_rank(values: list[int], percent: float) -> None:
    counts = [values.count(number) for number in range(10)]
    rank = next(rank for rank in range(1, len(values) + 1) if rank >= len(values) * percent / 100)
    assert histogram_percentiles(counts, (percent,), float) == (sorted(values)[rank - 1],)
    assert histogram_percentiles([0] * 10, (percent,), float) == (math.inf,)


def own_statistics(source: str) -> Iterator[int]:
    """Yield the lines on which *source* imports a statistics library, or computes a percentile by indexing."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names) if any(each.name.partition(".")[0] in LIBRARIES for each in names):
                yield node.lineno
            case ast.ImportFrom(module=str(module), level=0) if module.partition(".")[0] in LIBRARIES:
                yield node.lineno
            case ast.FunctionDef(name=name) if OF_PERCENTILES.fullmatch(name):
                yield node.lineno
            case ast.Subscript(slice=index) if any(is_half(each) or is_share(each) for each in ast.walk(index)):
                yield node.lineno


def is_half(node: ast.AST) -> bool:
    match node:
        case ast.BinOp(op=ast.FloorDiv() | ast.Div(), right=ast.Constant(value=2)):
            return True
        case ast.BinOp(op=ast.RShift(), right=ast.Constant(value=1)):
            return True
    return False


def is_share(node: ast.AST) -> bool:
    """Return whether *node* is a share of a number of elements, as in the index of a percentile."""
    match node:
        case ast.BinOp(op=ast.Mult() | ast.Div() | ast.FloorDiv(), left=left, right=right):
            pair = (left, right)
            return any(isinstance(each, ast.Constant) for each in pair) and any(
                isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "len"
                for each in pair
                for inner in ast.walk(each)
            )
    return False


OF_PERCENTILES = re.compile(r"(median|percentiles?|quantiles?|p\d\d?)")
LIBRARIES = frozenset({"statistics", "numpy", "scipy", "pandas"})
BENCH = Path(mptcp_bench.__file__).parents[1]


@pytest.mark.nightly
def test_no_other_module_of_the_bench_has_statistics_of_its_own() -> None:
    files = [file for part in ("mptcp_bench", "mptcp_lab") for file in sorted((BENCH / part).rglob("*.py"))]
    assert len(files) > 100
    found = [f"{file.relative_to(BENCH)}:{line}" for file in files for line in own_statistics(file.read_text())]
    assert [each for each in found if not each.startswith("mptcp_bench/statistics.py:")] == []
