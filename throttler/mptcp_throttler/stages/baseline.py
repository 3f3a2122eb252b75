# SPDX-License-Identifier: GPL-2.0-or-later
"""Current rates of subflows and uncapped paths, and the baseline: the rate that a path once gave. Pure.

Rates are computed over the actual span of the samples (:meth:`History.add`). A path is one client address. Its rate is
the sum of the latest rates of its subflows, which may have different times. Its baseline is learnt only from samples
of all subflows together: otherwise rates at different times could add up to more than the path ever carried.
Times are monotonic seconds, rates bits/s, volumes bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import exp, inf
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, compute_rate

WINDOW = 0.8  # seconds over which rates are computed: BBR's pause of 0.2 s every ten seconds is not a degradation
MIN_SPAN = 0.35  # minimum seconds over which a rate is computed; over a shorter time it may be a burst
SLACK = 0.01  # tolerance, seconds: a sample may be this much older than the window
PRESENT_SPAN = 0.3  # seconds over which the present rate is computed
MAX_WINDOW_LIMITED = 0.1  # if the receive window stops the sender for more than this share of time, the client is slow
MIN_WAITING = 0.05  # minimum seconds that the waiting data take to be sent; with less data, the application may be slow
MAX_GAP = 10.0  # seconds; samples further apart are not compared
DEGRADED, HEALTHY = 0.5, 0.8  # shares of the baseline: a path is degraded up to the first, and well from the second on
MEMORY = 120.0  # seconds in which a baseline falls to 1/e, so that a path that stays worse gets a new one
FORGET_AFTER = 3 * MEMORY  # seconds after which the baseline of a path without subflows is forgotten
READ_TOGETHER_SECONDS = 0.1  # reads of different subflows count as simultaneous if they are at most this long apart
MIN_RATE = 500_000  # Bits/s. A path that never had a higher rate has no baseline.
MIN_UNUSED = 64  # limit of the paths without subflows that are remembered; it is the number of used paths, if larger


class Sample(NamedTuple):
    """One subflow at one moment."""

    time: float
    delivered: int  # bytes that arrived, in order or not, since the subflow began
    not_sent: int = 0
    unacked: int = 0  # segments
    window_limited: int = 0  # microseconds since its start in which only the receive window kept it from sending


class History:
    """The latest samples of one subflow or path."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Add *sample*. The rate is computed over the longest span within the window. If this span is shorter than
        ``MIN_SPAN``, the rate is computed over the shortest span of at least ``MIN_SPAN``."""
        samples, now = self._samples, sample.time
        if samples and now - samples[-1].time > MAX_GAP:
            samples.clear()
        samples.append(sample)
        first = 0
        while (
            len(samples) - first > 2
            and samples[first].time < now - WINDOW - SLACK
            and now - samples[first + 1].time >= MIN_SPAN
        ):
            first += 1
        del samples[:first]

    @property
    def last(self) -> float:
        return self._samples[-1].time

    @property
    def span(self) -> float:
        return self.last - self._samples[0].time

    @property
    def rate(self) -> float:
        """Rate over the span, bits/s."""
        return self._rate_since(self._samples[0])

    @property
    def backlogged(self) -> bool:
        """Whether the subflow had data to send at every sample."""
        last, first = self._samples[-1], self._samples[0]
        recent = next((each for each in reversed(self._samples) if last.time - each.time >= PRESENT_SPAN - 0.01), first)
        if last.window_limited - first.window_limited > MAX_WINDOW_LIMITED * 1e6 * self.span:
            return False
        rate = min(self._rate_since(first), self._rate_since(recent))
        if not rate:
            return all(each.unacked or each.not_sent for each in self._samples)
        return all(8 * each.not_sent >= MIN_WAITING * rate for each in self._samples)

    def _rate_since(self, before: Sample) -> float:
        last = self._samples[-1]
        return compute_rate(before.delivered, last.delivered, last.time - before.time)


@dataclass(slots=True, eq=False)
class Path:
    """All guarded, uncapped subflows from one client address."""

    address: bytes
    flows: Counter[FourTuple] = field(default_factory=Counter)
    """Four-tuples, not :class:`Flow` objects: a reference cycle would need the garbage collector. They are counted,
    because a client may reuse a port before the old subflow has left."""
    present: int = 0  # number of subflows that have a socket, by the latest samples
    rate: int = 0  # rate of all subflows together, bits/s
    baseline: float = 0.0
    well: float = -inf  # when the path last had about its baseline rate
    disturbed: float = -inf  # when a subflow last joined or left the path
    sampled: float = -inf
    reads: list[float] = field(default_factory=list)  # when the subflows were read for the last sample
    complete: float = -inf  # when all subflows were last sampled
    carried: int = 0
    _learnt: float = 0.0
    _history: History = field(default_factory=History)
    _skewed: bool = False  # whether the subflows were read at different times, as in a sweep (always in the same order)

    @property
    def degraded(self) -> bool:
        return self.rate <= DEGRADED * self.baseline

    def conclude(self, now: float) -> None:
        """Update the baseline after all samples that were taken at *now*."""
        if self.reads and len(self.reads) >= self.present:
            self.complete = now
            skewed = max(self.reads) - min(self.reads) > READ_TOGETHER_SECONDS
            if skewed is not self._skewed:
                # Start again: bytes that arrived between two reads would otherwise count twice, or not at all.
                self._history, self._skewed = History(), skewed
            read = sum(self.reads) / len(self.reads)
            self._history.add(Sample(read, self.carried))
            rate = self._history.rate if self._history.span >= MIN_SPAN else 0.0
            if rate >= MIN_RATE or self.baseline:
                self.baseline = max(rate, self.baseline * exp((self._learnt - read) / MEMORY))
                self._learnt = read
        if self.rate >= HEALTHY * self.baseline:
            self.well = now


@dataclass(slots=True, eq=False)
class Flow:
    """One subflow of a guarded connection, on its path."""

    four_tuple: FourTuple
    path: Path
    present: bool = False
    rate: int = 0
    _delivered: int = 0
    _began: int = 0  # ``_delivered`` when the window of the rate began, at ``_began_at``
    _began_at: float = 0.0

    def __post_init__(self) -> None:
        self.path.flows[self.four_tuple] += 1

    def take(self, now: float, delivered: int) -> bool:
        """Record a sample; return whether data arrived since the last sample."""
        if not self.present:
            self.present = True
            self.path.present += 1
            self.path.disturbed = max(self.path.disturbed, now)
            self._delivered = self._began = delivered
            self._began_at = now
            return True
        moved = delivered - self._delivered
        if moved > 0:
            self.path.carried += moved
            self._delivered = delivered
        span = now - self._began_at
        if span >= MIN_SPAN:
            self._set_rate(compute_rate(self._began, self._delivered, span))
            if span >= WINDOW:
                self._began, self._began_at = self._delivered, now
        return moved > 0

    def take_rate(self, history: History | None) -> None:
        """Set the rate to that of *history*, which is more precise because it has more samples."""
        if history is not None and history.span >= MIN_SPAN:
            self._set_rate(history.rate)

    def _set_rate(self, rate: float) -> None:
        self.path.rate += int(rate) - self.rate
        self.rate = int(rate)

    def pause(self) -> None:
        """Suspend the subflow until its next sample, because the subflow has no socket or is not used."""
        if self.present:
            self._set_rate(0)
            self.present = False
            self.path.present -= 1

    def leave(self) -> None:
        """Remove the subflow from its path for good."""
        self.pause()
        self.path.flows[self.four_tuple] -= 1
        if not self.path.flows[self.four_tuple]:
            del self.path.flows[self.four_tuple]


class Paths:
    """The paths of all guarded connections."""

    def __init__(self) -> None:
        self.used: dict[bytes, Path] = {}  # paths with subflows, by client address
        self.unused: dict[bytes, Path] = {}  # paths without subflows that have a baseline, the longest unused first
        self._left: set[Path] = set()  # paths that a subflow left since the last sample

    def join(self, four_tuple: FourTuple) -> Flow:
        address = four_tuple.remote
        if address not in self.used:
            self.used[address] = self.unused.pop(address) if address in self.unused else Path(address)
        return Flow(four_tuple, self.used[address])

    def leave(self, flow: Flow) -> None:
        path = flow.path
        if flow.present:
            self._left.add(path)
        flow.leave()
        if not path.flows:
            del self.used[path.address]
            if path.baseline >= MIN_RATE:
                self.unused[path.address] = path

    def begin(self, now: float) -> None:
        """Set the time at which subflows left, which is known only from samples, and forget old paths."""
        for path in self._left:
            path.disturbed = now
        self._left.clear()
        bound = max(MIN_UNUSED, len(self.used))
        while self.unused:
            address, path = next(iter(self.unused.items()))
            if len(self.unused) <= bound and now - path.sampled <= FORGET_AFTER:
                break
            del self.unused[address]
