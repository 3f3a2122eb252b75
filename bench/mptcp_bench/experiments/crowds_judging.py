# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a client waits or is refused beside many idle connections or a busy client, and what these cost. Pure.

An arm is what runs beside the client. Latencies are compared within one round: beside others divided by alone. Beside a
busy client, the latency is also compared with the busy client's own latency. If n connections share a processor, each
waits for all n: that is longer than alone, but it is a fair share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import nan

from ..statistics import fmean, percentile
from .aims import Aim
from .columns import Column, Results, Row, Table, by_round
from .tables import mean

ALONE, ALL, ONE_ADDRESS = "alone", "all", "one-address"
REQUESTS, DOWNLOADS, NEW, NEW_LIMITED = "requests", "downloads", "new", "new-limited"
BUSY = (REQUESTS, DOWNLOADS, NEW, NEW_LIMITED)
WAITING = ("slow-headers", "keep-alives", "tunnels")
ARMS = (ALONE, *WAITING, ALL, ONE_ADDRESS, *BUSY)
COMPARED = (REQUESTS, NEW)
"""Arms whose busy client requests the same file as the other client, one request after another on each connection."""
SHARE = 1000
"""Connections of one address per Squid worker: client_ip_max_connections in conf/squid.conf."""
LONGER = 2.0
"""Most that a client's latency may be, as a multiple of its latency alone."""
DUE = 2.0
"""Most that the client's mean latency may be, as a multiple of the busy client's mean time per request."""
BUSY_RATE = 10e3
"""Least bytes per second of a busy client. At the 50 connections per second that conf/nftables allows, it gets 50
kB."""
DESCRIPTORS = 0.8
"""Most open descriptors of the fullest worker, as a share of its limit."""
MEMORY, EACH = 500e6, 60e3
"""Most bytes of memory for all Squid processes, and most growth per connection."""
GROWTH = 1.25
"""Most memory in the last round, as a multiple of the first round's."""
WITHIN = 0.01
"""Share by which the connections of one address may differ from its allowed number, in either direction."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of one arm in one round."""

    seconds: tuple[float, ...]
    """Latency in seconds of each answered request of the client."""
    failed: int
    """The client's unanswered requests."""
    multipath: int
    """The client's connections that did not fall back to TCP."""
    opened: int
    """Connections that the second node tried to open."""
    standing: int
    """Number of these connections that are open after the client's requests."""
    workers: int
    descriptors: float
    """Open descriptors of the fullest worker, as a share of its limit."""
    memory: int
    """Bytes of Squid's processes, and before any connection."""
    before: int
    warnings: int
    """Lines about file descriptors that cache.log got since the arm began."""
    answers: float = 0.0
    """Answers per second to a busy client."""
    octets: float = 0.0
    """Body bytes per second of a busy client."""

    @property
    def middle(self) -> float:
        """The median of the client's latency; NaN if no request was answered."""
        return percentile(self.seconds, 50, default=nan)

    @property
    def tail(self) -> float:
        """The 95th percentile of the client's latency; NaN if no request was answered."""
        return percentile(self.seconds, 95, default=nan)

    @property
    def share(self) -> float:
        """Open connections, as a multiple of the number that one address may have."""
        return _share(self.standing, SHARE * self.workers)

    @property
    def kept(self) -> float:
        """Share of the connections of the second node that are open."""
        return _share(self.standing, self.opened)

    @property
    def due(self) -> float:
        """The client's mean latency, as a multiple of the busy client's: connections / answers per second (Little)."""
        if not self.seconds or not self.standing:
            return nan
        return fmean(self.seconds) * self.answers / self.standing


Arm = Row[str, Measured]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else nan


def times_alone(row: Arm, percent: str) -> list[float]:
    """Return the latency percentile beside the arm divided by the one alone, for each round with both."""
    alone, beside = by_round(row.results, ALONE), by_round(row.results, row.cell)
    both = [number for number in beside if number in alone and row.cell != ALONE]
    return [getattr(beside[number], percent) / (getattr(alone[number], percent) or nan) for number in both]


def _latency(heading: str, percent: str, what: str) -> tuple[Column[str, Measured], Column[str, Measured]]:
    """Return the columns of a latency percentile in milliseconds, and as a multiple of the one alone."""

    def values(row: Arm) -> list[float]:
        return times_alone(row, percent)

    def text(row: Arm) -> str:
        return mean(values(row)) if values(row) else ""

    aim = f"{what} of the latency, × alone, upper bound"
    return (
        Column(f"{heading} ms", percent, scale=1e3),
        Column(f"{heading} × alone", values, by="upper bound", aim=aim, most=LONGER, text=text),
    )


