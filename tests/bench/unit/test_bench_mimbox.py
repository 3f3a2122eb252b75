# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the rule by which a claim is judged, and for the pictures of the experiments mimbox-…."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants import simulated_results

from mptcp_bench.experiments.claims import Claim
from mptcp_bench.experiments.mimbox import HTTP
from mptcp_bench.experiments.mimbox_judging import PERCENTS, Point


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.9, 1.0) * 3, "holds"), ((0.5, 0.7) * 3, "fails"), ((0.7, 0.9) * 3, "not judged"), ((0.9,) * 5, "not judged"),
     ((), "not judged"), ((0.9, math.nan) * 3, "not judged")],
)  # fmt: skip
def test_claim_is_judged_only_if_its_whole_interval_is_on_one_side(values: Sequence[float], verdict: str) -> None:
    assert Claim("x", "y", tuple(values), least=0.8).verdict == verdict


def test_figure_is_drawn_and_its_table_has_a_column_for_each_size(tmp_path: Path) -> None:
    results = simulated_results(HTTP, {"runs": "1"}, lambda turn: {"each": Point(8e6, completion_times=PERCENTS)})
    findings = HTTP.findings(results.turns, results.runs)
    assert [column.header for column in findings.tables[0].columns][3:] == ["1,000", "10,000", "100,000", "1,000,000"]
    findings.pictures[0].draw(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
