# SPDX-License-Identifier: GPL-2.0-or-later
"""The bench's statistics, each defined once: intervals, percentiles, comparisons of two samples. Pure.

Intervals are Student's t intervals, because runs are few and independent, and their variance is not known beforehand
(NIST/SEMATECH e-Handbook of Statistical Methods, 7.2.2.1). Two samples are compared by Welch's t (7.3.1), which does
not assume equal variances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import ceil, isfinite, isnan, modf, nan, sqrt
from statistics import fmean, geometric_mean, stdev, variance
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "CONFIDENCE", "Comparison", "Interval", "compare", "exact_median_interval", "fmean", "geometric_mean",
    "mean_bounds", "mean_interval", "median", "median_item", "percentile", "percentiles",
]  # fmt: skip

T = TypeVar("T")
CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean with the half-width of its confidence interval, which is None for a single value."""

    mean: float
    half: float | None


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of *values* with its two-sided t-interval. Raises ValueError if there are no values."""
    n, mean = len(values), fmean(values)
    # scipy.stats.t.interval is not used, because it returns NaN for equal values. Their interval has the width 0.
    half = _t((1 + CONFIDENCE) / 2, n - 1) * stdev(values, mean) / sqrt(n) if n > 1 else None
    return Interval(mean, half)


def percentiles(values: Sequence[float], percents: Sequence[float], *, default: float | None = None) -> list[float]:
    """Return percentiles of *values*, interpolated linearly between neighbours; infinite values are allowed.

    All results are NaN if any value is NaN, because NaN cannot be ordered. Without values, all results are *default*;
    without a default, a ValueError is raised.
    """
    if not values and default is not None:
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


def median_item(items: Iterable[T], key: Callable[[T], Any]) -> T:
    """Return the item with the median *key*; of two middle items, the lower. *items* must not be empty."""
    ordered = sorted(items, key=key)
    return ordered[(len(ordered) - 1) // 2]


def exact_median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the confidence interval of the median: from the i-th smallest to the i-th greatest of *values*.

    The method assumes no distribution (Conover, Practical Nonparametric Statistics, 3.2): the number of values below
    the median has a binomial distribution. The result is None if there are too few values: fewer than six for 95 %.
    """
    from scipy.special import bdtrik

    ordered = sorted(values)
    # The greatest number of values that can be left out at either end.
    left_out = ceil(bdtrik((1 - CONFIDENCE) / 2, len(ordered), 0.5)) if ordered else 0
    return (ordered[left_out - 1], ordered[-left_out]) if left_out else None


class Comparison(NamedTuple):
    """One-sided 95 % confidence bounds of a sample's mean minus its reference; None for too few values."""

    low: float | None
    high: float | None


def compare(sample: Sequence[float], reference: Sequence[float] | float, factor: float = 1.0) -> Comparison:
    """Compare the mean of *sample* with *factor* times *reference* (or its mean). Raises ValueError."""
    is_constant = isinstance(reference, int | float)
    others = [reference] if isinstance(reference, int | float) else reference
    difference = fmean(sample) - factor * fmean(others)
    parts = [(sample, 1.0)] if is_constant else [(sample, 1.0), (others, factor)]
    if any(len(values) < 2 for values, _ in parts):
        return Comparison(None, None)
    # Squared standard error of each mean, then Welch-Satterthwaite degrees of freedom.
    squares = [weight**2 * variance(values) / len(values) for values, weight in parts]
    if not (error := sqrt(sum(squares))):
        return Comparison(difference, difference)
    freedom = 1 / sum((s / sum(squares)) ** 2 / (len(v) - 1) for s, (v, _) in zip(squares, parts, strict=True))
    half = _t(CONFIDENCE, freedom) * error
    return Comparison(difference - half, difference + half)


def mean_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the one-sided 95 % bounds of the mean; NaN for fewer than two values; the mean if a value is infinite."""
    if len(values) > 1 and not all(map(isfinite, values)):
        return fmean(values), fmean(values)
    found = compare(values, 0.0) if values else Comparison(None, None)
    return (nan, nan) if found.low is None or found.high is None else (found.low, found.high)


def _t(probability: float, freedom: float) -> float:
    # scipy.stats is not used: its import takes a second, and each value takes a hundred times as long.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
