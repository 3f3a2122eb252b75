# SPDX-License-Identifier: GPL-2.0-or-later
"""The bench's statistics, each defined once: intervals, percentiles, comparisons of two samples. Pure.

Intervals are Student's t intervals, because runs are few and independent, and their variance is not known beforehand
(NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.2.1). Two samples are compared by Welch's t (7.3.1), which does
not assume equal variances. Means and the normal distribution are the standard library's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf, isfinite, isnan, modf, nan, sqrt
from statistics import NormalDist, fmean, geometric_mean, stdev, variance
from typing import Any, TypeVar

__all__ = [
    "CONFIDENCE", "Comparison", "Interval", "NormalDist", "compare", "exact_median_interval", "fmean", "geometric_mean",
    "histogram_percentiles", "mean_bounds", "mean_interval", "median", "of_median", "percentile", "percentiles",
]  # fmt: skip

T = TypeVar("T")
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval. The bounds are None for fewer than two values."""

    n: int
    mean: float
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        """Return the half-width of the interval, which is the number after the ±."""
        return None if self.high is None else self.high - self.mean


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of *values* with its two-sided t-interval. Raises ValueError if there are no values."""
    if not values:
        raise ValueError("the mean of no values")
    n, mean = len(values), fmean(values)
    if n < 2:
        return Interval(n, mean, None, None)
    # scipy.stats.t.interval is not used, because it returns NaN for equal values. Their interval has the width 0.
    half = _t((1 + CONFIDENCE) / 2, n - 1) * stdev(values, mean) / sqrt(n)
    return Interval(n, mean, mean - half, mean + half)


def percentiles(values: Sequence[float], percents: Sequence[float], *, default: float | None = None) -> list[float]:
    """Return percentiles of *values*, interpolated linearly between neighbours; infinite values are allowed.

    All results are NaN if any value is NaN, because NaN cannot be ordered.

    :raises ValueError: a percentile is not 0 to 100, or there are no values and no *default*
    """
    if not all(0 <= percent <= 100 for percent in percents):
        raise ValueError("a percentile is 0 to 100")
    if not values:
        if default is None:
            raise ValueError("a percentile of no values")
        return [default] * len(percents)
    if any(map(isnan, values)):
        return [nan] * len(percents)
    # numpy.percentile is not used, because it returns NaN between two infinities.
    ordered = [*sorted(values), max(values)]
    results = []
    for percent in percents:
        fraction, index = modf((len(values) - 1) * percent / 100)
        low, high = ordered[int(index) : int(index) + 2]
        results.append(float(min(low + fraction * (high - low), high) if fraction and low < high else low))
    return results


def percentile(values: Sequence[float], percent: float, *, default: float | None = None) -> float:
    """Return one percentile of *values*, with *default* and errors as in :func:`percentiles`."""
    return percentiles(values, (percent,), default=default)[0]


def median(values: Sequence[float], *, default: float | None = None) -> float:
    """Return the 50th percentile of *values*, with *default* and errors as in :func:`percentiles`."""
    return percentile(values, 50, default=default)


def histogram_percentiles(
    counts: Sequence[int], percents: Sequence[float], value: Callable[[int], float]
) -> tuple[float, ...]:
    """Return percentiles of a histogram: the *value* of the first bucket at which the cumulative share is reached.

    This is the nearest rank, because a histogram has no single values to interpolate between. For an empty histogram
    the results are infinity.
    """
    sums = list(accumulate(counts))
    ranks = [max(sums[-1] * percent / 100, 1) for percent in percents] if any(counts) else []
    found = (next(bucket for bucket, below in enumerate(sums) if below >= rank) for rank in ranks)
    return tuple(map(value, found)) or (inf,) * len(percents)


def of_median(items: Iterable[T], key: Callable[[T], Any]) -> T:
    """Return the item with the median *key*; of two middle items, the lower. Raises ValueError for no items."""
    ordered = sorted(items, key=key)
    if not ordered:
        raise ValueError("the median of nothing")
    return ordered[(len(ordered) - 1) // 2]


def exact_median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the narrowest interval between two of *values*, equally far from both ends, that contains the median.

    The method assumes no distribution (Conover, Practical Nonparametric Statistics, 3.2): the number of values below
    the median has a binomial distribution. The result is None if there are too few values: fewer than six for 95 %.
    """
    from scipy.special import bdtrik

    ordered = sorted(values)
    # The greatest number of values that can be left out at either end.
    left_out = ceil(bdtrik((1 - CONFIDENCE) / 2, len(ordered), 0.5)) if ordered else 0
    return (ordered[left_out - 1], ordered[-left_out]) if left_out else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mean of a sample minus its reference, with one-sided bounds of 95 %, which are None for too few values."""

    difference: float
    low: float | None
    high: float | None


def compare(sample: Sequence[float], reference: Sequence[float] | float, factor: float = 1.0) -> Comparison:
    """Compare the mean of *sample* with *factor* times *reference* (a constant, or a mean). Raises ValueError."""
    is_constant = isinstance(reference, int | float)
    others = [reference] if isinstance(reference, int | float) else reference
    if not sample or not others:
        raise ValueError("a comparison with no values")
    difference = fmean(sample) - factor * fmean(others)
    parts = [(sample, 1.0)] if is_constant else [(sample, 1.0), (others, factor)]
    if any(len(values) < 2 for values, _ in parts):
        return Comparison(difference, None, None)
    # Squared standard error of each mean, then Welch-Satterthwaite degrees of freedom.
    squares = [weight**2 * variance(values) / len(values) for values, weight in parts]
    if not (error := sqrt(sum(squares))):
        return Comparison(difference, difference, difference)
    freedom = 1 / sum((s / sum(squares)) ** 2 / (len(v) - 1) for s, (v, _) in zip(squares, parts, strict=True))
    half = _t(CONFIDENCE, freedom) * error
    return Comparison(difference, difference - half, difference + half)


def mean_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the one-sided 95 % bounds of the mean; NaN for fewer than two values; the mean if a value is infinite."""
    if len(values) > 1 and not all(map(isfinite, values)):
        return fmean(values), fmean(values)
    found = compare(values, 0.0) if values else Comparison(nan, None, None)
    return (nan, nan) if found.low is None or found.high is None else (found.low, found.high)


def _t(probability: float, freedom: float) -> float:
    # scipy.stats is not used: its import takes a second, and each value takes a hundred times as long.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
