"""From what was measured to verdicts on what the paper says. Pure.

``holds``: measured so. ``fails``: measured otherwise, and nothing about the kernels explains it. ``differs``: measured
otherwise because a kernel of today works otherwise than the paper's Linux 3.14 with MPTCP 0.89; why is said. ``not
judged``: what was measured is not enough. The reasons are about mechanisms, the verdicts about figures: no verdict is
written down without a comparison that decides it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .results import Judgement, Result, Statistic, Verdict


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

    def judge(self, result: Result) -> tuple[Verdict, ...]:
        """Return a verdict for each claim about the scenario of *result*."""
        measured = Measured(result)
        verdicts = []
        for claim in self.get(result.experiment, ()):
            try:
                found = claim.find(measured)
            except Missing as missing:
                found = Finding(f"{missing}.", "not judged")
            verdicts.append(Verdict(claim.id, claim.paper, found.measured, found.verdict, found.why))
        return tuple(verdicts)


class Measured:
    """The summary of a result, for claims to ask."""

    def __init__(self, result: Result) -> None:
        self.result = result

    def __call__(self, case: str, metric: str) -> Statistic:
        found = self.result.statistic(case, metric)
        if found is None:
            raise Missing(f"{metric.replace('_', ' ')} of {case} was not measured")
        return found

    def mean(self, case: str, metric: str) -> float:
        return self(case, metric).mean

    def valid(self, case: str) -> int:
        return len(self.result.valid(case))


def separate(low: Statistic, high: Statistic) -> bool:
    """Say whether *low* is below *high*: their 95 % intervals do not touch; of fewer than three runs, all values.

    Raises Missing where two runs overlap: that says nothing.
    """
    if low.high is not None and high.low is not None and min(low.n, high.n) >= 3:
        return low.high < high.low
    if max(low.values) < min(high.values):
        return True
    if min(low.values) > max(high.values) or min(low.n, high.n) == max(low.n, high.n) == 1:
        return False
    raise Missing(f"{low.case} and {high.case} overlap, and fewer than three runs cannot tell")


def either(condition: bool, otherwise: Judgement = "fails") -> Judgement:
    return "holds" if condition else otherwise


def explained(held: bool, mechanism: bool, why: str) -> tuple[Judgement, str]:
    """Return the verdict on a claim that a kernel of today may be the reason for, and the reason.

    It ``differs`` only where the *mechanism* that *why* names was itself measured; otherwise it just fails.
    """
    if held:
        return "holds", ""
    return ("differs", why) if mechanism else ("fails", "")
