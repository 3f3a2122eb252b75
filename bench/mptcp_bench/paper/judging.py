# SPDX-License-Identifier: GPL-2.0-or-later
"""Verdicts on the paper's claims, from measurements. Pure.

``holds``: the measurements confirm the claim. ``fails``: they refute the claim; a likely reason is called likely.
``differs``: they refute the claim because today's kernel, host or throttler works differently from the paper's Linux
3.14 with MPTCP 0.89, and the named mechanism was itself measured. ``not judged``: there are not enough measurements.
Every verdict needs a comparison that decides it. Noise decides nothing, and a count, such as the number of downloads
with a cap in force, needs two runs. Each claim has mutants that break it (tests/bench/unit/paper_mutants.py); a new
claim needs such a mutant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..result_file import Judgement, Verdict
from ..statistics import Comparison, compare, no_less_than
from .quantities import show
from .results import Measurements, Missing, Statistic, metric, statistic_of

FEWEST = 2
"""Minimum number of runs of a case to judge a count. A single run neither confirms nor refutes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The measured values for a claim, as text, and the verdict."""

    measured: str
    verdict: Judgement
    why: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the paper, and the function that judges it."""

    id: str
    paper: str
    """The statement in our words."""
    find: Callable[[Measurements], Finding]
    """Judges the claim. It raises Missing if a measurement that it needs is missing."""

    def judge(self, measured: Measurements) -> Verdict:
        try:
            found = self.find(measured)
        except Missing as missing:
            found = Finding(f"{missing}.", "not judged")
        return Verdict(self.paper, None, verdict=found.verdict, said=found.measured, why=found.why)


CLAIMS: dict[str, list[Claim]] = {}
"""The paper's claims by scenario, in the order in which they were registered."""


def claim(scenario: str, id: str, paper: str) -> Callable[[Callable[[Measurements], Finding]], None]:
    """Register the decorated function as the judge of a claim about *scenario*."""

    def enter(find: Callable[[Measurements], Finding]) -> None:
        CLAIMS.setdefault(scenario, []).append(Claim(id, paper, find))

    return enter


def above(sample: Statistic, reference: Statistic | float, factor: float = 1.0) -> bool:
    """Return whether the mean of *sample* is above *factor* times *reference*, by a bound of 95 % confidence.

    False means that the mean is below. Raises Missing if the runs decide neither, because of noise.
    """
    return _decided(compare(sample.values, _values(reference), factor), sample, reference)


def no_less(sample: Statistic, reference: Statistic, margin: float) -> bool:
    """Return whether *sample* is less than *reference* by at most the share *margin*; raises as :func:`above`."""
    return _decided(no_less_than(sample.values, reference.values, margin), sample, reference)


def _values(reference: Statistic | float) -> Sequence[float] | float:
    return reference.values if isinstance(reference, Statistic) else reference


def _decided(comparison: Comparison, sample: Statistic, reference: Statistic | float) -> bool:
    if comparison.holds is None:
        against = f", against {_shown(reference)} of {reference.case}" if isinstance(reference, Statistic) else ""
        raise Missing(
            f"{metric(sample.metric).title} of {sample.case}, {_shown(sample)}{against}: the runs are too few, or too "
            "far apart, to tell; more repetitions would"
        )
    return comparison.holds


def _shown(statistic: Statistic) -> str:
    return show(statistic.mean, statistic.unit, statistic.half)


def shifted(sample: Statistic, by: float) -> Statistic:
    """Return *sample* with *by* added to each value."""
    return statistic_of(sample.case, sample.metric, [value + by for value in sample.values])


def within(sample: Statistic, low: float, high: float) -> bool:
    """Return whether the mean of *sample* is between *low* and *high*; raises as :func:`above`."""
    return above(sample, low) and not above(sample, high)


def either(condition: bool) -> Judgement:
    return "holds" if condition else "fails"


def explained(holds: bool, mechanism: Callable[[], bool], why: str) -> tuple[Judgement, str]:
    """Return the verdict on a claim that today's kernel may invalidate, and the reason.

    The verdict is ``differs`` only if the *mechanism* that *why* names was itself measured; otherwise the claim fails.
    *mechanism* is called only if the claim does not hold. It raises as :func:`above` if noise leaves it undecided.
    """
    if holds:
        return "holds", ""
    return ("differs", why) if mechanism() else ("fails", "")


def likely(holds: bool, why: str, *, signs: Callable[[], bool] = lambda: True) -> tuple[Judgement, str]:
    """Return the verdict on a claim whose failure has a likely, but unmeasured, reason *why*.

    The reason is left out if the measurements show no *signs* of it, or do not decide this.
    """
    if holds:
        return "holds", ""
    try:
        shown = signs()
    except Missing:
        shown = False
    return "fails", f"Likely, but not measured: {why}" if shown else ""
