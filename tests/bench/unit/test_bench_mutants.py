# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every verdict can fail: each bound of each aim is violated by a mutant, and each mutant misses an aim.

The pictures of the correct results are drawn, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from all_verdict_cases import VERDICT_CASES
from mutants import REFUSALS, bounds_of, is_missed, violated_bounds

from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.findings import Aim


def test_every_experiment_has_mutants() -> None:
    scenarios = {name: cases.scenario for name, cases in VERDICT_CASES.items()}
    assert scenarios == {name: experiment.load() for name, experiment in EXPERIMENTS.items()}


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_correct_result_meets_all_aims(name: str) -> None:
    assert [str(aim) for aim in VERDICT_CASES[name].aims() if is_missed(aim)] == []


@cache
def aims_of(name: str, mutant: str) -> Sequence[Aim]:
    return VERDICT_CASES[name].aims_or_none(mutant)


@pytest.mark.parametrize(
    ("name", "mutant"),
    [(name, mutant) for name, cases in sorted(VERDICT_CASES.items()) for mutant in cases.mutant_names],
)
def test_each_mutant_misses_an_aim_or_is_refused(name: str, mutant: str) -> None:
    cases = VERDICT_CASES[name]
    if mutant in cases.refused:
        with pytest.raises(REFUSALS, match=f"^{re.escape(cases.refused[mutant])}$"):
            cases.aims(mutant)
    else:
        assert any(is_missed(aim) for aim in aims_of(name, mutant))


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_bound_of_each_aim_is_violated_by_a_mutant(name: str) -> None:
    """A bound that no mutant violates proves nothing."""
    cases = VERDICT_CASES[name]
    violated = set().union(*(violated_bounds(aims_of(name, mutant)) for mutant in cases.mutant_names))
    assert bounds_of(cases.aims()) - violated == set()
    # A correct result may lack the aim of a column. Columns whose aim's name depends on the row are skipped.
    columns = [column for table in cases.scenario.tables for column in table.columns if column.has_bounds]
    names = {str(column.aim or column.heading) for column in columns if not callable(column.aim)}
    assert {each for each in names if not any(f": {what}".endswith(f": {each}") for what, _ in violated)} == set()


@pytest.mark.nightly(except_for=("[vpn-fig8]", "[mimbox-http]"))
@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_pictures_of_a_complete_and_an_unfinished_experiment_are_drawn(name: str, tmp_path: Path) -> None:
    cases = VERDICT_CASES[name]
    results = cases.results()
    for runs in (results.runs, results.runs[:1]):
        for picture in cases.scenario.findings(results.turns, runs).pictures:
            target = tmp_path / f"{picture.name}.svg"
            picture.draw(target)
            assert target.stat().st_size > 10_000
