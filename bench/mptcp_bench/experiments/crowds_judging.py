# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a client waits or is refused beside many idle connections or a busy client, and what these cost. Pure.

An arm is what runs beside the client. Latencies are compared within one round: beside others divided by alone. Beside a
busy client, the latency is also compared with the busy client's own latency. If n connections share a processor, each
waits for all n: that is longer than alone, but it is a fair share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

from ..statistics import fmean, mean_bounds, percentile
from .aims import Aim

ALONE, ALL, ONE_ADDRESS = "alone", "all", "one-address"
REQUESTS, DOWNLOADS, NEW, NEW_LIMITED = "requests", "downloads", "new", "new-limited"
BUSY = (REQUESTS, DOWNLOADS, NEW, NEW_LIMITED)
ARMS = (ALONE, "slow-headers", "keep-alives", "tunnels", ALL, ONE_ADDRESS, *BUSY)
COMPARED = (REQUESTS, NEW)
"""Arms whose busy client requests the same file as the other client, one request after another on each connection."""
SHARE = 1000
"""Connections of one address per Squid worker: client_ip_max_connections in conf/squid.conf."""
PERCENTILES = (50, 95)
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

    arm: str
    round: int
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
    """Bytes of Squid's processes."""
    warnings: int
    """Lines about file descriptors that cache.log got since the arm began."""
    answers: float = 0.0
    """Answers per second to a busy client."""
    octets: float = 0.0
    """Body bytes per second of a busy client."""

    def latency(self, percent: float) -> float:
        """Return a percentile of :attr:`seconds`; NaN if no request was answered."""
        return percentile(self.seconds, percent, default=nan)

    @property
    def share(self) -> float:
        """Open connections, as a multiple of the number that one address may have."""
        return self.standing / (SHARE * self.workers) if self.workers else nan

    @property
    def due(self) -> float:
        """The client's mean latency, as a multiple of the busy client's: connections / answers per second (Little)."""
        if not self.seconds or not self.standing:
            return nan
        return fmean(self.seconds) * self.answers / self.standing


def aims(measured: Sequence[Measured], arms: Sequence[str], runs: int, before: int) -> list[Aim]:
    """Return the aims of *runs* rounds of *arms*. *before* is Squid's memory in bytes without any connection."""
    found = []
    for arm in arms:
        there = [each for each in measured if each.arm == arm]
        found.append(Aim(f"{arm}: rounds", len(there), least=runs))
        if not there:
            continue
        requests = sum(len(each.seconds) + each.failed for each in there)
        found += [
            Aim(f"{arm}: requests that were refused or failed", sum(each.failed for each in there), most=0),
            Aim(f"{arm}: requests by Multipath TCP, share", _share(sum(e.multipath for e in there), requests), least=1),
            Aim(f"{arm}: descriptors of the fullest worker, × its limit", max(e.descriptors for e in there),
                most=DESCRIPTORS),
            Aim(f"{arm}: lines about descriptors in cache.log", sum(each.warnings for each in there), most=0),
        ]  # fmt: skip
        if arm != ALONE:
            found += [_waits(arm, percent, ratios(measured, arm, percent)) for percent in PERCENTILES]
        if arm in BUSY:
            least = min(each.octets for each in there)
            found.append(Aim(f"{arm}: the busy client gets", least / 1e3, " kB/s", least=BUSY_RATE / 1e3))
        if arm in COMPARED:
            bound = mean_bounds([each.due for each in there])[1]
            what = f"{arm}: mean latency, × that of the busy client's requests, upper bound"
            found.append(Aim(what, bound, most=DUE))
        if arm == ONE_ADDRESS:
            shares = [each.share for each in there]
            what = f"{arm}: connections that stand, × its share"
            found += [
                Aim(f"{what}, fewest", min(shares), least=1 - WITHIN),
                Aim(f"{what}, most", max(shares), most=1 + WITHIN),
            ]
        elif arm != ALONE and arm not in BUSY:
            stand = min(_share(each.standing, each.opened) for each in there)
            found.append(Aim(f"{arm}: connections that stand, share", stand, least=1))
    if any(each.standing for each in measured):
        found += _memory(measured, before)
    return found


def ratios(measured: Sequence[Measured], arm: str, percent: float) -> list[float]:
    """Return, for each round with both, the latency percentile beside *arm* divided by the one alone."""
    alone = {each.round: each.latency(percent) for each in measured if each.arm == ALONE}
    return [e.latency(percent) / alone[e.round] for e in measured if e.arm == arm and alone.get(e.round)]


def _waits(arm: str, percent: int, times_alone: Sequence[float]) -> Aim:
    """Return the aim that the mean ratio is at most LONGER, by its one-sided bound of 95 % confidence."""
    what = "median" if percent == 50 else f"{percent}th percentile"
    return Aim(f"{arm}: {what} of the latency, × alone, upper bound", mean_bounds(times_alone)[1], most=LONGER)


def _memory(measured: Sequence[Measured], before: int) -> list[Aim]:
    """Return the aims for the memory of Squid's processes over all arms, since Squid keeps memory that it frees."""
    most = max(each.memory for each in measured)
    rounds = sorted({each.round for each in measured})
    first, last = (max(e.memory for e in measured if e.round == number) for number in (rounds[0], rounds[-1]))
    found = [
        Aim("memory of Squid's processes", most / 1e6, " MB", most=MEMORY / 1e6),
        Aim("their memory, last round / first", last / first, most=GROWTH),
    ]
    # Leave out busy clients: their few connections have larger buffers.
    if idle := max((each.standing for each in measured if each.arm not in BUSY), default=0):
        beside = max(each.memory for each in measured if each.arm not in BUSY) - before
        what = "their memory for each connection of the most that stood"
        found.append(Aim(what, beside / idle / 1e3, " kB", most=EACH / 1e3))
    return found


def _share(part: float, whole: float) -> float:
    return part / whole if whole else nan
