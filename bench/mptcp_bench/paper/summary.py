# SPDX-License-Identifier: GPL-2.0-or-later
"""Summaries of the paper's results: statistics for each case and metric, pooled delays, the run to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..statistics import mean_interval, of_median
from .results import GOODPUT, METRICS, Case, PaperResult, Run, Statistic, metric


def in_order(names: Iterable[str]) -> list[str]:
    """Return metric names without duplicates, in the order of METRICS; unknown ones come last."""
    order = {key: number for number, key in enumerate(METRICS)}
    return sorted(dict.fromkeys(names), key=lambda name: order.get(name, len(order)))


def summarise(cases: Iterable[Case], runs: Sequence[Run]) -> tuple[Statistic, ...]:
    """Return the statistic of each metric of each case, over its valid runs, in the order of METRICS."""
    lines = []
    for case in cases:
        valid = [run for run in runs if run.case == case.key and run.valid]
        for name in in_order(name for run in valid for name in run.values):
            lines.append(summed_up(case.key, name, [run.values[name] for run in valid if name in run.values]))
    return tuple(lines)


def summed_up(case: str, name: str, values: Sequence[float]) -> Statistic:
    """Return the statistic of *values*, at least one, of metric *name*."""
    found = mean_interval(values)
    return Statistic(found.n, found.mean, found.low, found.high, case, name, metric(name).unit, tuple(values))


def pooled(result: PaperResult, distribution: str, case: str | None = None) -> tuple[float, ...]:
    """Return the values of *distribution* of all valid runs together, or of those of *case*."""
    runs = [run for run in result.runs if run.valid and case in (None, run.case)]
    return tuple(value for run in runs for value in run.distributions.get(distribution, ()))


def representative(runs: Sequence[Run]) -> Run | None:
    """Return the run of median goodput (of two in the middle, the lower); None if no run has a time series."""
    with_series = [run for run in runs if run.series is not None]
    return of_median(with_series, lambda run: run.values.get(GOODPUT, 0.0)) if with_series else None
