# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every verdict can fail: each bound of each aim is violated by a mutant, and each mutant misses an aim.

All pictures of the sound results are drawn.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from all_verdict_cases import VERDICT_CASES
from mutants import REFUSALS, bounds, broken, is_missed

from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.aims import Aim


def test_every_experiment_has_mutants() -> None:
    assert sorted(VERDICT_CASES) == sorted(EXPERIMENTS)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_sound_result_meets_all_aims(name: str) -> None:
    assert [str(aim) for aim in VERDICT_CASES[name].aims() if is_missed(aim)] == []


@cache
def aims_of(name: str, mutant: str) -> Sequence[Aim]:
    return VERDICT_CASES[name].aims_or_none(mutant)


@pytest.mark.parametrize(
    ("name", "mutant"), [(name, mutant) for name, cases in sorted(VERDICT_CASES.items()) for mutant in cases.names]
)
def test_each_mutant_misses_an_aim_or_is_refused_by_name(name: str, mutant: str) -> None:
    cases = VERDICT_CASES[name]
    if mutant in cases.refused:
        with pytest.raises(REFUSALS, match=f"^{re.escape(cases.refused[mutant])}$"):
            cases.aims(mutant)
    else:
        assert any(is_missed(aim) for aim in aims_of(name, mutant))


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_bound_of_each_aim_is_broken_by_a_mutant(name: str) -> None:
    """An aim that no mutant misses proves nothing, and neither does a bound that no mutant violates."""
    cases = VERDICT_CASES[name]
    found = set().union(*(broken(aims_of(name, mutant)) for mutant in cases.names))
    assert bounds(cases.aims()) - found == set()
    # An aim may be absent from every sound result. Names that depend on the row are skipped.
    columns = [column for table in EXPERIMENTS[name].load().tables for column in table.columns if column.has_bounds]
    names = {str(column.aim or column.heading) for column in columns if not callable(column.aim)}
    assert {each for each in names if not any(f": {what}".endswith(f": {each}") for what, _ in found)} == set()


@pytest.mark.nightly(except_for=("[vpn-fig8]", "[mimbox-http]"))
@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_pictures_of_a_sound_and_an_unfinished_experiment_are_drawn(name: str, tmp_path: Path) -> None:
    results = VERDICT_CASES[name].results()
    for runs in (results.runs, results.runs[:1]):
        for picture in EXPERIMENTS[name].load().findings(results.turns, runs).pictures:
            target = tmp_path / f"{picture.name}.svg"
            picture.draw(target)
            assert target.stat().st_size > 10_000
