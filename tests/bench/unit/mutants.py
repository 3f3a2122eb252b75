# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers to check that verdicts can fail: the correct result of an experiment, and faulty results (mutants).

Each experiment has ``VerdictCases``. The mutants are synthetic measurements of a faulty system: for example with a dead
throttler, one that caps the wrong path, a cap that is never set, an unused path, no emulation, plain TCP, or no
measurement at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.scenario import Scenario
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.recorder import Sample

MBIT = 1_000_000
Load = Callable[[float], float]
"""Rate in Mbit/s as a function of seconds since the start of a series."""
REFUSALS = (ValueError, TestbedError)
"""Exceptions with which an experiment refuses to judge a result."""
Bound = tuple[str, str]
"""Name of an aim, and ``least`` or ``most``."""
SOUND, NOTHING = "sound", "nothing measured"
"""Names of the correct result, and of the result without runs."""


def simulated_results(
    scenario: Scenario[Any, Any, Any, Any], options: Mapping[str, str], measure: Callable[[Turn[Any]], Any]
) -> Results[Any, Any]:
    """Return the results that *scenario* would have with *options*.

    *measure* replaces the measurement: it gets the run's turn, and returns the measured values. A run for which
    *measure* returns None is left out.
    """
    turns, runs = scenario.plan(scenario.chosen(options)), []
    for turn in turns:
        found = measure(turn)
        if found is not None:
            parts = found if isinstance(found, Mapping) else {"": found}
            runs += [Run(turn, each, part) for part, each in parts.items()]
    return scenario.results(turns, runs)


@dataclass(frozen=True)
class VerdictCases:
    """The correct result and the mutants of one experiment."""

    scenario: Scenario[Any, Any, Any, Any]
    options: Mapping[str, str]
    measure: Callable[..., Any]
    """Returns the values that a turn measures; None if the run is missing. Without other arguments, they are right."""
    mutants: Mapping[str, Mapping[str, Any]]
    """For each fault: keyword arguments for *measure*, with which the values are faulty."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Mutants for which the experiment raises an error instead of a verdict, each with the error message. All other
    mutants must miss an aim."""

    @property
    def mutant_names(self) -> tuple[str, ...]:
        """Names of all mutants. One of them has no runs."""
        return (NOTHING, *self.mutants)

    def results(self, name: str = SOUND) -> Results[Any, Any]:
        """Return the results of the mutant *name*, or the correct results."""
        measure = partial(self.measure, **self.mutants.get(name, {}))
        return simulated_results(self.scenario, self.options, (lambda turn: None) if name == NOTHING else measure)

    def aims(self, name: str = SOUND) -> Sequence[Aim]:
        return self.scenario.aims(self.results(name))

    def aims_or_none(self, name: str = SOUND) -> Sequence[Aim]:
        """Return the aims of a result. If the experiment refuses to judge it, there are none."""
        try:
            return self.aims(name)
        except REFUSALS:
            return ()


def bounds_of(aims: Iterable[Aim]) -> set[Bound]:
    """Return all bounds of *aims*."""
    return {(aim.what, side) for aim in aims for side in ("least", "most") if getattr(aim, side) is not None}


def violated_bounds(aims: Iterable[Aim]) -> set[Bound]:
    """Return the bounds that the values of *aims* violate. NaN violates none."""
    return {
        (aim.what, side)
        for aim in aims
        for side, sign in (("least", 1), ("most", -1))
        if (bound := getattr(aim, side)) is not None and aim.value is not None and sign * aim.value < sign * bound
    }


def is_missed(aim: Aim) -> bool:
    """Return whether *aim* is missed, or is a claim of a paper that fails."""
    return aim.verdict in ("missed", "fails")


def constant(rate: float) -> Load:
    return lambda _: rate


def between(start: float, end: float, inside: float, otherwise: float) -> Load:
    """Return a load of *inside* Mbit/s from *start* to *end*, and of *otherwise* at other times."""
    return lambda time: inside if start <= time < end else otherwise


def series(loads: Mapping[str, Load], seconds: float, interval: float = 0.1) -> list[Sample]:
    """Return samples of the devices' byte counters. *loads* are the devices' rates."""
    octets = dict.fromkeys(loads, 0.0)
    samples = []
    for step in range(round(seconds / interval) + 1):
        time = step * interval
        samples.append(Sample(round(time, 6), {name: round(value) for name, value in octets.items()}))
        for name, load in loads.items():
            octets[name] += load(time + interval / 2) * MBIT / 8 * interval
    return samples
