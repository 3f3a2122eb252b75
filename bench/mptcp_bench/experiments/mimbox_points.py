# SPDX-License-Identifier: GPL-2.0-or-later
"""Measured values of the experiments ``mimbox-…``, and how they decide the paper's claims. Pure.

Each claim has one value per round, and a bound. The aim compares the median with the bound. The verdict compares the
median's 95 % confidence interval, whose ends are two of the values: it is *holds* or *fails* if the whole interval is
on one side of the bound, otherwise *not judged*. It also is *not judged* after fewer than ``FEWEST`` rounds, because
then no such interval exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .claims import FEWEST, Claim
from .relay_cells import Cell
from .relay_judging import positive_or_nan, ratios

__all__ = ["FEWEST", "PERCENTS", "Claim", "Delays", "HeldMemory", "Point", "Points", "growth", "least"]


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement through one proxy, at one value *at* of the varied parameter."""

    cell: Cell
    task: str
    at: int
    """The varied parameter in bytes: an MTU, a file's size, or the limit of a socket's buffer."""
    round: int
    seconds: float = 0.0
    octets: int = 0
    """Body bytes that the client received."""
    answers: int = 0
    failures: int = 0
    opened: int = 0
    """Number of established connections, of warm-up and measurement."""
    renewed: float = 0.0
    """Connections opened per answer, if each connection is closed after one."""
    multipath: int = 0
    """Number of connections that the accepting host counted as MPTCP."""
    joined: int = 0
    """Number of second subflows."""
    packet: float = 0.0
    """Mean bytes of a packet that the client received, including the Ethernet header."""
    second: float = 0.0
    """The second path's share of the received bytes."""
    passed: float = 0.0
    """Bytes that the proxy's host sent, per byte that the client received."""
    spread: tuple[float, ...] = ()
    """Percentiles ``PERCENTS`` of the seconds until a request was answered."""
    user: float = 0.0
    kernel: float = 0.0
    """User and kernel memory per connection, in bytes."""

    @property
    def goodput(self) -> float:
        """Goodput in bits per second."""
        return self.octets * 8 / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> float:
        """Files per second, computed as received bytes / *at*: in a short time only few large files are completed."""
        return self.octets / self.at / self.seconds if self.seconds else 0.0

    @property
    def memory(self) -> float:
        """Memory in KB per connection; NaN if none was measured."""
        return positive_or_nan((self.user + self.kernel) / 1e3)


PERCENTS = (1, *range(5, 100, 5), 99)


@dataclass(frozen=True, slots=True)
class Delays:
    """The medians of one round through *cell*, in seconds, and the number of requests."""

    cell: Cell
    round: int
    requests: int
    syn: float
    """From the SYN that comes in to the SYN that goes out."""
    answer: float
    """From the client's SYN to the SYN+ACK sent to it; for a router, from the SYN+ACK that comes in to it going out."""
    data: float
    """From a data segment that comes in to the same data going out."""
    subflows: float = 1.0
    """Mean number of subflows per connection."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory in KB of one connection that is held open."""

    name: str
    user: float
    kernel: float

    @property
    def total(self) -> float:
        """Return the sum of both; NaN if nothing was measured."""
        return positive_or_nan(self.user + self.kernel)


def growth(values: Mapping[tuple[int, int], float]) -> tuple[float, ...]:
    """Return each round's value at the greatest parameter divided by the one at the smallest; empty for only one."""
    varied = sorted({at for _, at in values})
    if len(varied) < 2:
        return ()
    most, least = ({n: value for (n, at), value in values.items() if at == end} for end in (varied[-1], varied[0]))
    return ratios(most, least)


def least(values: Sequence[float]) -> float:
    """Return the least of *values*; NaN if one is NaN, for which min() would depend on the order."""
    return math.nan if any(map(math.isnan, values)) else min(values)


class Points:
    """All points that an experiment measured."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.all = tuple(points)

    def values(self, cell: Cell, task: str, figure: Callable[[Point], float]) -> dict[tuple[int, int], float]:
        """Return *figure* of each point of *cell* and *task*, by round and varied parameter."""
        return {(p.round, p.at): figure(p) for p in self.all if (p.cell, p.task) == (cell, task)}

    def quotients(
        self, one: tuple[Cell, str], other: tuple[Cell, str], figure: Callable[[Point], float]
    ) -> dict[tuple[int, int], float]:
        """Return *one*'s value divided by *other*'s, by round and varied parameter."""
        mine, theirs = self.values(*one, figure), self.values(*other, figure)
        both = sorted(mine.keys() & theirs.keys())
        return {key: mine[key] / theirs[key] if theirs[key] else math.nan for key in both}

    def ratios(
        self,
        one: tuple[Cell, str],
        other: tuple[Cell, str],
        figure: Callable[[Point], float],
        fold: Callable[[list[float]], float],
    ) -> dict[int, float]:
        """Return, by round, the ratios of *one* to *other* at all varied parameters, combined by *fold*."""
        found: dict[int, list[float]] = {}
        for (number, _), ratio in self.quotients(one, other, figure).items():
            found.setdefault(number, []).append(ratio)
        return {number: fold(values) for number, values in found.items()}

    def least_ratio(
        self, one: tuple[Cell, str], others: Sequence[tuple[Cell, str]], figure: Callable[[Point], float]
    ) -> tuple[float, ...]:
        """Return, for each round, the least ratio of *one* to any of the measured *others* at any varied parameter.

        Only rounds in which all of these were measured count. The value is NaN if one of them carried nothing.
        """
        each = [ratios for other in others if (ratios := self.ratios(one, other, figure, least))]
        rounds = set.intersection(*map(set, each)) if each else ()
        return tuple(least([ratios[number] for ratios in each]) for number in sorted(rounds))
