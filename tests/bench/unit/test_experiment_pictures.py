# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for pictures of our experiments: whatever was measured, there is a valid picture or none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from mutants import MBIT, constant, series
from mutants_of_caps import COMES, ONSET, WIFI, transfer

from mptcp_bench.experiments import guard, onset, steering_modes
from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.findings import Picture
from mptcp_bench.experiments.steering_modes import WARM, Finding

SAMPLES = tuple(series({"eth0": constant(5), "wlan0": constant(20)}, 22))
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


def steered(*kinds: str) -> Sequence[Picture]:
    """Return the pictures of one run of each of *kinds*."""
    turns = [Turn(steering_modes.Cell((20, 20), kind), "", 1) for kind in kinds]
    runs = [Run(turn, Finding(1.0, WARM, SAMPLES), turn.cell.parts[0]) for turn in turns]
    return steering_modes.pictures(Results(turns, runs))


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [(), ("no rule",)])
def test_without_a_mode_there_is_no_picture_of_modes(kinds: Sequence[str], tmp_path: Path) -> None:
    assert steered(*kinds) == []
    [text] = drawn(steered(*kinds, "smallest-delay"), tmp_path)
    assert "smallest-delay" in text


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