def _multipath(row: Arm) -> list[float]:
    """Return the share of all requests that went by Multipath TCP."""
    requests = sum(len(each.seconds) + each.failed for each in row.measured)
    return [_share(sum(each.multipath for each in row.measured), requests)] if row.measured else []


def _stand(row: Arm) -> str:
    there = row.measured
    return f"{min(each.standing for each in there):,} of {max(each.opened for each in there):,}"


def _among(*arms: str) -> Callable[[Arm], bool]:
    """Return a function that tells whether a row is of one of *arms*."""
    return lambda row: row.cell in arms


STANDING = "connections that stand, × its share"
ROUNDS: Column[str, Measured] = Column("rounds", lambda row: [len(row.measured)], digits=0)
(MEDIAN, MEDIAN_ALONE), (TAIL, TAIL_ALONE) = (
    _latency("median", "middle", "median"),
    _latency("95 %", "tail", "95th percentile"),
)
FAILED: Column[str, Measured] = Column(
    "failed", "failed", by="sum", digits=0, aim="requests that were refused or failed", most=0
)
DESCRIPTORS_USED: Column[str, Measured] = Column(
    "most descriptors, × limit", "descriptors", by="most", digits=3,
    aim="descriptors of the fullest worker, × its limit", most=DESCRIPTORS,
)  # fmt: skip
HIDDEN: tuple[Column[str, Measured], ...] = (
    Column("", _multipath, aim="requests by Multipath TCP, share", least=1),
    Column("", "warnings", by="sum", aim="lines about descriptors in cache.log", most=0),
)
BESIDE = (("beside", lambda row: row.cell),)
TABLES: tuple[Table[str, Measured], ...] = (
    Table(
        "A client beside connections that ask for nothing",
        (
            ROUNDS, MEDIAN, TAIL, MEDIAN_ALONE, TAIL_ALONE, FAILED,
            Column("stand", "standing", filled=lambda row: row.cell != ALONE, text=_stand),
            DESCRIPTORS_USED,
            Column("most memory, MB", "memory", by="most", scale=1e-6, digits=0),
            *HIDDEN,
            Column("", "share", by="least", aim=f"{STANDING}, fewest", least=1 - WITHIN, judged=_among(ONE_ADDRESS)),
            Column("", "share", by="most", aim=f"{STANDING}, most", most=1 + WITHIN, judged=_among(ONE_ADDRESS)),
            Column("", "kept", by="least", aim="connections that stand, share", least=1, judged=_among(*WAITING, ALL)),
        ),
        BESIDE,
        of=_among(ALONE, *WAITING, ALL, ONE_ADDRESS),
    ),
    Table(
        "A client beside one that is busy",
        (
            ROUNDS,
            Column("connections", "standing", by="most", digits=0),
            # A download is longer than the measurement, so its answers per second mean nothing.
            Column("answers/s", "answers", digits=0, filled=lambda row: row.cell != DOWNLOADS),
            Column("Mbit/s", "octets", scale=8e-6),
            MEDIAN, TAIL, MEDIAN_ALONE, TAIL_ALONE,
            Column("mean × the busy client's", "due", filled=_among(*COMPARED)),
            FAILED,
            *HIDDEN,
            replace(DESCRIPTORS_USED, heading=""),
            Column("", "octets", by="least", scale=1e-3, aim="the busy client gets", unit=" kB/s",
                   least=BUSY_RATE / 1e3),
            Column("", "due", by="upper bound", aim="mean latency, × that of the busy client's requests, upper bound",
                   most=DUE, judged=_among(*COMPARED)),
        ),
        BESIDE,
        of=_among(*BUSY),
    ),
)  # fmt: skip


def memory(results: Results[str, Measured]) -> Iterator[Aim]:
    """Yield the aims for the memory of Squid's processes over all arms, since Squid keeps memory that it frees."""
    rounds: dict[int, list[int]] = {}
    for run in results.runs:
        rounds.setdefault(run.turn.number, []).append(run.measured.memory)
    if not any(run.measured.standing for run in results.runs):
        return
    yield Aim("memory of Squid's processes", max(map(max, rounds.values())) / 1e6, " MB", most=MEMORY / 1e6)
    growth = max(rounds[max(rounds)]) / max(rounds[min(rounds)])
    yield Aim("their memory, last round / first", growth, most=GROWTH)
    # Leave out busy clients: their few connections have larger buffers.
    idle = [run.measured for run in results.runs if run.turn.cell not in BUSY]
    if most := max((each.standing for each in idle), default=0):
        grown = max(each.memory - each.before for each in idle)
        what = "their memory for each connection of the most that stood"
        yield Aim(what, grown / most / 1e3, " kB", most=EACH / 1e3)
