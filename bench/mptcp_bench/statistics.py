"""The statistics of the whole bench, each defined once: intervals, percentiles, comparisons of two samples. Pure.

Intervals are Student's t: runs are few, independent, and their spread is not known beforehand (NIST/SEMATECH e-Handbook
of Statistical Methods, 7.2.2.1). Two samples are compared by Welch's t (7.3.1), which assumes no equal spread: a claim
holds or fails where a one-sided bound excludes the opposite, and is open in between, so that noise confirms nothing.
Means and the normal distribution are the standard library's; the bench has them from here, like all else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import comb, floor, inf, isfinite, isnan, nan, sqrt
from statistics import NormalDist, fmean, geometric_mean, stdev, variance
from typing import Any, TypeVar

__all__ = [
    "CONFIDENCE", "Comparison", "Interval", "NormalDist", "compare", "exact_median_interval", "fmean", "geometric_mean",
    "histogram_percentiles", "mean_bounds", "mean_interval", "mean_or_nan", "median", "median_interval",
    "no_less_than", "of_median", "percentile", "percentiles",
]  # fmt: skip

T = TypeVar("T")
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its confidence interval, None where there are fewer than two values."""

    n: int
    mean: float
    low: float | None
    high: float | None

    @property
    def half(self) -> float | None:
        """What stands behind the ±."""
        return None if self.high is None else self.high - self.mean


def mean_or_nan(values: Sequence[float]) -> float:
    """Return the mean; of nothing, what meets no aim."""
    return fmean(values) if values else nan


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of *values* with its two-sided t-interval.

    :raises ValueError: where there is no value
    """
    if not values:
        raise ValueError("the mean of no values")
    n, mean = len(values), fmean(values)
    if n < 2:
        return Interval(n, mean, None, None)
    # Not scipy.stats.t.interval: equal values have an interval of no width, and it gives NaN for them.
    half = _t((1 + confidence) / 2, n - 1) * stdev(values, mean) / sqrt(n)
    return Interval(n, mean, mean - half, mean + half)


def percentiles(values: Sequence[float], percents: Sequence[float], *, default: float | None = None) -> list[float]:
    """Return that many percentiles of *values*, linear between order statistics; infinite values are allowed.

    Where one is no number, none of the percentiles is: it has no place in an order.

    :raises ValueError: a percentile is not 0 to 100, or there is no value and no *default* for that
    """
    if not all(0 <= percent <= 100 for percent in percents):
        raise ValueError("a percentile is 0 to 100")
    if not values:
        if default is None:
            raise ValueError("a percentile of no values")
        return [default] * len(percents)
    if any(map(isnan, values)):
        return [nan] * len(percents)
    # Not numpy.percentile: it gives NaN between two infinities.
    ordered = sorted(values)
    found = []
    for percent in percents:
        position = (len(ordered) - 1) * percent / 100
        number = floor(position)
        low, high = ordered[number], ordered[min(number + 1, len(ordered) - 1)]
        within = position - number
        found.append(float(min(low + within * (high - low), high) if within and low < high else low))
    return found


def percentile(values: Sequence[float], percent: float, *, default: float | None = None) -> float:
    """Return one percentile of *values*; *default* and errors are those of :func:`percentiles`."""
    return percentiles(values, (percent,), default=default)[0]


def median(values: Sequence[float], *, default: float | None = None) -> float:
    """Return the 50th percentile of *values*; *default* and errors are those of :func:`percentiles`."""
    return percentile(values, 50, default=default)


def histogram_percentiles(
    counts: Sequence[int], percents: Sequence[float], value: Callable[[int], float]
) -> tuple[float, ...]:
    """Return percentiles of a histogram: the *value* of the first bucket up to which that share of the *counts* is.

    This is the nearest rank: a histogram has no single values, between which :func:`percentiles` could interpolate.
    They are infinite where it is empty.
    """
    total = sum(counts)
    found = []
    for percent in percents:
        wanted, below, there = total * percent / 100, 0, inf
        for number, count in enumerate(counts):
            below += count
            if count and below >= wanted:
                there = value(number)
                break
        found.append(there)
    return tuple(found)


def of_median(items: Iterable[T], key: Callable[[T], Any]) -> T:
    """Return the one of *items* that has the median *key*; of an even number the lower of the two in the middle.

    :raises ValueError: where there is none
    """
    ordered = sorted(items, key=key)
    if not ordered:
        raise ValueError("the median of nothing")
    return ordered[(len(ordered) - 1) // 2]


def median_interval(
    values: Sequence[float], draw: random.Random, *, resamples: int = 2_000, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return the bootstrap interval of the median of *values*, drawn by *draw*.

    :raises ValueError: where there is no value
    """
    medians = [median(draw.choices(values, k=len(values))) for _ in range(resamples)] if values else []
    tail = 50 * (1 - confidence)
    low, high = percentiles(medians, (tail, 100 - tail))
    return low, high


