# SPDX-License-Identifier: GPL-2.0-or-later
"""What the experiments ``mimbox-…`` measure, and how the paper's claims are judged by it. Pure.

Each claim has one value per round, and a bound. The aim is about the median, the verdict about its 95 % confidence
interval, between two of the rounds. The verdict is *holds* or *fails* if the whole interval is on one side of the
bound, otherwise *not judged*; so it is after fewer than ``FEWEST`` rounds, which have no such interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..result_file import Judgement, shown
from ..statistics import exact_median_interval
from .aims import Aim
from .relay_cells import Cell
from .relay_judging import median_or_nan, positive_or_nan, ratios

FEWEST = 6
"""Rounds whose extremes contain the median with 95 % confidence: 1 - 2 / 2^6 is 97 %."""


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement through one proxy, at the value *at* of the varied parameter."""

    cell: Cell
    task: str
    at: int
    """Bytes: an MTU, a file, or a socket's buffer."""
    round: int
    seconds: float = 0.0
    octets: int = 0
    """Of bodies."""
    answers: int = 0
    failures: int = 0
    opened: int = 0
    """Established connections, of the measurement and the warm-up."""
    renewed: float = 0.0
    """Connections opened per answer, if each is closed after one."""
    multipath: int = 0
    """Of these, the connections that the server's side accepted as MPTCP."""
    joined: int = 0
    """Second subflows."""
    packet: float = 0.0
    """Mean bytes of a packet that the client received, with its Ethernet header."""
    second: float = 0.0
    """The second path's share of the received bytes."""
    passed: float = 0.0
    """Bytes that the proxy's host sent, per byte that the client received."""
    spread: tuple[float, ...] = ()
    """Percentiles ``PERCENTS`` of the seconds to an answer."""
    user: float = 0.0
    kernel: float = 0.0
    """Bytes of memory per connection."""

    @property
    def goodput(self) -> float:
        """Bits per second."""
        return self.octets * 8 / self.seconds if self.seconds else 0.0

    @property
    def rate(self) -> float:
        """Files of *at* bytes per second, by received bytes: few large ones end in a short time."""
        return self.octets / self.at / self.seconds if self.seconds else 0.0

    @property
    def memory(self) -> float:
        """KB per connection; NaN if none was seen."""
        return positive_or_nan((self.user + self.kernel) / 1e3)


PERCENTS = (1, *range(5, 100, 5), 99)


@dataclass(frozen=True, slots=True)
class Delays:
    """Median intervals of one round through *cell*, seconds, and the number of requests."""

    cell: Cell
    round: int
    requests: int
    syn: float
    """SYN in → SYN out."""
    answer: float
    """SYN in → SYN/ACK out to the client; for a router SYN/ACK in → SYN/ACK out."""
    data: float
    """Data segment in → the same out."""
    subflows: float = 1.0
    """Per connection."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory of one held connection, KB."""

    name: str
    user: float
    kernel: float

    @property
    def total(self) -> float:
        """Return the sum; NaN if nothing was seen."""
        return positive_or_nan(self.user + self.kernel)


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement of the paper, and our value for it in each round."""

    paper: str
    what: str
    values: tuple[float, ...]
    unit: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def aim(self) -> Aim:
        return Aim(self.what, median_or_nan(self.values), self.unit, least=self.least, most=self.most)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the median; None for too few values."""
        return exact_median_interval(self.values) if all(map(math.isfinite, self.values)) else None

    @property
    def verdict(self) -> Judgement:
        if self.interval is None:
            return "not judged"
        within = [
            (self.least is None or x >= self.least) and (self.most is None or x <= self.most) for x in self.interval
        ]
        return "holds" if all(within) else "not judged" if any(within) else "fails"

    @property
    def row(self) -> tuple[str, str, str]:
        """The paper's words, what was measured, the verdict."""
        measured = f"{self.what}: {self.aim.judged().measured}"
        if self.interval is not None:
            low, high = self.interval
            measured += f" ({shown(low, self.unit)} to {shown(high, self.unit)}, n = {len(self.values)})"
        return self.paper, f"{measured}; wanted {self.aim.wanted}", self.verdict


def growth(values: Mapping[tuple[int, int], float]) -> tuple[float, ...]:
    """Return for each round the value at the greatest varied parameter by that at the smallest; empty if only one."""
    varied = sorted({at for _, at in values})
    if len(varied) < 2:
        return ()
    most, least = ({n: value for (n, at), value in values.items() if at == end} for end in (varied[-1], varied[0]))
    return ratios(most, least)


def least(values: Sequence[float]) -> float:
    """Return the least of *values*, NaN if one is NaN: min() would depend on its place."""
    return math.nan if any(map(math.isnan, values)) else min(values)


class Points:
    """All measurements."""

    def __init__(self, points: Iterable[Point]) -> None:
        self.all = tuple(points)

    def values(self, cell: Cell, task: str, figure: Callable[[Point], float]) -> dict[tuple[int, int], float]:
        """Return *figure* by round and varied parameter."""
        return {(p.round, p.at): figure(p) for p in self.all if (p.cell, p.task) == (cell, task)}

    def quotients(
        self, one: tuple[Cell, str], other: tuple[Cell, str], figure: Callable[[Point], float]
    ) -> dict[tuple[int, int], float]:
        """Return *one*'s ratios to *other*, by round and varied parameter."""
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
        """Return by round what *fold* makes of *one*'s ratios to *other*, over the varied parameter."""
        found: dict[int, list[float]] = {}
        for (number, _), ratio in self.quotients(one, other, figure).items():
            found.setdefault(number, []).append(ratio)
        return {number: fold(values) for number, values in found.items()}

    def least_ratio(
        self, one: tuple[Cell, str], others: Sequence[tuple[Cell, str]], figure: Callable[[Point], float]
    ) -> tuple[float, ...]:
        """Return the least of *one*'s ratios to any of the measured *others*, over the varied parameter.

        There is one for each round in which all of these were measured; NaN if one of them carried nothing.
        """
        each = [ratios for other in others if (ratios := self.ratios(one, other, figure, least))]
        rounds = set.intersection(*map(set, each)) if each else ()
        return tuple(least([ratios[number] for ratios in each]) for number in sorted(rounds))
