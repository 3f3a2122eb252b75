# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims of the experiment ``tunnel``. Rates are in bits/s, times in seconds. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan

from ..statistics import median, percentile
from .aims import Aim
from .tunnel_cells import PATHS, PAYLOAD, Cell

SHARES = {"goodput": 0.9, "rates": 0.85}
"""Least goodput of a download through the tunnel, as a share of the sum of both paths alone."""
NOISE = 0.97
"""Least goodput over lossy paths, as a share of the better path alone: not less, except for noise."""
LOSSY_SHARE = 0.85
"""Least goodput over lossy paths with BBR inside, as a share of the sum of both paths alone."""
CHANGED, LOST, BACK = 0.4, 0.5, 1.0
STEADY = 0.8
"""Least goodput from three seconds after a change on, as a share of the available rate."""
CALL_DELAY = 0.020
KERNEL_NS, RESEQUENCER_US, CARRIED = 300.0, 5.0, 500e6
MOST_ALONE = 1.03
"""Most goodput of a path alone, as a share of its link's payload rate. With more, the link was not emulated."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """One download; in the variant ``alone`` two at the same time, one over each path."""

    cell: str
    control: str
    variant: str
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Silence:
    """Reaction to a path that was silent for a while. The time of an event that never happened is infinite."""

    relay: float
    """Seconds from the silence's begin until the relay's BPF programs stopped using the path; :attr:`proxy`
    likewise."""
    proxy: float
    back: float
    """Seconds from the path's return until both ends used it again."""
    lost: float
    """Seconds of the stream whose packets never came."""


@dataclass(frozen=True, slots=True)
class AfterChange:
    """A download's rate over paths that changed, and the rate that was available, in bits/s."""

    change: str
    control: str
    rate: float
    there: float


@dataclass(frozen=True, slots=True)
class Call:
    """A call: which way it went, its packets' delays in seconds, and the share of lost packets."""

    control: str
    where: str
    delays: tuple[float, ...] = field(repr=False)
    loss: float

    @property
    def p99(self) -> float:
        return percentile(self.delays, 99, default=nan)


@dataclass(frozen=True, slots=True)
class Cost:
    """Costs per packet: nanoseconds of both BPF programs, µs of the resequencer; and the rate that was carried."""

    splitter: float
    joiner: float
    resequencer: float
    carried: float


IDLE, BESIDE, OURS = "one path, idle", "one path, beside a download", "ours, beside a download"
CALLS = (IDLE, BESIDE, OURS)
CHANGES = ("rate falls to a third", "jitter ± 10 ms", "rate changes each 0.1 s")


@dataclass(slots=True)
class Measured:
    """All measurements of one run."""

    transfers: list[Transfer] = field(default_factory=list)
    silences: list[Silence] = field(default_factory=list)
    steady: list[AfterChange] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)

    def __len__(self) -> int:
        parts: tuple[Sequence[object], ...] = (self.transfers, self.silences, self.steady, self.calls, self.costs)
        return sum(len(part) for part in parts)


def goodput(transfers: Sequence[Transfer], cell: str, control: str, variant: str) -> tuple[float, ...]:
    """Return the median rate of the variant; for ``alone`` each path's; NaN if nothing was measured."""
    found = [t.rates for t in transfers if (t.cell, t.control, t.variant) == (cell, control, variant)]
    if not found:
        return (nan,) * (len(PATHS) if variant == "alone" else 1)
    return tuple(median(values) for values in zip(*found, strict=True))


def aims(
    measured: Measured, cells: Sequence[Cell], parts: Sequence[str], changes: Mapping[str, Sequence[str]]
) -> list[Aim]:
    """Return the aims of *cells* and *parts*. *changes* has the requested kinds of change, with their controls."""
    found = [
        aim for cell in cells for control in cell.controls for aim in _downloads(measured.transfers, cell, control)
    ]
    if "silence" in parts:
        found += _silence(measured.silences)
    for change, controls in changes.items():
        for control in controls:
            shares = [s.rate / s.there for s in measured.steady if (s.change, s.control) == (change, control)]
            what = f"{change}, {control}: goodput / what is there, after 3 s"
            found.append(Aim(what, median(shares, default=nan), least=STEADY))
    if "call" in parts:
        for control in ("cubic", "bbr"):
            found += _call([call for call in measured.calls if call.control == control], control)
    if "cost" in parts:
        found += _cost(measured.costs)
    return found


