# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every verdict can fail: each bound of each aim is violated by a mutant, and each mutant misses an aim."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from judges import JUDGES
from mutants import REFUSALS, bounds, broken, judged_by, missed
from named_faults import FAULTS, OURS, Reason

from mptcp_bench import experiments
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.claims import Claim
from mptcp_bench.experiments.scenario import Scenario

IN_THE_GATE = pytest.mark.nightly(
    besides=("[console", "[goodput", "[guard", "[mimbox-http", "[relay", "[scale", "[soak", "[vpn-fig4", "[vpn-fig10"),
)
"""One experiment of each family."""


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


@pytest.mark.parametrize("name", sorted(EXPERIMENTS))
def test_each_experiment_has_the_named_faults_or_says_why_not(name: str) -> None:
    answers = OURS[name]
    assert set(answers) == set(FAULTS)
    for fault, answer in answers.items():
        if not isinstance(answer, Reason):
            assert answer in JUDGES[name].mutants, fault


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
    """This also finds columns whose aim no sound result has."""
    found = {what for mutant in JUDGES[name].mutants for what in missed_of(name, mutant)}
    columns = [column for table in SCENARIOS[name].tables for column in table.columns]
    bounded = [column for column in columns if (column.least, column.most) != (None, None)]
    # A name that depends on the row is one of a sound result, whose bounds another test covers.
    names = {column.aim or column.heading for column in bounded if not callable(column.aim)}
    assert {each for each in names if not any(what.endswith(f": {each}") for what in found)} == set()


def missed_of(name: str, mutant: str) -> set[str]:
    return {aim.what for aim in aims_of(name, mutant) if not aim.met}


HERE = Path(experiments.__file__).parent
Site = tuple[str, int]
"""File and line."""


@cache
def makers() -> set[str]:
    """Return the names of callables that make an aim: ``Aim``, ``Claim``, and functions annotated as ``Aim``."""
    found = {"Aim", Claim.__name__}
    for source in HERE.glob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.FunctionDef) and node.returns is not None and ast.unparse(node.returns) == "Aim":
                found.add(node.name)
    return found


def sites() -> Iterator[tuple[Path, range]]:
    """Yield each place in the source that makes an aim: the file and the lines of the call.

    Measuring modules have no mutants of their own; they pass their data to a judge, which makes the aim.
    """
    for source in sorted(HERE.glob("*.py")):
        called = makers() if source.stem.endswith("_judging") else {"Aim", Claim.__name__}
        for call in ast.walk(ast.parse(source.read_text())):
            if isinstance(call, ast.Call):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
                if name in called:
                    yield source, range(call.lineno, (call.end_lineno or call.lineno) + 1)


def callers(frame: FrameType | None, first: FrameType) -> Iterator[FrameType]:
    """Yield *frame* and its callers, up to but without *first*."""
    while frame is not None and frame is not first:
        yield frame
        frame = frame.f_back


@pytest.mark.nightly
def test_no_aim_is_made_without_a_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    """This also finds aims that no sound result contains, by looking for the calls in the source.

    An aim made by a helper counts for each of the helper's callers, and an aim of a claim counts for the place of the
    claim.
    """
    test = sys._getframe()
    made: dict[Site, list[Aim]] = {}
    claims: dict[int, tuple[Claim, list[Site]]] = {}
    construct = Aim.__init__

    def recorded(self: Aim, *values: Any, **named: Any) -> None:
        construct(self, *values, **named)
        for frame in callers(sys._getframe(1), test):
            made.setdefault((frame.f_code.co_filename, frame.f_lineno), []).append(self)
            # Reading f_locals is slow, so look at the names first.
            names = (*frame.f_code.co_varnames, *frame.f_code.co_freevars)
            owner = frame.f_locals.get("self") if "self" in names else None
            _, claimed = claims.get(id(owner), (None, []))
            for site in claimed:
                made.setdefault(site, []).append(self)

    def claiming(claim: Callable[..., None]) -> Callable[..., None]:
        def made_at(self: Claim, *values: Any, **named: Any) -> None:
            claim(self, *values, **named)
            frame = sys._getframe(1)
            # Keep the claim, so that its id is not reused.
            claims[id(self)] = self, [(frame.f_code.co_filename, frame.f_lineno)]

        return made_at

    monkeypatch.setattr(Aim, "__init__", recorded)
    for kind in (Claim, *Claim.__subclasses__()):
        monkeypatch.setattr(kind, "__init__", claiming(vars(kind)["__init__"]))
    for judge in JUDGES.values():
        for judged in (judge.sound, *judge.mutants.values()):
            judged_by(judged)
    for source, lines in sites():
        there = [aim for line in lines for aim in made.get((str(source), line), ())]
        assert there, f"{source.name}:{lines[0]}: no sound result and no mutant has this aim"
        judged_aims = [aim for aim in there if aim.verdict != "no aim"]
        assert not judged_aims or any(not aim.met for aim in judged_aims), (
            f"{source.name}:{lines[0]}: no mutant misses this aim"
        )
