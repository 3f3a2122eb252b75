# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the picture of the experiment onset has both landings of one cell, or that there is no picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mutants_of_caps import COMES, WIFI, outcome

from mptcp_bench.experiments import onset
from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.findings import Picture

FIRST, SECOND = onset.SCENARIO.cells(onset.SCENARIO.chosen({"rtt": "20/20", "cap": "100-5"}))


def landed(**variants: onset.Cell) -> list[Run[onset.Cell, onset.Outcome]]:
    return [Run(Turn(cell, name.replace("_", "-"), 1), outcome(cell, COMES, WIFI)) for name, cell in variants.items()]


def pictures(runs: Sequence[Run[onset.Cell, onset.Outcome]]) -> Sequence[Picture]:
    return onset.pictures(Results([run.turn for run in runs], runs))


def test_picture_shows_a_cell_that_has_both_landings(tmp_path: Path) -> None:
    """All transfers of the first cell may have failed."""
    assert pictures([]) == pictures(landed(soft=FIRST)) == pictures(landed(at_once=FIRST)) == []
    assert pictures(landed(soft=FIRST, at_once=SECOND)) == []
    [picture] = pictures([*landed(soft=FIRST), *landed(at_once=SECOND, soft=SECOND)])
    picture.draw(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert str(SECOND) in text
    assert str(FIRST) not in text
