# SPDX-License-Identifier: GPL-2.0-or-later
"""Judge whether a batch of downloads respected the cap, and its duration, from byte counters and download times. Pure.

Bytes count IP packets towards the client; times are seconds on the samples' clock. The cap is compared with all bytes
from the batch's first SYN to its last byte, even if a connection was opened later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import NamedTuple

from mptcp_lab.testbed.recorder import Sample

from ..statistics import fmean, median, percentile
from .devices import DEVICES
from .pages_cells import Cell

WINDOW = 2.0
"""Length of a window in seconds. In every window the capped path's rate must be near its cap."""


class Download(NamedTuple):
    """Times of one download on the samples' clock."""

    began: float
    connected: float
    ended: float


@dataclass(frozen=True, slots=True)
class Batch:
    """The measurements of one batch."""

    seconds: float
    """Duration from the first SYN to the last byte."""
    mean: float
    """Mean rate of the capped path over the batch, as a multiple of the cap."""
    worst: float = nan
    """Greatest mean rate over a ``WINDOW``, as a multiple of the cap. Time outside of the batch counts with rate 0."""
    median: float = nan
    """Median duration of the downloads in seconds, and their 95th percentile."""
    p95: float = nan
    first: float = nan
    """Mean duration in seconds of the first downloads, which start at the same time; the longest of them; the mean of
    the later downloads."""
    first_longest: float = nan
    later: float = nan
    joins: int = 0
    """Number of connections with a second subflow."""
    plain: int = 0
    """Number of connections that became plain TCP, mostly because their handshake was lost more than once."""


def judge(
    samples: Sequence[Sample], cell: Cell, downloads: Sequence[Download], joins: int = 0, plain: int = 0
) -> Batch:
    """Return the measurements of a batch. Raises ValueError if the *samples* do not span the batch."""
    begin, end = min(d.began for d in downloads), max(d.ended for d in downloads)
    if not samples or samples[0].time > begin or samples[-1].time < end:
        raise ValueError("the samples do not span the batch")
    total = Octets(samples, DEVICES[0])
    inside = [begin, *(s.time for s in samples if begin < s.time < end), end]
    taken = [d.ended - d.began for d in sorted(downloads)]
    first, later = taken[: cell.at_once], taken[cell.at_once :] or taken
    allowed = cell.cap * 1e6 / 8
    return Batch(
        seconds=end - begin,
        mean=(total(end) - total(begin)) / (allowed * (end - begin)),
        worst=max(total(min(t + WINDOW, end)) - total(t) for t in inside) / (allowed * WINDOW),
        median=median(taken),
        p95=percentile(taken, 95),
        first=fmean(first),
        first_longest=max(first),
        later=fmean(later),
        joins=joins,
        plain=plain,
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
