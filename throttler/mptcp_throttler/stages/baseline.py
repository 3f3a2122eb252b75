# SPDX-License-Identifier: GPL-2.0-or-later
"""Current rates of subflows and uncapped paths, and the baseline: the rate that a path once had. Pure.

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

WINDOW_SECONDS = 0.8  # span of the rates: BBR's pause of 0.2 s every ten seconds is not a degradation
MIN_SPAN_SECONDS = 0.35  # minimum seconds over which a rate is computed: over less, it could be the rate of a burst
SLACK_SECONDS = 0.01  # tolerance, seconds: a sample may be this much older than the window
PRESENT_SECONDS = 0.3  # seconds over which the present rate is computed
MAX_WINDOW_LIMITED = 0.1  # if the receive window stops the sender for more than this share of time, the client is slow
MIN_BACKLOG_SECONDS = 0.05  # minimum of a backlog, as time to send the unsent data; below, the application may be slow
MAX_GAP_SECONDS = 10.0  # seconds; samples further apart are not compared
DEGRADED_SHARE = 0.5  # a path whose rate is at most this share of its baseline is degraded
HEALTHY_SHARE = 0.8  # a path whose rate is at least this share of its baseline is healthy
DECAY_SECONDS = 120.0  # time in which a baseline falls to 1/e, so that a path that stays slower gets a lower baseline
FORGET_SECONDS = 3 * DECAY_SECONDS  # time after which the baseline of a path without subflows is forgotten
READ_TOGETHER_SECONDS = 0.1  # reads of different subflows count as simultaneous if they are at most this long apart
MIN_RATE = 500_000  # Bits/s. A path that never had a higher rate has no baseline.
MAX_UNUSED = 64  # maximum number of remembered paths without subflows; the number of paths in use, if larger


class Sample(NamedTuple):
    """Counters of one subflow or path at one moment."""

    time: float
    delivered: int  # bytes that arrived, in order or not, since the subflow began
    not_sent: int = 0  # bytes
    unacked: int = 0  # segments
    window_limited: int = 0  # total time in which only the receive window stopped the sender, microseconds


class History:
    """The latest samples of one subflow or path."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        """Add *sample*. The rate is computed over the longest span within the window. If this span is shorter than
        ``MIN_SPAN_SECONDS``, the rate is computed over the shortest span of at least ``MIN_SPAN_SECONDS``."""
        samples, now = self._samples, sample.time
        if samples and now - samples[-1].time > MAX_GAP_SECONDS:
            samples.clear()
        samples.append(sample)
        first = 0
        while (
            len(samples) - first > 2
            and samples[first].time < now - WINDOW_SECONDS - SLACK_SECONDS
            and now - samples[first + 1].time >= MIN_SPAN_SECONDS
        ):
            first += 1
        del samples[:first]

    @property
    def last_time(self) -> float:
        return self._samples[-1].time

    @property
    def span(self) -> float:
        return self.last_time - self._samples[0].time

    @property
    def rate(self) -> float:
        """Rate over the span, bits/s."""
        return self._rate_since(self._samples[0])

    @property
    def is_backlogged(self) -> bool:
        """Whether the subflow had data to send at every sample."""
        last, first = self._samples[-1], self._samples[0]
        span = PRESENT_SECONDS - 0.01
        recent = next((each for each in reversed(self._samples) if last.time - each.time >= span), first)
        if last.window_limited - first.window_limited > MAX_WINDOW_LIMITED * 1e6 * self.span:
            return False
        rate = min(self._rate_since(first), self._rate_since(recent))
        if not rate:
            return all(each.unacked or each.not_sent for each in self._samples)
        return all(8 * each.not_sent >= MIN_BACKLOG_SECONDS * rate for each in self._samples)

    def _rate_since(self, earlier: Sample) -> float:
        last = self._samples[-1]
        return compute_rate(earlier.delivered, last.delivered, last.time - earlier.time)


@dataclass(slots=True, eq=False)
class Path:
    """All guarded, uncapped subflows from one client address."""

    address: bytes
    flows: Counter[FourTuple] = field(default_factory=Counter)
    """Four-tuples, not :class:`Flow` objects: a reference cycle would need the garbage collector. They are counted,
    because a client may reuse a port before the old subflow has left."""
    present_count: int = 0  # number of subflows that had a socket in the latest samples
    rate: int = 0  # rate of all subflows together, bits/s
    baseline: float = 0.0
    last_healthy: float = -inf  # when the path last had about its baseline rate
    last_change: float = -inf  # when a subflow last joined or left the path
    last_sampled: float = -inf
    read_times: list[float] = field(default_factory=list)  # when the subflows were read for the last sample
    last_complete: float = -inf  # when all subflows were last sampled
    delivered: int = 0  # bytes of all subflows together
    _baseline_time: float = 0.0
    _history: History = field(default_factory=History)
    _is_skewed: bool = False  # whether the subflows were read at different times, as in a sweep (its order is constant)

    @property
    def is_degraded(self) -> bool:
        return self.rate <= DEGRADED_SHARE * self.baseline

    def update_baseline(self, now: float) -> None:
        """Update the baseline when all samples of *now* have been recorded."""
        if self.read_times and len(self.read_times) >= self.present_count:
            self.last_complete = now
            is_skewed = max(self.read_times) - min(self.read_times) > READ_TOGETHER_SECONDS
            if is_skewed is not self._is_skewed:
                # Start again: bytes that arrived between two reads would otherwise count twice, or not at all.
                self._history, self._is_skewed = History(), is_skewed
            mean_time = sum(self.read_times) / len(self.read_times)
            self._history.add(Sample(mean_time, self.delivered))
            rate = self._history.rate if self._history.span >= MIN_SPAN_SECONDS else 0.0
            if rate >= MIN_RATE or self.baseline:
                self.baseline = max(rate, self.baseline * exp((self._baseline_time - mean_time) / DECAY_SECONDS))
                self._baseline_time = mean_time
        if self.rate >= HEALTHY_SHARE * self.baseline:
            self.last_healthy = now


@dataclass(slots=True, eq=False)
class Flow:
    """One subflow of a guarded connection, on its path."""

    four_tuple: FourTuple
    path: Path
    present: bool = False
    rate: int = 0
    _delivered: int = 0
    _start_bytes: int = 0  # ``_delivered`` when the window of the rate began
    _start_time: float = 0.0

    def __post_init__(self) -> None:
        self.path.flows[self.four_tuple] += 1

    def record(self, now: float, delivered: int) -> bool:
        """Record a sample; return whether data arrived since the last sample."""
        if not self.present:
            self.present = True
            self.path.present_count += 1
            self.path.last_change = max(self.path.last_change, now)
            self._delivered = self._start_bytes = delivered
            self._start_time = now
            return True
        growth = delivered - self._delivered
        if growth > 0:
            self.path.delivered += growth
            self._delivered = delivered
        span = now - self._start_time
        if span >= MIN_SPAN_SECONDS:
            self._set_rate(compute_rate(self._start_bytes, self._delivered, span))
            if span >= WINDOW_SECONDS:
                self._start_bytes, self._start_time = self._delivered, now
        return growth > 0

    def set_rate_from(self, history: History | None) -> None:
        """Set the rate to that of *history*, which is more precise because it has more samples."""
        if history is not None and history.span >= MIN_SPAN_SECONDS:
            self._set_rate(history.rate)

    def _set_rate(self, rate: float) -> None:
        self.path.rate += int(rate) - self.rate
        self.rate = int(rate)

    def pause(self) -> None:
        """Suspend the subflow until its next sample, because the subflow has no socket or is not used."""
        if self.present:
            self._set_rate(0)
            self.present = False
            self.path.present_count -= 1

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
        self._changed: set[Path] = set()  # paths that a subflow left since the last samples

    def join(self, four_tuple: FourTuple) -> Flow:
        address = four_tuple.remote
        if address not in self.used:
            self.used[address] = self.unused.pop(address) if address in self.unused else Path(address)
        return Flow(four_tuple, self.used[address])

    def leave(self, flow: Flow) -> None:
        path = flow.path
        if flow.present:
            self._changed.add(path)
        flow.leave()
        if not path.flows:
            del self.used[path.address]
            if path.baseline >= MIN_RATE:
                self.unused[path.address] = path

    def begin_samples(self, now: float) -> None:
        """Set ``last_change`` to *now*, the samples' time, for paths that subflows have left; forget old paths."""
        for path in self._changed:
            path.last_change = now
        self._changed.clear()
        while self.unused:
            address, path = next(iter(self.unused.items()))
            if len(self.unused) <= max(MAX_UNUSED, len(self.used)) and now - path.last_sampled <= FORGET_SECONDS:
                break
            del self.unused[address]
