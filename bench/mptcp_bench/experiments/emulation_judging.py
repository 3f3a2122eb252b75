# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``emulation`` for round trips, arrivals and throughput. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import nan, sqrt

from mptcp_lab.emulation.model import EmulatedPath, Loss, UniformLoss
from mptcp_lab.testbed.ends import lost_of, reordered

from ..statistics import fmean, median, percentile
from .aims import Aim

MEDIAN_WITHIN, P99_WITHIN = 0.5, 2.0
"""Milliseconds by which the round trip's median and 99th percentile may differ from the configured ones."""
LOSS_WITHIN = 0.1
FULL, OVERLOAD = 0.97, 1.03
"""Shares of a link's rate: what the link must carry at least, and the load that is offered."""
DIRECTIONS = 4
SHARED = 0.5
"""Most lost packets that runs with two different seeds may share, as a share of all lost packets of both."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Round-trip times in milliseconds, and their number."""

    median: float
    p99: float
    most: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Distribution:
        return Distribution(median(values), percentile(values, 99), max(values), len(values))


def asked(path: EmulatedPath) -> Distribution:
    """Return the configured idle round trip of *path*: the sum of two uniform delays has a triangular distribution."""
    jitter = path.down.jitter
    middle = path.rtt / 1e3
    # P(sum > s) = (2j - s)^2 / 8j^2 for s from 0 to 2j.
    return Distribution(middle, middle + jitter * (2 - sqrt(0.08)) / 1e3, middle + 2 * jitter / 1e3, 0)


def run_lengths(lost: Sequence[int]) -> list[int]:
    """Return the lengths of the runs of consecutive numbers in ascending *lost*."""
    if not lost:
        return []
    lengths = [1]
    for before, after in pairwise(lost):
        if after == before + 1:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def mean_run(loss: Loss) -> float:
    """Return the mean number of packets lost in a row: the rate of losses divided by the rate at which bursts begin."""
    if isinstance(loss, UniformLoss):
        return 1 / (1 - loss.probability)
    bad = loss.p / (loss.p + loss.r)
    after_bad = (1 - loss.r) * loss.one_minus_h + loss.r * loss.one_minus_k
    after_good = (1 - loss.p) * loss.one_minus_k + loss.p * loss.one_minus_h
    both = bad * loss.one_minus_h * after_bad + (1 - bad) * loss.one_minus_k * after_good
    return loss.mean / (loss.mean - both)


def _within(what: str, value: float, middle: float, margin: float, unit: str) -> Aim:
    return Aim(what, value, unit, least=round(middle - margin, 3), most=round(middle + margin, 3))


def delays(path: EmulatedPath, idle: Distribution, loaded: Distribution) -> list[Aim]:
    """Return the aims for round trips on *path*, idle and with 80 % load in both directions."""
    want, name = asked(path), f"{path.name} each way"
    # With jitter and load, a packet waits for the one before it, so the median approaches the longest delay.
    most, wider = (want.most, " (wider aim: up to the longest delay)") if path.down.jitter else (want.median, "")
    return [
        _within(f"{name}: RTT idle, median", idle.median, want.median, MEDIAN_WITHIN, " ms"),
        _within(f"{name}: RTT idle, p99", idle.p99, want.p99, P99_WITHIN, " ms"),
        *(
            Aim(f"{name}: RTT with 80 % load, {what}{wider}", value, " ms", want.median - margin, most + margin)
            for what, value, margin in (("median", loaded.median, MEDIAN_WITHIN), ("p99", loaded.p99, P99_WITHIN))
        ),
    ]


def order(what: str, numbers: Sequence[int], count: int) -> list[Aim]:
    """Return the aims for a path without loss that got *count* packets and delivered *numbers*."""
    return [
        Aim(f"{what}: out of order", reordered(numbers), most=0),
        Aim(f"{what}: lost of {count}", count - len(numbers), least=0, most=0),
    ]


def losses(what: str, loss: Loss, numbers: Sequence[int], count: int) -> list[Aim]:
    """Return the aims for a path with *loss* that got *count* packets and delivered *numbers*."""
    gone = lost_of(numbers, count)
    share, run = len(gone) / count, fmean(run_lengths(gone) or [0])
    return [
        _within(f"{what}: loss", 100 * share, 100 * loss.mean, 100 * LOSS_WITHIN * loss.mean, " %"),
        _within(f"{what}: lost in a row", run, mean_run(loss), LOSS_WITHIN * mean_run(loss), ""),
        Aim(f"{what}: out of order", reordered(numbers), most=0),
    ]


def repeats(what: str, first: Sequence[int], again: Sequence[int], same_seed: bool) -> Aim:
    """Return the aim for the share of lost packets that both runs lost; NaN if none was lost."""
    every = set(first) | set(again)
    shared = len(set(first) & set(again)) / len(every) if every else nan
    if same_seed:
        return Aim(f"{what}: losses shared, same seed", shared, least=1.0)
    return Aim(f"{what}: losses shared, another seed", shared, most=SHARED)


def capacity(shares: Mapping[str, float]) -> list[Aim]:
    """Return the aims for the share of its link that each direction carried while ``OVERLOAD`` was offered."""
    return [
        Aim("directions at full rate", len(shares), least=DIRECTIONS),
        *(
            Aim(f"{name}, all four directions full: share of the link", share, least=FULL, most=(1 + OVERLOAD) / 2)
            for name, share in shares.items()
        ),
    ]