def exact_median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the narrowest interval between two of *values*, as far from either end, that holds the median so surely.

    It assumes nothing of the distribution (Conover, Practical Nonparametric Statistics, 3.2): of n values at most k - 1
    lie below the median with a probability that is the binomial's. None where they are too few for any: less than six
    for 95 %.
    """
    n, found = len(values), 0
    outside = 0.0
    for below in range(n // 2):
        outside += comb(n, below) / 2 ** (n - 1)
        if outside > 1 - confidence:
            break
        found = below + 1
    ordered = sorted(values)
    return (ordered[found - 1], ordered[n - found]) if found else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The mean of a sample minus what it is compared with, with one-sided bounds of 95 % confidence each."""

    difference: float
    low: float | None
    high: float | None
    """None where the values are too few for bounds."""

    @property
    def holds(self) -> bool | None:
        """Whether the sample is above; None where the bounds leave it open."""
        if self.low is None or self.high is None:
            return None
        if self.low > 0:
            return True
        return False if self.high < 0 else None


def compare(sample: Sequence[float], reference: Sequence[float] | float, factor: float = 1.0) -> Comparison:
    """Compare the mean of *sample* with *factor* times *reference*: the mean of another sample, or a constant.

    :raises ValueError: where there is no value
    """
    others = [reference] if isinstance(reference, int | float) else reference
    if not sample or not others:
        raise ValueError("a comparison with no values")
    difference = fmean(sample) - factor * fmean(others)
    parts = [(sample, 1.0)] if isinstance(reference, int | float) else [(sample, 1.0), (others, factor)]
    if any(len(values) < 2 for values, _ in parts):
        return Comparison(difference, None, None)
    # The squared standard error of each mean; Welch and Satterthwaite's degrees of freedom.
    squares = [weight**2 * variance(values) / len(values) for values, weight in parts]
    error = sqrt(sum(squares))
    if not error:
        return Comparison(difference, difference, difference)
    freedom = 1 / sum((s / sum(squares)) ** 2 / (len(v) - 1) for s, (v, _) in zip(squares, parts, strict=True))
    half = _t(CONFIDENCE, freedom) * error
    return Comparison(difference, difference - half, difference + half)


def mean_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper bound of the mean, one-sided, of 95 % confidence each.

    They are no numbers, which meet no aim, where there are fewer than two values; infinite where the mean is.
    """
    if len(values) < 2:
        return nan, nan
    if not all(map(isfinite, values)):
        mean = fmean(values)
        return mean, mean
    found = compare(values, 0.0)
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


def no_less_than(sample: Sequence[float], reference: Sequence[float] | float, margin: float) -> Comparison:
    """Compare *sample* with *reference* for non-inferiority: it may be less by *margin*, a share of the reference.

    It holds where the lower bound of ``mean(sample) - (1 - margin) * mean(reference)`` is above zero.

    :raises ValueError: where there is no value
    """
    return compare(sample, reference, 1 - margin)


def _t(probability: float, freedom: float) -> float:
    """Return a quantile of Student's t."""
    # Not scipy.stats: it takes a second to be imported, and a hundred times as long for each value.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
