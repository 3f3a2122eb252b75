"""From what was measured to verdicts on what the paper says. Pure.

``holds``: measured so. ``fails``: measured otherwise; where a reason is likely, it is said to be no more than that.
``differs``: measured otherwise because a kernel, a host or a throttler of today works otherwise than the paper's Linux
3.14 with MPTCP 0.89, and the mechanism that is named was measured. ``not judged``: what was measured is not enough.
No verdict is written down without a comparison that decides it, and one that noise leaves open decides nothing; what is
counted, such as downloads in which a cap came, takes two of them. Each claim has mutants that break it
(tests/bench/unit/paper_mutants.py): a new one needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..result_file import JudgedClaim, Judgement
from ..statistics import Comparison, compare, no_less_than
from .quantities import show
from .results import PaperResult, Statistic

FEWEST = 2
"""Runs of a case, at least, by which what is counted is judged: a single one confirms nothing and refutes nothing."""


class Missing(Exception):
    """What was measured is not enough to judge; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was measured about a claim."""

    measured: str
    verdict: Judgement
    why: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that the paper says."""

    id: str
    paper: str
    """In our words."""
    find: Callable[[Measured], Finding]
    """Raises Missing where what it needs was not measured."""


class Claims(dict[str, list[Claim]]):
    """What the paper says, by scenario, in the order in which it was entered."""

    def of(self, scenario: str, id: str, paper: str) -> Callable[[Callable[[Measured], Finding]], None]:
        """Enter the decorated function as what judges a claim of *scenario*."""

        def enter(find: Callable[[Measured], Finding]) -> None:
            self.setdefault(scenario, []).append(Claim(id, paper, find))

        return enter

    def judge(self, result: PaperResult) -> tuple[JudgedClaim, ...]:
        """Return a verdict for each claim about the scenario of *result*."""
        measured = Measured(result)
        verdicts = []
        for claim in self.get(result.experiment, ()):
            try:
                found = claim.find(measured)
            except Missing as missing:
                found = Finding(f"{missing}.", "not judged")
            verdicts.append(JudgedClaim(claim.id, claim.paper, found.measured, found.verdict, found.why))
        return tuple(verdicts)


class Measured:
    """The summary of a result, for claims to ask."""

    def __init__(self, result: PaperResult) -> None:
        self.result = result

    def __call__(self, case: str, metric: str) -> Statistic:
        found = self.result.statistic(case, metric)
        if found is None:
            raise Missing(f"{name_of(metric)} of {case} was not measured")
        return found

    def mean(self, case: str, metric: str) -> float:
        return self(case, metric).mean

    def valid(self, case: str) -> int:
        return len(self.result.valid(case))


def name_of(metric: str) -> str:
    return metric.replace("_", " ")


def above(sample: Statistic, reference: Statistic | float, factor: float = 1.0) -> bool:
    """Say whether the mean of *sample* is above *factor* times that of *reference*, by a bound of 95 % confidence.

    False says that it is below. Raises Missing where the runs leave it open: noise neither confirms nor refutes.
    """
    others = reference.values if isinstance(reference, Statistic) else reference
    return _decided(compare(sample.values, others, factor), sample, reference)


def no_less(sample: Statistic, reference: Statistic, margin: float) -> bool:
    """Say whether *sample* is less than *reference* by *margin*, a share of it, at most; raises as :func:`above`."""
    return _decided(no_less_than(sample.values, reference.values, margin), sample, reference)


def _decided(comparison: Comparison, sample: Statistic, reference: Statistic | float) -> bool:
    if comparison.holds is None:
        against = f", against {_shown(reference)} of {reference.case}" if isinstance(reference, Statistic) else ""
        raise Missing(
            f"{name_of(sample.metric)} of {sample.case}, {_shown(sample)}{against}: the runs are too few, or too far "
            "apart, to tell; more repetitions would"
        )
    return comparison.holds


def _shown(statistic: Statistic) -> str:
    return show(statistic.mean, statistic.unit, statistic.half)


def shifted(sample: Statistic, by: float) -> Statistic:
    """Return *sample* with *by* added to each value."""
    low, high = (None if bound is None else bound + by for bound in (sample.low, sample.high))
    values = tuple(value + by for value in sample.values)
    return replace(sample, mean=sample.mean + by, low=low, high=high, values=values)


def within(sample: Statistic, low: float, high: float) -> bool:
    """Say whether the mean of *sample* lies between *low* and *high*; raises as :func:`above` does."""
    return above(sample, low) and not above(sample, high)


def either(condition: bool) -> Judgement:
    return "holds" if condition else "fails"


def explained(holds: bool, mechanism: Callable[[], bool], why: str) -> tuple[Judgement, str]:
    """Return the verdict on a claim that a kernel of today may be the reason for, and the reason.

    It ``differs`` only where the *mechanism* that *why* names was itself measured; otherwise it just fails. *mechanism*
    is asked where the claim does not hold, and raises as :func:`above` does: then noise is all between the two.
    """
    if holds:
        return "holds", ""
    return ("differs", why) if mechanism() else ("fails", "")


def likely(holds: bool, why: str, *, signs: Callable[[], bool] = lambda: True) -> tuple[Judgement, str]:
    """Return the verdict on a claim whose failure has a likely reason, *why*, that the runs do not measure.

    Nothing is said of it where what they do measure has no *signs* of it, or leaves them open.
    """
    if holds:
        return "holds", ""
    try:
        shown = signs()
    except Missing:
        shown = False
    return "fails", f"Likely, but not measured: {why}" if shown else ""
