# SPDX-License-Identifier: GPL-2.0-or-later
"""How a batch of downloads kept to the cap, and how long it took, from byte counters and download times. Pure.

Bytes count IP packets towards the client; times are seconds on the samples' clock. The cap is compared with all bytes
from the batch's first SYN to its last byte, even if a connection began later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mptcp_lab.testbed.recorder import Sample

from ..statistics import fmean, median, percentile
from .aims import Aim
from .payload import payload_share

WINDOW = 2.0
"""Seconds of a window. In every window the capped path's rate must be near its cap."""
MEAN, WORST, OVERSHOOT = 1.05, 1.25, 1.05
"""Most rate of the capped path, as a multiple of the cap: over the batch, over the worst window, and over the batch of
a new client."""
STATIC = 1.02
"""Most duration of the batch, as a multiple of its duration with a static class."""
LONGER, NOT_LONGER = 0.25, 0.05
"""How much longer downloads of a client with one path may take: the first ones in seconds, the later ones as a share,
which allows for noise."""


class Download(NamedTuple):
    """Times of one download on the samples' clock."""

    began: float
    connected: float
    ended: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The judged values of one batch."""

    seconds: float
    """Duration from the first SYN to the last byte."""
    mean: float
    """Mean rate of the capped path over the batch, as a multiple of the cap."""
    worst: float
    """Greatest mean rate over a ``WINDOW``, as a multiple of the cap. Time outside of the batch counts as silence."""
    ahead: float
    """Most bytes by which the capped path was ahead of its cap since the first SYN."""
    capped: float
    other: float
    """Bytes that each path carried."""
    download: float
    """Seconds that a download took: the mean, and below the median, the 95th percentile and the maximum."""
    median: float
    p95: float
    longest: float


class Lead(NamedTuple):
    """Mean seconds of a client's first downloads, the longest of these, and the mean of its later ones."""

    first: float
    first_longest: float
    later: float


def judge(samples: Sequence[Sample], capped: str, other: str, cap: int, downloads: Sequence[Download]) -> Outcome:
    """Judge one batch under a cap of *cap* bits/s. Raises ValueError if the samples do not span the batch."""
    begin, end = min(d.began for d in downloads), max(d.ended for d in downloads)
    if not samples or samples[0].time > begin or samples[-1].time < end:
        raise ValueError("the samples do not span the batch")
    total = Octets(samples, capped)
    at_begin, at_end = total(begin), total(end)
    inside = [begin, *(s.time for s in samples if begin < s.time < end), end]
    taken = [d.ended - d.began for d in downloads]
    allowed = cap / 8
    return Outcome(
        seconds=end - begin,
        mean=(at_end - at_begin) / (allowed * (end - begin)),
        worst=max(total(min(t + WINDOW, end)) - total(t) for t in inside) / (allowed * WINDOW),
        ahead=max(0.0, *(total(t) - at_begin - allowed * (t - begin) for t in inside)),
        capped=at_end - at_begin,
        other=Octets(samples, other)(end) - Octets(samples, other)(begin),
        download=fmean(taken),
        median=median(taken),
        p95=percentile(taken, 95),
        longest=max(taken),
    )


class Octets:
    """A device's byte counter, linearly interpolated between its samples."""

    def __init__(self, samples: Sequence[Sample], device: str) -> None:
        self._times = [s.time for s in samples]
        self._octets = [s.octets[device] for s in samples]

    def __call__(self, time: float) -> float:
        after = bisect_right(self._times, time)
        if after in (0, len(self._times)):
            return self._octets[max(0, after - 1)]
        (t, u), (a, b) = self._times[after - 1 : after + 1], self._octets[after - 1 : after + 1]
        return a + (b - a) * (time - t) / (u - t)


def lead(downloads: Sequence[Download], at_once: int) -> Lead:
    """Return the durations of a batch's first *at_once* downloads and of the later ones."""
    ordered = [d.ended - d.began for d in sorted(downloads)]
    first, later = ordered[:at_once], ordered[at_once:] or ordered
    return Lead(fmean(first), max(first), fmean(later))


def ideal_seconds(octets: int, cap: int, other: int) -> float:
    """Return the seconds to send *octets* if both paths (bits/s on the wire) were full from the first byte."""
    return octets * 8 / payload_share(4, multipath=True) / (cap + other)


def judge_cell(known: Sequence[Outcome], fresh: Sequence[Outcome], static: Sequence[Outcome]) -> dict[str, Aim]:
    """Return the aims of a client with two paths whose connections share one cap, by figure.

    *known* and *fresh* are batches under our cap, of a client that the throttler knows or does not know. The aim for
    the time is a ratio with a bound, not a comparison of means, because *static* is only one batch.
    """
    aims = {}
    ours = known or fresh
    if ours:
        aims["mean"] = Aim("capped path, × its cap", fmean(o.mean for o in ours), most=MEAN)
        aims["worst"] = Aim(f"the same, worst {WINDOW:g} s", max(o.worst for o in ours), most=WORST)
    if fresh:
        first = fmean(o.mean for o in fresh)
        aims["overshoot"] = Aim("capped path of a new client, × its cap", first, most=OVERSHOOT)
    if ours and static:
        ratio = fmean(o.seconds for o in ours) / fmean(o.seconds for o in static)
        aims["seconds"] = Aim("time, × that with a static class", ratio, most=STATIC)
    return aims


def judge_lone(known: Sequence[Lead], fresh: Sequence[Lead], none: Sequence[Lead]) -> dict[str, Aim]:
    """Return the aims of a client with one path, by figure. *fresh* and *none* (no policy) have one batch each."""
    aims: dict[str, Aim] = {}
    if none and fresh:
        mean = fmean(x.first for x in fresh) - fmean(x.first for x in none)
        longest = max(x.first_longest for x in fresh) - max(x.first_longest for x in none)
        aims["first"] = Aim("first downloads of a lone client longer, mean", mean, " s", most=LONGER)
        aims["longest"] = Aim("first downloads of a lone client longer, the longest", longest, " s", most=LONGER)
    if none and (fresh or known):
        later = [x.later for x in (*fresh, *known)] + [x.first for x in known]
        ratio = fmean(later) / fmean(each for x in none for each in (x.later, x.first))
        aims["later"] = Aim("later downloads of a lone client, × without a policy", ratio, most=1 + NOT_LONGER)
    return aims
