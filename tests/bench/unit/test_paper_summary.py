# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the summary of a result: its lines, pooled values, the representative run, and quantities in words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paper_examples import fig3, table1

from mptcp_bench.paper.quantities import show
from mptcp_bench.paper.results import Run, Series
from mptcp_bench.paper.summary import in_order, pooled, representative, summarise


def test_summary_leaves_out_what_is_no_data_point() -> None:
    drawn = fig3()
    broken = replace(drawn.runs[0], repetition=9, valid=False, values={"goodput": 1e12})
    assert summarise(drawn.cases, (*drawn.runs, broken)) == drawn.summary
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
    broken = replace(drawn, runs=tuple(replace(run, valid=run.repetition == 1) for run in drawn.runs))
    assert len(pooled(broken, "syn up", "tcp")) == 400
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
