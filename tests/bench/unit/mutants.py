# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers to check that verdicts can fail: sound results of an experiment, and faulty results (mutants).

Each experiment has ``VerdictCases``. The mutants are synthetic measurements of a faulty system: for example with a dead
throttler, one that caps the wrong path, a cap that is never set, an unused path, no emulation, plain TCP, or no
measurement at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.scenario import Scenario
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import Sample

M = TypeVar("M")
MBIT = 1_000_000
Load = Callable[[float], float]
"""Rate in Mbit/s as a function of seconds since the start of a series."""
REFUSALS = (ValueError, TestbedError)
GetAims = Callable[[], Sequence[Aim]]
Bound = tuple[str, str]
"""Name of an aim, and ``least`` or ``most``."""


@dataclass(frozen=True)
class VerdictCases:
    """The sound result and the mutants of one experiment."""

    sound: GetAims
    """Function that returns the aims of a correct result."""
    mutants: Mapping[str, GetAims]
    """For each fault's name: a function that returns the aims of that faulty result."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Mutants for which the experiment raises an error instead of a verdict, each with the error message. All other
    mutants must miss an aim."""


def simulated_results(
    scenario: Scenario[Any, Any, Any, M],
    options: Mapping[str, str],
    measure: Callable[[Turn[Any]], M | Mapping[str, M] | None],
) -> Results[Any, M]:
    """Return the results that *scenario* would have with *options*.

    *measure* replaces the measurement: it gets the run's turn, and returns the measured values. A run for
    which *measure* returns None is left out.
    """
    turns, runs = scenario.plan(scenario.chosen(options)), []
    for turn in turns:
        found = measure(turn)
        if found is not None:
            parts = found if isinstance(found, Mapping) else {"": found}
            runs += [Run(turn, each, part) for part, each in parts.items()]
    return scenario.results(turns, runs)


def verdict_cases(
    scenario: Scenario[Any, Any, Any, M],
    options: Mapping[str, str],
    measure: Callable[..., M | Mapping[str, M]],
    mutants: Mapping[str, Mapping[str, Any]],
    refused: Mapping[str, str] | None = None,
) -> VerdictCases:
    """Return the cases of *scenario*. *measure* returns the values that a turn measures.

    Each mutant is a set of keyword arguments for *measure*, which make the values faulty. One mutant, without any runs,
    is added to *mutants*.
    """

    def aims_with(change: Mapping[str, Any]) -> GetAims:
        return lambda: scenario.aims(simulated_results(scenario, options, lambda turn: measure(turn, **change)))

    nothing = simulated_results(scenario, options, lambda turn: None)
    faulty = {name: aims_with(change) for name, change in mutants.items()}
    return VerdictCases(aims_with({}), {"nothing measured": lambda: scenario.aims(nothing), **faulty}, refused or {})


def bounds(aims: Iterable[Aim]) -> set[Bound]:
    """Return all bounds of *aims*."""
    return {(aim.what, side) for aim in aims for side in ("least", "most") if getattr(aim, side) is not None}


def broken(aims: Iterable[Aim]) -> set[Bound]:
    """Return the bounds violated by the aims' values. NaN violates no bound."""
    return {
        (aim.what, side)
        for aim in aims
        for side, sign in (("least", 1), ("most", -1))
        if (bound := getattr(aim, side)) is not None and aim.value is not None and sign * aim.value < sign * bound
    }


def is_missed(aim: Aim) -> bool:
    """Whether *aim* is missed, or is a paper's claim that fails."""
    return aim.verdict in ("missed", "fails")


def aims_or_none(get_aims: GetAims) -> Sequence[Aim]:
    """Return the aims of a result, or none if the experiment refuses to judge it."""
    try:
        return get_aims()
    except REFUSALS:
        return ()


def constant(rate: float) -> Load:
    return lambda _: rate


def between(start: float, end: float, inside: float, otherwise: float) -> Load:
    """Return a load of *inside* Mbit/s from *start* to *end*, and of *otherwise* at other times."""
    return lambda time: inside if start <= time < end else otherwise


def series(loads: Mapping[str, Load], seconds: float, interval: float = 0.1) -> list[Sample]:
    """Return samples of the byte counters of devices under *loads*."""
    octets = dict.fromkeys(loads, 0.0)
    samples = []
    for step in range(round(seconds / interval) + 1):
        time = step * interval
        samples.append(Sample(round(time, 6), {name: round(value) for name, value in octets.items()}))
        for name, load in loads.items():
            octets[name] += load(time + interval / 2) * MBIT / 8 * interval
    return samples