def _downloads(transfers: Sequence[Transfer], cell: Cell, control: str) -> Iterator[Aim]:
    name = f"{cell.name}, {control}"
    alone = goodput(transfers, cell.name, control, "alone")
    [ours] = goodput(transfers, cell.name, control, "ours")
    if cell.part == "loss":
        yield Aim(f"{name}: goodput / best path alone", _ratio(ours, max(alone)), least=NOISE)
        if control == "bbr":
            yield Aim(f"{name}: goodput / sum of both paths alone", _ratio(ours, sum(alone)), least=LOSSY_SHARE)
    else:
        what = f"{name}: goodput / sum of both paths alone"
        yield Aim(what, _ratio(ours, sum(alone)), least=SHARES[cell.part])
    for path, rate, link, loss in zip(PATHS, alone, cell.over.rates, cell.over.losses, strict=True):
        if loss is None:
            yield Aim(
                f"{name}: path {path} alone / payload of its link", rate / (link * 1e6 * PAYLOAD), most=MOST_ALONE
            )


def _ratio(value: float, of: float) -> float:
    return value / of if of and isfinite(of) else nan


def _silence(silences: Sequence[Silence]) -> Iterator[Aim]:
    for what, values, most in (
        ("the relay leaves it after s", [s.relay for s in silences], CHANGED),
        ("the proxy leaves it after s", [s.proxy for s in silences], CHANGED),
        ("stream of 1 Mbit/s: s lost", [s.lost for s in silences], LOST),
        ("back at both ends after s", [s.back for s in silences], BACK),
    ):
        yield Aim(f"a path is silent: {what}", median(values, default=nan), most=most)


def _call(calls: Sequence[Call], control: str) -> Iterator[Aim]:
    p99 = {where: median([c.p99 for c in calls if c.where == where], default=nan) for where in CALLS}
    loss = {where: median([c.loss for c in calls if c.where == where], default=nan) for where in CALLS}
    name = f"call beside a download, {control}"
    yield Aim(
        f"{name}: p99 of the delay beyond one path's idle, ms", 1e3 * (p99[OURS] - p99[IDLE]), most=1e3 * CALL_DELAY
    )
    yield Aim(f"{name}: lost beyond what one path loses beside a download, share", loss[OURS] - loss[BESIDE], most=0.0)


def _cost(costs: Sequence[Cost]) -> Iterator[Aim]:
    kernel = median([c.splitter + c.joiner for c in costs], default=nan)
    yield Aim("cost: splitter and joiner, ns/packet", kernel, most=KERNEL_NS)
    resequencer = median([c.resequencer for c in costs], default=nan)
    yield Aim("cost: resequencer, µs/packet", resequencer, most=RESEQUENCER_US)
    carried = median([c.carried for c in costs], default=nan)
    yield Aim("cost: carried with no more than 1 % lost, Mbit/s", carried / 1e6, least=CARRIED / 1e6)


@dataclass(frozen=True, slots=True)
class Poll:
    """Which paths the BPF programs of each end use at one moment."""

    time: float
    relay: Sequence[bool]
    proxy: Sequence[bool]


def silence(polls: Sequence[Poll], path: int, began: float, ended: float, lost: float) -> Silence:
    """Return the reactions to *path*, which was silent from *began* to *ended* on the polls' clock."""

    def first(end: str) -> float:
        return next(
            (p.time - began for p in polls if p.time >= began and getattr(p, end)[path : path + 1] == [False]), inf
        )

    # The path is back when both ends use it until the last poll.
    both = [p.time - ended for p in polls if p.time >= ended and not (_lives(p.relay, path) and _lives(p.proxy, path))]
    later = [p.time - ended for p in polls if p.time >= ended and (not both or p.time - ended > both[-1])]
    return Silence(first("relay"), first("proxy"), min(later, default=inf), lost)


def _lives(paths: Sequence[bool], path: int) -> bool:
    return list(paths[path : path + 1]) == [True]


def rate_between(sizes: Sequence[tuple[float, int]], begin: float, end: float) -> float:
    """Return the bits/s at which a file grew, from its *sizes* by time. Raises ValueError if samples are missing."""
    before = [each for each in sizes if each[0] <= begin]
    within = [each for each in sizes if begin < each[0] <= end]
    if not before or not within or end - within[-1][0] > 0.5:
        raise ValueError(f"the download was not seen from {begin:g} to {end:g} s")
    (t0, first), (t1, last) = before[-1], within[-1]
    return 8 * (last - first) / (t1 - t0)
