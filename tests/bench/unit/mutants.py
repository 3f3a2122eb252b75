# SPDX-License-Identifier: GPL-2.0-or-later
"""What a verdict must be broken by: sound results of an experiment, and results in which something was wrong.

Each experiment has a ``Judge``. Its mutants are made-up series and records: a dead throttler, one that caps the wrong
path, a cap that never comes, a path that nothing uses, no emulation, plain TCP, nothing measured at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from rich.console import Console

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.attempts import Attempts
from mptcp_bench.experiments.findings import Findings
from mptcp_lab.testbed import EmulationError, TestbedError
from mptcp_lab.testbed.recorder import Sample

MBIT = 1_000_000
Load = Callable[[float], float]
"""Mbit/s at a time, seconds since the begin of a series."""
REFUSALS = (ValueError, TestbedError)
Bound = tuple[str, str]
"""The name of an aim, and ``least`` or ``most``."""


@dataclass(frozen=True)
class Judge:
    """How one experiment judges."""

    sound: Callable[[], Sequence[Aim]]
    mutants: Mapping[str, Callable[[], Sequence[Aim]]]
    """What is wrong, and what the experiment makes of it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """By mutant, of those that the experiment refuses to judge: its words. All others miss an aim."""


def with_attempts(judge: Judge) -> Judge:
    """Return *judge* of an experiment that makes an attempt again: one was, for the emulator was late."""

    def judging(of: Callable[[], Sequence[Aim]], *more: TestbedError) -> Callable[[], Sequence[Aim]]:
        def judged() -> Sequence[Aim]:
            attempts = Attempts(Console(quiet=True))
            failing = iter((EmulationError("the emulator was late"), *more))

            def run() -> None:
                for error in failing:
                    raise error

            attempts.of(run, "one", most=3)
            return attempts.judged(Findings((), {}, aims=tuple(of()))).aims

        return judged

    mutants = {name: judging(of) for name, of in judge.mutants.items()}
    failed = TestbedError("the connection fell back to TCP")
    mutants["it works at the second attempt alone"] = judging(judge.sound, failed)
    return Judge(judging(judge.sound), mutants, judge.refused)


def missed(judged: Callable[[], Sequence[Aim]]) -> set[str]:
    """Return the names of the aims that were missed."""
    return {aim.what for aim in judged() if not aim.met}


def bounds(aims: Iterable[Aim]) -> set[Bound]:
    """Return the bounds that there are."""
    sides = ((aim.what, side) for aim in aims for side in ("least", "most") if getattr(aim, side) is not None)
    return set(sides)


def broken(aims: Iterable[Aim]) -> set[Bound]:
    """Return the bounds beyond which a value is; one that is no number is beyond none."""
    there = list(aims)
    low = {(aim.what, "least") for aim in there if aim.least is not None and aim.value < aim.least}
    return low | {(aim.what, "most") for aim in there if aim.most is not None and aim.value > aim.most}


def judged_by(judged: Callable[[], Sequence[Aim]]) -> Sequence[Aim]:
    """Return the aims of a result; none where the experiment refuses to judge it."""
    try:
        return judged()
    except REFUSALS:
        return ()


def constant(rate: float) -> Load:
    return lambda _: rate


def series(loads: Mapping[str, Load], seconds: float, interval: float = 0.1) -> list[Sample]:
    """Return the byte counters of devices under *loads*."""
    octets = dict.fromkeys(loads, 0.0)
    samples = []
    for step in range(round(seconds / interval) + 1):
        time = step * interval
        samples.append(Sample(round(time, 6), {name: round(value) for name, value in octets.items()}))
        for name, load in loads.items():
            octets[name] += load(time + interval / 2) * MBIT / 8 * interval
    return samples


@contextmanager
def late(*_: object, **__: object) -> Iterator[object]:
    """A testbed whose paths were not as asked, which is known at its end."""
    yield SimpleNamespace(check_emulation=lambda: None)
    raise EmulationError("wifi: 3 % of the packets went late")
