# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every verdict can fail: each bound of each aim is violated by a mutant, and each mutant misses an aim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

import pytest
from judges import JUDGES
from mutants import REFUSALS, bounds, broken, is_missed, judged_by

from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.aims import Aim


def test_every_experiment_has_mutants() -> None:
    assert sorted(JUDGES) == sorted(EXPERIMENTS)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_sound_result_meets_all_aims(name: str) -> None:
    assert [str(aim) for aim in JUDGES[name].sound() if is_missed(aim)] == []


@cache
def aims_of(name: str, mutant: str) -> Sequence[Aim]:
    """Return the aims of a mutant, or none if the experiment refuses to judge it."""
    return judged_by(JUDGES[name].mutants[mutant])


@pytest.mark.parametrize(("name", "mutant"), [(name, m) for name, v in sorted(JUDGES.items()) for m in v.mutants])
def test_each_mutant_misses_an_aim_or_is_refused_by_name(name: str, mutant: str) -> None:
    judge = JUDGES[name]
    if mutant in judge.refused:
        with pytest.raises(REFUSALS, match=f"^{re.escape(judge.refused[mutant])}$"):
            judge.mutants[mutant]()
    else:
        assert any(is_missed(aim) for aim in aims_of(name, mutant))


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_bound_of_each_aim_is_broken_by_a_mutant(name: str) -> None:
    """An aim that no mutant misses proves nothing, and neither does a bound that no mutant violates."""
    judge = JUDGES[name]
    found = set().union(*(broken(aims_of(name, mutant)) for mutant in judge.mutants))
    assert bounds(judge.sound()) - found == set()
    # An aim may be absent from every sound result. Names that depend on the row are skipped.
    columns = [column for table in EXPERIMENTS[name].load().tables for column in table.columns if column.has_bounds]
    names = {str(column.aim or column.heading) for column in columns if not callable(column.aim)}
    assert {each for each in names if not any(f": {what}".endswith(f": {each}") for what, _ in found)} == set()
