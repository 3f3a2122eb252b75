# SPDX-License-Identifier: GPL-2.0-or-later
"""Claims of a paper that an experiment repeats: the paper's words, our value in each round, and the verdict. Pure.

A claim is also an aim, which compares the median, or the mean, with the bound. The verdict compares the 95 % confidence
interval with the bound: a claim *holds* or *fails* if the whole interval is on one side of the bound. Otherwise, the
claim is *not judged*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.table import Table as RichTable

from ..result_file import Judgement, shown
from ..statistics import exact_median_interval, fmean, mean_bounds, median
from .aims import Aim
from .columns import Results, Table

FEWEST = 6
"""Minimum number of rounds for an interval of the median: with fewer, the whole range has less than 95 % confidence."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the paper, and the value that we measured for it in each round."""

    paper: str
    what: str
    values: tuple[float, ...]
    unit: str = ""
    least: float | None = None
    most: float | None = None
    by: Literal["median", "mean"] = "median"
    """The mean has an interval after two rounds, but this interval assumes a distribution."""

    @property
    def aim(self) -> Aim:
        combine = median if self.by == "median" else fmean
        value = combine(self.values) if self.values else math.nan
        return Aim(self.what, value, self.unit, least=self.least, most=self.most)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The confidence interval; None if there are too few values, or values that are not finite."""
        if len(self.values) < 2 or not all(map(math.isfinite, self.values)):
            return None
        return exact_median_interval(self.values) if self.by == "median" else mean_bounds(self.values)

    @property
    def verdict(self) -> Judgement:
        if self.interval is None:
            return "not judged"
        low, high = self.interval
        if (self.least is not None and high < self.least) or (self.most is not None and low > self.most):
            return "fails"
        within = (self.least is None or low >= self.least) and (self.most is None or high <= self.most)
        return "holds" if within else "not judged"


@dataclass(frozen=True, slots=True)
class Claims(Table[Any, Any]):
    """A table of the paper's claims, in the form that the documentation uses for the other paper."""

    claims: Callable[[Results[Any, Any]], Sequence[Claim]] = lambda found: ()

    def shown(self, results: Results[Any, Any]) -> RichTable:
        head = ("the paper says", "measured", "verdict")
        table = RichTable(*head, title=f"Claims: {self.title}", title_justify="left")
        for claim in self.claims(results):
            measured = f"{claim.what}: {claim.aim.measured}"
            if claim.interval is not None:
                low, high = claim.interval
                measured += f" ({shown(low, claim.unit)} to {shown(high, claim.unit)}, n = {len(claim.values)})"
            table.add_row(claim.paper, f"{measured}; wanted {claim.aim.wanted}", claim.verdict)
        return table
