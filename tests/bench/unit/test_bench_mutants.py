"""No verdict that cannot fail: each bound of each aim is broken by a mutant, and each mutant misses an aim."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from judges import JUDGES
from mutants import REFUSALS, bounds, broken, judged_by, missed
from named_faults import FAULTS, OURS, Reason

from mptcp_bench import experiments
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.aims import Aim


def test_every_experiment_has_mutants() -> None:
    assert sorted(JUDGES) == sorted(EXPERIMENTS)


def test_every_experiment_that_makes_attempts_has_the_mutant_of_them() -> None:
    making = {name for name, each in EXPERIMENTS.items() if hasattr(each.load(), "Attempts")}
    assert making == {name for name, judge in JUDGES.items() if "it works at the second attempt alone" in judge.mutants}


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_what_is_sound_misses_nothing(name: str) -> None:
    assert missed(JUDGES[name].sound) == set()


@pytest.mark.parametrize(("name", "mutant"), [(name, m) for name, v in sorted(JUDGES.items()) for m in v.mutants])
def test_each_mutant_misses_an_aim_or_is_refused_by_name(name: str, mutant: str) -> None:
    judge = JUDGES[name]
    judged = judge.mutants[mutant]
    if mutant in judge.refused:
        with pytest.raises(REFUSALS, match=f"^{re.escape(judge.refused[mutant])}$"):
            judged()
    else:
        assert missed(judged)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_what_is_refused_is_a_mutant(name: str) -> None:
    assert set(JUDGES[name].refused) <= set(JUDGES[name].mutants)


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_experiment_has_the_named_faults_or_says_why_not(name: str) -> None:
    answers = OURS[name]
    assert set(answers) == set(FAULTS)
    for fault, answer in answers.items():
        if not isinstance(answer, Reason):
            assert answer in JUDGES[name].mutants, fault


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_bound_of_each_aim_is_broken_by_a_mutant(name: str) -> None:
    """An aim that no mutant misses says nothing, and neither does a bound beyond which no mutant is."""
    judge = JUDGES[name]
    found = set().union(*(broken(judged_by(judged)) for judged in judge.mutants.values()))
    assert bounds(judge.sound()) - found == set()


def test_no_aim_is_made_without_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aim that no sound result here has is found where it is made: by the calls of ``Aim`` in the source."""
    made: dict[tuple[str, int], list[Aim]] = {}
    construct = Aim.__init__

    def recorded(self: Aim, *values: Any, **named: Any) -> None:
        construct(self, *values, **named)
        caller = sys._getframe(1)
        made.setdefault((caller.f_code.co_filename, caller.f_lineno), []).append(self)

    monkeypatch.setattr(Aim, "__init__", recorded)
    for judge in JUDGES.values():
        for judged in (judge.sound, *judge.mutants.values()):
            judged_by(judged)
    for source in sorted(Path(experiments.__file__).parent.glob("*.py")):
        for call in ast.walk(ast.parse(source.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Aim":
                lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
                there = [aim for line in lines for aim in made.get((str(source), line), ())]
                assert there, f"{source.name}:{call.lineno}: no sound result and no mutant has this aim"
                judged_aims = [aim for aim in there if aim.verdict != "no aim"]
                assert not judged_aims or any(not aim.met for aim in judged_aims), (
                    f"{source.name}:{call.lineno}: no mutant misses this aim"
                )
