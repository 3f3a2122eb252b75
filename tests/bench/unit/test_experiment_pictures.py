# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that the picture of the experiment onset has both landings of one cell, or that there is no picture."""

from __future__ import annotations

from pathlib import Path

from mutants_of_caps import onset_run

from mptcp_bench.experiments import onset
from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.findings import Picture

FIRST, SECOND = onset.SCENARIO.cells(onset.SCENARIO.chosen({"rtt": "20/20", "cap": "100-5"}))


def pictures(*made: tuple[onset.Cell, str]) -> list[Picture]:
    turns = [Turn(cell, landing, 1) for cell, landing in made]
    return onset.pictures(Results(turns, [Run(turn, onset_run(turn)) for turn in turns]))


def test_picture_shows_a_cell_that_has_both_landings(tmp_path: Path) -> None:
    """All transfers of the first cell may have failed."""
    assert pictures() == pictures((FIRST, "at-once")) == pictures((FIRST, "soft"), (SECOND, "at-once")) == []
    [picture] = pictures((FIRST, "soft"), (SECOND, "at-once"), (SECOND, "soft"))
    picture.draw(tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert str(SECOND) in text
    assert str(FIRST) not in text
