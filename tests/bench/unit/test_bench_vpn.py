# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiments vpn-…: claims, bursts and pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import rehearsed
from mutants_of_vpn import point

from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.vpn_cells import VPNS, Condition, Point
from mptcp_bench.experiments.vpn_judging import claims_of
from mptcp_bench.experiments.vpn_losses import bursts


@given(st.sets(st.integers(0, 60)))
def test_bursts_are_runs_without_a_gap(lost: set[int]) -> None:
    lengths = bursts(sorted(lost))
    assert sum(lengths) == len(lost)
    assert len(lengths) == sum(number - 1 not in lost for number in lost)


@pytest.mark.parametrize(("name", "rows"), [("vpn-fig7", [8, 30]), ("vpn-fig8", [2, 4])])
def test_a_figure_is_drawn_and_one_round_judges_nothing(name: str, rows: list[int], tmp_path: Path) -> None:
    scenario = EXPERIMENTS[name].load()

    def measure(turn: Turn[Condition]) -> dict[str, Point]:
        return dict.fromkeys(turn.cell.inner, replace(point(VPNS[turn.variant], 9.0), received=((0.1, 1), (0.2, 2))))

    results = rehearsed(scenario, {"runs": "1"}, measure)
    findings = scenario.findings(results.turns, results.runs)
    assert [sum(bool(aim.said) for aim in findings.aims), findings.tables[0].row_count] == rows
    assert {claim.verdict for claim in claims_of(name, results)} == {"not judged"}
    findings.pictures[0].draw(tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000
