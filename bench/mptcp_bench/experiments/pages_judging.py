# SPDX-License-Identifier: GPL-2.0-or-later
"""The options and cells of the experiment ``pages``, and how a batch of downloads is judged. Pure.

A batch is judged from byte counters and download times. Bytes count IP packets towards the client; times are seconds on
the samples' clock. The cap is compared with all bytes from the batch's first SYN to its last byte, even if a connection
was opened later.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import exp
from typing import NamedTuple

from mptcp_lab.testbed.recorder import Sample

from ..statistics import NormalDist, fmean, median, percentile
from .columns import Row, figure
from .devices import DEVICES
from .parameters import choices, parameter, several, whole

NEW, OURS = "ours, new", "ours"
"""Variants with our throttler, which does not know the client yet, or does."""
WINDOW_SECONDS = 2.0
"""Length of a window in seconds. In every window the capped path's rate must be near its cap."""
RATES, RTTS, CAP = (50, 20), (20, 20), 5
"""Rates in Mbit/s and RTTs in ms of the capped path and the other path, and the cap in Mbit/s."""
LONE_DIVISOR = 4
"""Divisor of the number of files for a client with only the capped path, which is slower."""


def _page(files: int = 63, octets: int = 7_400_000) -> list[int]:
    """Return shuffled file sizes as on a web page: half of them below 47 kB, one above a megabyte."""
    weights = [exp(1.4 * NormalDist().inv_cdf((i + 0.5) / files)) for i in range(files)]
    scale = octets / sum(weights)
    return [round(weights[i * 25 % files] * scale) for i in range(files)]


BATCHES = {
    "20k": 200 * [20_000], "100k": 150 * [100_000], "500k": 50 * [500_000], "2M": 16 * [2_000_000], "mixed": _page(),
}  # fmt: skip
"""The size of each file of a batch in bytes. Each batch takes several seconds."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``. Each combination of the listed values is a cell."""

    client: tuple[str, ...] = choices("client's paths", ("two", "lone"))
    kind: tuple[str, ...] = choices("request type", ("get", "keepalive", "connect"), "get")
    size: tuple[str, ...] = choices("file size in bytes, or mixed for sizes as on a web page", BATCHES, quick="100k")
    at_once: tuple[int, ...] = parameter("number of simultaneous downloads or connections", "10", several(whole()))
    variant: tuple[str, ...] = choices("what limits the path", ("none", "ours", "static"))
    runs: int = parameter("number of batches per variant", "2", whole(), quick="1")


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination of the options."""

    client: str
    kind: str
    size: str
    at_once: int

    @property
    def sizes(self) -> list[int]:
        """The size of each file in bytes."""
        sizes = BATCHES[self.size]
        return sizes[: len(sizes) // LONE_DIVISOR] if self.lone else sizes

    @property
    def lone(self) -> bool:
        """Whether the client has only the path on which its connections open."""
        return self.client == "lone"

    def __str__(self) -> str:
        files = f"{len(self.sizes)} × {self.size}, {self.kind}, {self.at_once} at once"
        return files + ", one path" * self.lone


def cells(chosen: Settings) -> list[Cell]:
    options = product(chosen.client, chosen.kind, chosen.size, chosen.at_once)
    return [Cell(*each) for each in options]


class Download(NamedTuple):
    """Times of one download on the samples' clock."""

    start: float
    end: float


def ours(row: Row[Cell, Batch]) -> bool:
    """Return whether *row* is a measurement with our throttler."""
    return row.variant in (NEW, OURS)


def known(row: Row[Cell, Batch]) -> bool:
    """Return whether *row* is one of :func:`ours` in which the throttler knew the client."""
    return row.variant == OURS


def _aim_name(row: Row[Cell, Batch]) -> str:
    return "capped path, × its cap" if known(row) else "capped path of a new client, × its cap"


@dataclass(frozen=True, slots=True)
class Batch:
    """The measurements of one batch. Durations are in seconds, from the first SYN to the last byte."""

    first_longest: float
    """The longest of the first downloads."""
    mean: float = figure("× cap", aim=_aim_name, most=1.05, judged=ours)
    """Mean rate of the capped path over the batch, as a multiple of the cap."""
    worst: float = figure(
        "worst", by="most", aim=f"capped path, worst {WINDOW_SECONDS:g} s, × its cap", most=1.25, judged=known
    )
    """Maximum of the mean rate over a window, as a multiple of the cap. Outside of the batch, the rate counts as 0."""
    seconds: float = figure("s", digits=1)
    median: float = figure("p50 s", by="median")
    p95: float = figure("p95 s", by="median")
    first: float = figure("first ones s", digits=3)
    """Mean duration of the first downloads, which start at the same time."""
    later: float = figure("later ones s", digits=3)
    joins: int = figure("joins", by="median", digits=0)
    """Number of connections with a second subflow."""
    plain: int = figure("plain", by="median", digits=0)
    """Number of connections that became plain TCP, mostly because their handshake was lost more than once."""


def judge(
    samples: Sequence[Sample], cell: Cell, downloads: Sequence[Download], joins: int = 0, plain: int = 0
) -> Batch:
    """Return the measurements of a batch. Raises ValueError if the *samples* do not span the batch."""
    begin, end = min(each.start for each in downloads), max(each.end for each in downloads)
    if not samples or samples[0].time > begin or samples[-1].time < end:
        raise ValueError("the samples do not span the batch")
    capped = Octets(samples, DEVICES[0])
    times = [begin, *(sample.time for sample in samples if begin < sample.time < end), end]
    durations = [each.end - each.start for each in sorted(downloads)]
    first, later = durations[: cell.at_once], durations[cell.at_once :] or durations
    cap = CAP * 1e6 / 8
    return Batch(
        seconds=end - begin,
        mean=(capped(end) - capped(begin)) / (cap * (end - begin)),
        worst=max(capped(min(t + WINDOW_SECONDS, end)) - capped(t) for t in times) / (cap * WINDOW_SECONDS),
        median=median(durations),
        p95=percentile(durations, 95),
        first=fmean(first),
        first_longest=max(first),
        later=fmean(later),
        joins=joins,
        plain=plain,
    )


class Octets:
    """A device's byte counter, linearly interpolated between its samples."""

    def __init__(self, samples: Sequence[Sample], device: str) -> None:
        self._times = [sample.time for sample in samples]
        self._octets = [sample.octets[device] for sample in samples]

    def __call__(self, time: float) -> float:
        after = bisect_right(self._times, time)
        if after in (0, len(self._times)):
            return self._octets[max(0, after - 1)]
        (t, u), (a, b) = self._times[after - 1 : after + 1], self._octets[after - 1 : after + 1]
        return a + (b - a) * (time - t) / (u - t)
