"""Means with their intervals, percentiles, the representative run, and quantities in words."""

from __future__ import annotations

import statistics as standard
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_examples import fig3, table1

from mptcp_bench.paper.quantities import show
from mptcp_bench.paper.results import Run, Series
from mptcp_bench.paper.statistics import (
    in_order,
    mean_interval,
    percentile,
    percentiles,
    pooled,
    representative,
    summarise,
)

NUMBERS = st.floats(-1e9, 1e9)


def test_interval_is_students() -> None:
    # t(0.975, 4) = 2.776, standard deviation 1.5811: tables of any textbook.
    found = mean_interval([1, 2, 3, 4, 5])
    assert (found.n, found.mean) == (5, 3)
    assert found.half == pytest.approx(2.7764 * 1.5811 / 5**0.5, rel=1e-4)
    assert found.low == pytest.approx(3 - 1.9633, abs=1e-3)


def test_one_value_has_no_interval_and_none_has_no_mean() -> None:
    assert mean_interval([4.0]).half is None
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


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
    assert found[2] == pytest.approx(standard.median(values), rel=1e-9, abs=1e-6)


def test_a_percentile_is_between_0_and_100() -> None:
    with pytest.raises(ValueError, match="Percentiles must be in the range"):
        percentile([1.0], 101)


def test_summary_leaves_out_what_is_no_data_point() -> None:
    drawn = fig3()
    spoilt = replace(drawn.runs[0], repetition=9, valid=False, values={"goodput": 1e12})
    assert summarise(drawn.cases, (*drawn.runs, spoilt)) == drawn.summary
    line = drawn.statistic("mptcp", "goodput")
    assert line is not None
    assert (line.n, line.unit) == (5, "bit/s")
    assert line.mean == pytest.approx(sum(drawn.values("mptcp", "goodput")) / 5)


def test_metrics_come_in_their_order() -> None:
    assert in_order(["mine", "share_wifi", "goodput", "mine"]) == ["goodput", "share_wifi", "mine"]


def test_pooled_values_are_those_of_all_valid_runs() -> None:
    drawn = table1()
    assert len(pooled(drawn, "syn up")) == 6 * 400
    assert len(pooled(drawn, "syn up", "tcp")) == 3 * 400
    spoilt = replace(drawn, runs=tuple(replace(run, valid=run.repetition == 1) for run in drawn.runs))
    assert len(pooled(spoilt, "syn up", "tcp")) == 400
    assert pooled(drawn, "nothing") == ()


def one(goodput: float, *, series: bool = True) -> Run:
    return Run("a", 1, True, series=Series((), {}) if series else None, values={"goodput": goodput})


def test_the_representative_run_is_of_median_goodput_and_can_be_drawn() -> None:
    assert representative([one(3), one(1), one(2)]) == one(2)
    assert representative([one(3), one(1), one(2), one(4)]) == one(2)
    assert representative([one(1, series=False), one(5)]) == one(5)
    assert representative([one(1, series=False)]) is None


@pytest.mark.parametrize(
    ("value", "unit", "half", "text"),
    [
        (94.3e6, "bit/s", 0.51e6, "94.3 ± 0.5 Mbit/s"),
        (113456789, "bit/s", 1.2e3, "113.457 ± 0.001 Mbit/s"),
        (0.0, "bit/s", None, "0 Mbit/s"),
        (0.0085, "s", None, "8.50 ms"),
        (61.2, "s", None, "61.2 s"),
        (1.7, "s", 0.0, "1.70 ± 0.00 s"),
        (0.00000012, "s", None, "0.120 µs"),
        (480e3, "B", None, "480 kB"),
        (5.76e6, "B", None, "5.76 MB"),
        (0.198, "ratio", 0.004, "19.8 ± 0.4 %"),
        (12, "count", None, "12"),
        (12.4, "count", 3.3, "12.4 ± 3.3"),
        (5, "", None, "5.00"),
    ],
)
def test_quantities_in_words(value: float, unit: str, half: float | None, text: str) -> None:
    assert show(value, unit, half) == text
