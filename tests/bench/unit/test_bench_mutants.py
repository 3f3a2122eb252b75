# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every verdict can fail: each bound of each aim is violated by a mutant, and each mutant misses an aim."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module

import pytest
from judges import JUDGES
from mutants import REFUSALS, bounds, broken, judged_by, missed

from mptcp_bench import experiments
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.scenario import Scenario

IN_THE_GATE = pytest.mark.nightly(
    besides=("[goodput", "[guard", "[mimbox-http", "[relay", "[load", "[soak", "[vpn-fig4", "[vpn-fig10"),
)
"""Nightly, except for one experiment of each family."""


def test_every_experiment_has_mutants() -> None:
    assert sorted(JUDGES) == sorted(EXPERIMENTS)


def test_every_experiment_that_makes_attempts_has_the_mutant_of_them() -> None:
    modules = {name: import_module(f"{experiments.__name__}.{each.file}") for name, each in EXPERIMENTS.items()}
    scenarios = {name for name, each in EXPERIMENTS.items() if isinstance(each.load(), Scenario)}
    making = scenarios | {name for name, module in modules.items() if hasattr(module, "Attempts")}
    assert making == {name for name, judge in JUDGES.items() if "it works at the second attempt alone" in judge.mutants}


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_what_is_sound_misses_nothing(name: str) -> None:
    assert missed(JUDGES[name].sound) == set()


@cache
def aims_of(name: str, mutant: str) -> Sequence[Aim]:
    """Return the aims of a mutant, or none if the experiment refuses to judge it."""
    return judged_by(JUDGES[name].mutants[mutant])


@IN_THE_GATE
@pytest.mark.parametrize(("name", "mutant"), [(name, m) for name, v in sorted(JUDGES.items()) for m in v.mutants])
def test_each_mutant_misses_an_aim_or_is_refused_by_name(name: str, mutant: str) -> None:
    judge = JUDGES[name]
    if mutant in judge.refused:
        with pytest.raises(REFUSALS, match=f"^{re.escape(judge.refused[mutant])}$"):
            judge.mutants[mutant]()
    else:
        assert any(not aim.met for aim in aims_of(name, mutant))


@IN_THE_GATE
@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_bound_of_each_aim_is_broken_by_a_mutant(name: str) -> None:
    """An aim that no mutant misses proves nothing, and neither does a bound that no mutant violates."""
    judge = JUDGES[name]
    found = set().union(*(broken(aims_of(name, mutant)) for mutant in judge.mutants))
    assert bounds(judge.sound()) - found == set()


SCENARIOS = {name: found for name, each in EXPERIMENTS.items() if isinstance(found := each.load(), Scenario)}


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCENARIOS)
def test_each_column_with_bounds_is_missed_in_a_mutant(name: str) -> None:
    """The test also fails for a column whose aim is absent from every sound result."""
    found = {what for mutant in JUDGES[name].mutants for what in missed_of(name, mutant)}
    columns = [column for table in SCENARIOS[name].tables for column in table.columns]
    bounded = [column for column in columns if (column.least, column.most) != (None, None)]
    # Names that depend on the row are skipped: the test of sound results covers them.
    names = {column.aim or column.heading for column in bounded if not callable(column.aim)}
    assert {each for each in names if not any(f": {what}".endswith(f": {each}") for what in found)} == set()


def missed_of(name: str, mutant: str) -> set[str]:
    return {aim.what for aim in aims_of(name, mutant) if not aim.met}
