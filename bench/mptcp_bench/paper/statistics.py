"""Statistics of repeated runs: means with 95 % confidence intervals, percentiles, the representative run.

The interval is Student's t: the runs are few, independent, and their spread is not known beforehand
(e.g. NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.2.1). Fewer than two values give no interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

from .results import GOODPUT, METRICS, Case, Result, Run, Statistic, metric

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval."""

    n: int
    mean: float
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        """What stands behind the ±."""
        return None if self.high is None else self.high - self.mean


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of *values* with its t-interval.

    :raises ValueError: where there is no value
    """
    if not values:
        raise ValueError("the mean of no values")
    n, mean = len(values), fmean(values)
    if n < 2:
        return Interval(n, mean, None, None)
    from scipy import stats

    # Not stats.t.interval: equal values have an interval of no width, and it gives NaN for them.
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1)) * stdev(values, mean) / sqrt(n)
    return Interval(n, mean, mean - half, mean + half)


def percentiles(values: Sequence[float], percents: Sequence[float]) -> list[float]:
    """Return that many percentiles of *values*, linear between order statistics.

    :raises ValueError: where there is no value, or a percentile is not 0 to 100
    """
    if not values:
        raise ValueError("a percentile of no values")
    import numpy as np

    return [float(value) for value in np.percentile(np.asarray(values, dtype=float), list(percents))]


def percentile(values: Sequence[float], percent: float) -> float:
    """Return one percentile of *values* (median: 50); raises as :func:`percentiles` does."""
    return percentiles(values, (percent,))[0]


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of metrics, each once, in the order of METRICS, unknown ones last."""
    order = {key: number for number, key in enumerate(METRICS)}
    return sorted(dict.fromkeys(names), key=lambda name: order.get(name, len(order)))


def summarise(cases: Iterable[Case], runs: Sequence[Run]) -> tuple[Statistic, ...]:
    """Return a line for each case and metric that a valid run has; known metrics first, in the order of METRICS."""
    lines = []
    for case in cases:
        valid = [run for run in runs if run.case == case.key and run.valid]
        for name in in_order(name for run in valid for name in run.values):
            values = tuple(run.values[name] for run in valid if name in run.values)
            found = mean_interval(values)
            unit = metric(name).unit
            lines.append(Statistic(case.key, name, unit, found.n, found.mean, found.low, found.high, values))
    return tuple(lines)


def pooled(result: Result, distribution: str, case: str | None = None) -> tuple[float, ...]:
    """Return the values of *distribution* of all valid runs, or of those of *case*."""
    runs = [run for run in result.runs if run.valid and case in (None, run.case)]
    return tuple(value for run in runs for value in run.distributions.get(distribution, ()))


def representative(runs: Sequence[Run]) -> Run | None:
    """Return the run of median goodput (the lower of the two in the middle); None where none has a time series."""
    with_series = [run for run in runs if run.series is not None]
    ordered = sorted(with_series, key=lambda run: run.values.get(GOODPUT, 0.0))
    return ordered[(len(ordered) - 1) // 2] if ordered else None
