# SPDX-License-Identifier: GPL-2.0-or-later
"""What the experiments ``vpn-…`` compare: ways of carrying a VPN, their paths, and their data points. Pure.

The experiments repeat "Multipath Transport for Virtual Private Networks" (Lukaszewski, Xie). The paper's Multipath UDP
splits at random, without a resequencer. Ours (docs/tunnel.md) and OpenVPN over MPTCP are measured beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mptcp_lab.emulation.model import Direction, EmulatedPath, GilbertElliott, Loss, UniformLoss

from ..result_file import Judgement
from ..statistics import mean_bounds, mean_or_nan
from . import mimbox_points
from .aims import Aim

RATE = 10_000_000
"""Rate of each path in each direction, bits per second."""
QUEUE_MS = 50
FILE = 16_000_000
"""Bytes of the downloaded file."""
PRIMARY = 20.0
"""RTT of the primary path in milliseconds if the paths differ (the paper's Table 2)."""
GOOD_LOSS = {"ge1": 0.0, "ge2": 0.005, "ge3": 0.01, "ge7": 0.03}
"""1 - k of the paper's Table 1. The names have the percentage of lost pings, which cross a path twice."""
LOSSES = ("0", "0.1", "1", "3", *GOOD_LOSS)
"""Losses in percent of the packets, in each direction. ``ge…`` are Gilbert-Elliott losses."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to carry the VPN's packets over one path or both."""

    title: str
    joined: int = 0
    """Number of subflows besides the first."""
    both: bool = True
    share: float | None = None
    """Fixed share of the packets that goes over the second path; None if it is not fixed."""
    ours: bool = False


WAYS: Mapping[str, Way] = {
    "tcp": Way("TCP, one path", both=False),
    "mptcp": Way("Multipath TCP, fullmesh", joined=1),
    "ports": Way("Multipath TCP, two endpoints on one path", joined=1, both=False),
    "udp": Way("UDP, one path", both=False),
    "50/50": Way("Multipath UDP, 50/50", share=0.5),
    "75/25": Way("Multipath UDP, 75/25", share=0.25),
    "90/10": Way("Multipath UDP, 90/10", share=0.1),
    "weights 75/25": Way("ours, mode weights, 75/25", share=0.25, ours=True),
    "weights 90/10": Way("ours, mode weights, 90/10", share=0.1, ours=True),
    "tunnel": Way("ours, mptcp-tunnel", ours=True),
}
OVER_TCP = ("tcp", "mptcp", "ports")


@dataclass(frozen=True, slots=True)
class Cell:
    """A way, and the congestion controls: *inner* of the download, *outer* of the VPN's own connection."""

    way: str
    inner: str = "cubic"
    outer: str = ""
    """Empty if the VPN uses UDP."""

    def __str__(self) -> str:
        return f"{self.way}, {self.inner} inside" + (f", {self.outer} outside" if self.outer else "")


def cells(ways: Iterable[str], inner: Iterable[str], outer: Iterable[str]) -> tuple[Cell, ...]:
    """Return every combination. A way over UDP has no *outer* control."""
    controls = tuple(outer)
    found = (
        Cell(way, each, control)
        for each in inner
        for way in ways
        for control in (controls if way in OVER_TCP else ("",))
    )
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Condition:
    """RTTs of both paths in milliseconds, and the loss on both, one of :data:`LOSSES`."""

    first: float
    second: float
    loss: str = "0"

    def __str__(self) -> str:
        return f"{self.first:g}/{self.second:g} ms, loss {self.loss}"

    @property
    def paths(self) -> tuple[EmulatedPath, EmulatedPath]:
        """Both paths, with the loss in both directions, because Table 1 is about pings, which cross a path twice."""
        return self._path("primary", self.first), self._path("secondary", self.second)

    def _path(self, name: str, rtt: float) -> EmulatedPath:
        one = Direction(RATE, round(rtt * 500), loss=loss_of(self.loss), queue_ms=QUEUE_MS)
        return EmulatedPath(name, one, one)


def loss_of(name: str) -> Loss | None:
    """Return the loss model with this *name*; None for no loss."""
    if name in GOOD_LOSS:
        return GilbertElliott(0.01, 0.75, 0.5, GOOD_LOSS[name])
    return UniformLoss(float(name) / 100) if float(name) else None


@dataclass(frozen=True, slots=True)
class Point:
    """The measured values of one download."""

    cell: Cell
    at: Condition
    round: int
    goodput: float
    """Goodput in bits per second."""
    second: float
    """The second path's share of the received bytes."""
    carried: float
    """Rate of the busier path, as a share of the path's rate."""
    joined: int
    """Number of subflows of the VPN's connection besides the first."""
    fallbacks: int
    """Number of connections that should have been MPTCP, but became plain TCP."""
    round_trip: float
    """Seconds that a connection through the VPN took to open, before the download."""


class Claim(mimbox_points.Claim):
    """A claim of the paper, with our value in each round. One-sided 95 % bounds of the mean decide it."""

    # The base class uses the median's interval, which needs six rounds. Here a download takes ten seconds.

    @property
    def aim(self) -> Aim:
        return Aim(self.what, mean_or_nan(self.values), self.unit, least=self.least, most=self.most)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval of the mean; None for fewer than two rounds."""
        finite = len(self.values) > 1 and all(map(math.isfinite, self.values))
        return mean_bounds(self.values) if finite else None

    @property
    def verdict(self) -> Judgement:
        """The judgement; ``not judged`` also if the claim's bound lies within the interval."""
        if self.interval is None:
            return "not judged"
        low, high = self.interval
        if (self.least is not None and high < self.least) or (self.most is not None and low > self.most):
            return "fails"
        within = (self.least is None or low >= self.least) and (self.most is None or high <= self.most)
        return "holds" if within else "not judged"


class Points:
    """All downloads that an experiment measured."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.all = tuple(points)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The measured conditions, ordered by loss as in :data:`LOSSES`, then by RTT."""
        there = dict.fromkeys(p.at for p in self.all)
        return tuple(sorted(there, key=lambda at: (LOSSES.index(at.loss), at.first, at.second)))

    def of(self, cell: Cell, at: Condition) -> tuple[Point, ...]:
        return tuple(p for p in self.all if (p.cell, p.at) == (cell, at))

    def goodputs(self, cell: Cell, at: Condition) -> dict[int, float]:
        """Return the goodput in bits per second, by round."""
        return {p.round: p.goodput for p in self.of(cell, at)}
