# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the claims that the experiments mimbox-… repeat, and for their pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants import rehearsed

from mptcp_bench.experiments.claims import Claim
from mptcp_bench.experiments.mimbox import HTTP
from mptcp_bench.experiments.mimbox_judging import PERCENTS, Point


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.9, 0.95, 1.0) * 2, "holds"),
        ((0.5, 0.6, 0.7) * 2, "fails"),
        ((0.7, 0.8, 0.9) * 2, "not judged"),
        ((0.9,) * 5, "not judged"),
        ((), "not judged"),
        ((0.9, math.nan, 0.9) * 2, "not judged"),
    ],
)
def test_claim_holds_or_fails_only_when_the_whole_interval_is_on_one_side(
    values: Sequence[float], verdict: str
) -> None:
    assert Claim("x", "y", tuple(values), least=0.8).verdict == verdict


def test_claim_by_the_mean_is_judged_after_two_rounds() -> None:
    assert Claim("x", "y", (0.90, 0.91), least=0.8, by="mean").verdict == "holds"


def test_figure_is_drawn_and_its_table_has_a_column_for_each_size(tmp_path: Path) -> None:
    results = rehearsed(HTTP, {"runs": "1"}, lambda turn: {"each": Point(8e6, spread=PERCENTS)})
    findings = HTTP.findings(results.turns, results.runs)
    assert [column.header for column in findings.tables[0].columns][3:] == ["1,000", "10,000", "100,000", "1,000,000"]
    findings.pictures[0].draw(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
