# SPDX-License-Identifier: GPL-2.0-or-later
"""Claims of a paper that an experiment repeats: the paper's words, our value in each round, and the verdict.

The value of a claim is a median or a mean. The verdict compares its 95 % confidence interval with the bound: a claim
*holds* or *fails* if the whole interval is on one side of the bound. Otherwise, the claim is *not judged*. A statement
of the paper may need several claims, and may have a :class:`Reason` why it does not hold today: :func:`judged`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ..result_file import Judgement, Verdict, number_text
from ..statistics import compare, exact_median_interval, fmean, mean_bounds, median
from .findings import Aim

FEWEST = 6
"""Minimum number of rounds for an interval of the median: with fewer rounds, not even the interval between the smallest
and the greatest value has 95 % confidence."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the paper, and the value that we measured for it in each round."""

    paper: str
    """The statement, in the paper's words or ours."""
    what: str
    """Name of the value."""
    values: tuple[float, ...]
    unit: str = ""
    least: float | None = None
    most: float | None = None
    by: Literal["median", "mean", "each"] = "median"
    """The mean has an interval after two rounds, but this interval assumes a normal distribution. ``each``: all values
    must be within the bounds. An example is yes (1) or no (0)."""
    reference: tuple[float, ...] | None = None
    """If given, the bounds are for the mean of *values* as a multiple of the mean of *reference* (Welch's t)."""

    @property
    def aim(self) -> Aim:
        value = (median if self.by == "median" else fmean)(self.values) if self.values else math.nan
        if self.reference is not None:
            divisor = fmean(self.reference or (0.0,))
            value = value / divisor if divisor else math.nan
        return Aim(self.what, value, self.unit, least=self.least, most=self.most)

    @property
    def is_measured(self) -> bool:
        """Whether there are enough values for an interval, and all are finite. Two samples of zeros have no ratio."""
        samples = [self.values] if self.reference is None else [self.values, self.reference]
        has_ratio = self.reference is None or any((*self.values, *self.reference))
        return has_ratio and all(len(sample) > 1 and all(map(math.isfinite, sample)) for sample in samples)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval; None if there are too few values, values that are not finite, or no ratio."""
        if not self.is_measured:
            return None
        if self.by == "each":
            return min(self.values), max(self.values)
        if self.by == "median":
            return exact_median_interval(self.values)
        if self.reference is None:
            return mean_bounds(self.values)
        ratio, divisor = self.aim.value, fmean(self.reference)
        if ratio is None or not divisor:
            return None
        low, high = self._margins(ratio)
        return ratio + low / divisor, ratio + high / divisor

    def _margins(self, bound: float) -> tuple[float, float]:
        """Return the interval minus *bound*; with a reference, that of the mean minus *bound* × the other mean."""
        if self.reference is None:
            low, high = self.interval or (-math.inf, math.inf)
            return low - bound, high - bound
        lower, upper = compare(self.values, self.reference, bound)
        return -math.inf if lower is None else lower, math.inf if upper is None else upper

    @property
    def verdict(self) -> Judgement:
        if not self.is_measured:
            return "not judged"
        above_least = (math.inf, math.inf) if self.least is None else self._margins(self.least)
        above_most = (-math.inf, -math.inf) if self.most is None else self._margins(self.most)
        if above_least[0] >= 0 >= above_most[1]:
            return "holds"
        # A claim about each value fails if a single value is outside the bounds.
        return "fails" if self.by == "each" or above_least[1] < 0 or above_most[0] > 0 else "not judged"

    @property
    def judged(self) -> Verdict:
        """The verdict on a statement that needs only this claim."""
        return replace(self.aim, what=self.paper, verdict=self.verdict, measured_text=self.text)

    @property
    def text(self) -> str:
        """The value, its interval and its bounds as text."""
        measured = f"{self.what}: {self.aim.measured}"
        if self.interval is not None:
            low, high = self.interval
            measured += f" ({number_text(low, '')} to {number_text(high, self.unit)}, n = {len(self.values)})"
        return f"{measured}; wanted {self.aim.wanted}"


condition = partial(Claim, "")
"""Returns a claim that is one condition of a statement. :func:`judged` gets the statement's words."""


def verdict_on_all(claims: Sequence[Claim]) -> Judgement:
    """Return the verdict on a statement that needs all *claims*."""
    verdicts = {claim.verdict for claim in claims}
    if "fails" in verdicts:
        return "fails"
    return "not judged" if "not judged" in verdicts else "holds"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a statement does not hold today, and the claims that show that this is the reason."""

    explanation: str
    signs: Sequence[Claim]


def judged(paper: str, claims: Sequence[Claim], *reasons: Reason, given: Sequence[Claim] = ()) -> Verdict:
    """Return the verdict on the statement *paper*, which needs all *claims*.

    If the statement fails, but the signs of a reason hold, the verdict is *differs*. The statement is not judged if the
    runs do not decide these signs, or if the paper's conditions, *given*, do not hold here.
    """
    verdict: Judgement = verdict_on_all(claims) if verdict_on_all(given) == "holds" else "not judged"
    explanation, shown_claims = "", [*given, *claims]
    if verdict == "fails":
        signs = [(reason, verdict_on_all(reason.signs)) for reason in reasons]
        proven = next((reason for reason, shows in signs if shows == "holds"), None)
        if proven is not None:
            verdict, explanation = "differs", proven.explanation
            shown_claims += proven.signs
        elif any(shows == "not judged" for _, shows in signs):
            verdict = "not judged"
    texts = "; ".join(dict.fromkeys(claim.text for claim in shown_claims))
    return Verdict(paper, None, verdict=verdict, measured_text=texts, explanation=explanation)
