# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for pictures of our experiments: whatever was measured, the picture is valid, or there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants import MBIT, series
from mutants_of_caps import COMES, ONSET, WIFI, transfer

from mptcp_bench.experiments import guard, onset
from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.findings import Picture

FIRST, SECOND = onset.cells(onset.SCENARIO.chosen({"rtt": "20/20", "cap": "100-5"}))
OUTCOME = onset.judge(series({"eth0": COMES, "wlan0": WIFI}, 9.5), "eth0", "wlan0", ONSET, 5 * MBIT, 30 * MBIT, 0.02)


def drawn(pictures: Sequence[Picture], directory: Path) -> list[str]:
    """Return the text of each of *pictures*."""
    target = directory / "x.svg"
    found = []
    for picture in pictures:
        picture.draw(target)
        found.append(target.read_text())
    return found


def guarded(*arms: str) -> Sequence[Picture]:
    """Return the pictures of one run of each of *arms*."""
    turns = [Turn(guard.Cell("down", 20, "silence"), arm, 1) for arm in arms]
    return guard.pictures(Results(turns, [Run(turn, transfer(None, count=0)) for turn in turns]))


@pytest.mark.nightly
@pytest.mark.parametrize("arms", [(), (guard.OFF,)])
def test_where_all_runs_with_the_guard_were_void_there_is_no_picture_of_it(arms: Sequence[str], tmp_path: Path) -> None:
    assert guarded(*arms) == []
    [text] = drawn(guarded(*arms, guard.ON), tmp_path)
    assert "Wi-Fi: silence" in text


def landed(**variants: onset.Cell) -> list[Run[onset.Cell, onset.Outcome]]:
    return [Run(Turn(cell, name.replace("_", "-"), 1), OUTCOME) for name, cell in variants.items()]


def pictures(runs: Sequence[Run[onset.Cell, onset.Outcome]]) -> Sequence[Picture]:
    return onset.pictures(Results([run.turn for run in runs], runs))


def test_both_landings_are_of_a_cell_that_has_them(tmp_path: Path) -> None:
    """The first cell's transfers may all have been void."""
    assert pictures([]) == pictures(landed(soft=FIRST)) == pictures(landed(at_once=FIRST)) == []
    assert pictures(landed(soft=FIRST, at_once=SECOND)) == []
    [text] = drawn(pictures([*landed(soft=FIRST), *landed(at_once=SECOND, soft=SECOND)]), tmp_path)
    assert str(SECOND) in text
    assert str(FIRST) not in text
