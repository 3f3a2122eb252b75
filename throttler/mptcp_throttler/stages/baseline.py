"""What subflows and the uncapped paths of a client give now, and what the paths once gave: the baseline rate. Pure.

Rates are taken over the span that samples really have (:func:`first_in_window`). A path is one client address. Its rate
now is the sum of the latest rates of its subflows, which may have been sampled at different moments. Its baseline is
learnt only when all its subflows were sampled together: otherwise what one subflow gave before could be added to what
another gives after, and the sum would be more than the path ever carried.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple

WINDOW = 0.8
"""Seconds over which rates are taken: BBR stops for 0.2 s every ten seconds (PROBE_RTT), which is no degradation."""
MIN_SPAN = 0.35
"""Seconds. Over less a rate may be a burst."""
SLACK = 0.01
"""Seconds by which a sample may be older than the window."""
PRESENT_SPAN = 0.3
"""Seconds over which the present rate is taken."""
MAX_WINDOW_LIMITED = 0.1
"""Part of the time beyond which the client, not the path, is slow."""
MIN_WAITING = 0.05
"""Seconds that what waits takes to send; below it the application may be slow."""
MAX_GAP = 10.0
"""Seconds between two samples, beyond which nothing is concluded from both."""
DEGRADED, HEALTHY = 0.5, 0.8
"""Parts of the baseline: a path that gives at most the first has degraded, one that gives the second is well."""
MEMORY = 120.0
"""Seconds in which a baseline falls to 1/e, so that a path that stays worse gets a new one."""
FORGET_AFTER = 3 * MEMORY
"""Seconds after which the baseline of a path without subflows is forgotten."""
READ_TOGETHER_SECONDS = 0.1
"""Subflows of a path whose reads are at most so far apart were read together."""
MIN_RATE = 500_000
"""Bits/s. A path that never gave more has no baseline."""
MIN_UNUSED = 64
"""As many paths without subflows are remembered in any case; more only where as many are in use."""


class Sample(NamedTuple):
    """One subflow at one moment."""

    time: float
    """Monotonic seconds."""
    delivered: int
    """Bytes that arrived, in order or not, since its beginning."""
    not_sent: int = 0
    """Bytes."""
    unacked: int = 0
    """Segments."""
    window_limited: int = 0
    """Microseconds, since its beginning, in which only the receiver's window kept it from sending."""


def first_in_window(samples: Sequence[Sample], now: float) -> int:
    """Return the index of the sample from which on a rate is to be taken.

    The span is the longest within the window. Where samples are further apart than that, it is the last interval; where
    the window holds too short a span, it is the shortest that is not.
    """
    index = 0
    while (
        len(samples) - index > 2
        and samples[index].time < now - WINDOW - SLACK
        and now - samples[index + 1].time >= MIN_SPAN
    ):
        index += 1
    return index


class History:
    """The latest samples of one subflow."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def add(self, sample: Sample) -> None:
        samples = self._samples
        if samples and sample.time - samples[-1].time > MAX_GAP:
            samples.clear()
        samples.append(sample)
        del samples[: first_in_window(samples, sample.time)]

    @property
    def last(self) -> float:
        """When it was sampled last."""
        return self._samples[-1].time

    @property
    def span(self) -> float:
        """Seconds."""
        return self._samples[-1].time - self._samples[0].time

    @property
    def rate(self) -> float:
        """Bits/s over the span."""
        return self._rate_since(self._samples[0])

    @property
    def backlogged(self) -> bool:
        """It had more to send all the time."""
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
        span = last.time - before.time
        return 8 * max(0, last.delivered - before.delivered) / span if span else 0.0


@dataclass(slots=True, eq=False)
class Path:
    """All guarded, uncapped subflows from one client address."""

    address: bytes
    flows: Counter[FourTuple] = field(default_factory=Counter)
    """By name, for a port may be used anew before the subflow that had it is gone. A path refers to nothing that refers
    to it, so that both are freed without the garbage collector."""
    present: int = 0
    """How many of them have a socket, as far as is known."""
    rate: int = 0
    """Bits/s of all together."""
    baseline: float = 0.0
    """Bits/s."""
    well: float = -inf
    """When the path last gave about its baseline."""
    disturbed: float = -inf
    """When a subflow last came or left."""
    sampled: float = -inf
    """When any of its subflows was sampled, and when those were read that were."""
    reads: list[float] = field(default_factory=list)
    complete: float = -inf
    """When all of them were."""
    _carried: int = 0
    _learnt: float = 0.0
    _marks: list[Sample] = field(default_factory=list)
    """What the path had carried at some moments."""
    _skewed: bool = False
    """They were read long after each other, as in a sweep: always in the same order there."""

    def begin(self, now: float) -> None:
        """Samples of *now* follow."""
        self.sampled = now
        self.reads.clear()

    @property
    def degraded(self) -> bool:
        return self.rate <= DEGRADED * self.baseline

    def carry(self, octets: int) -> None:
        self._carried += octets

    def conclude(self, now: float) -> None:
        """Learn what there is to learn, once all samples of *now* have been taken."""
        if self.reads and len(self.reads) >= self.present:
            self.complete = now
            skewed = max(self.reads) - min(self.reads) > READ_TOGETHER_SECONDS
            if skewed is not self._skewed:
                # What one brought between its moment and another's would count twice, or not at all.
                self._marks.clear()
                self._skewed = skewed
            self._learn(sum(self.reads) / len(self.reads))
        if self.rate >= HEALTHY * self.baseline:
            self.well = now

    def _learn(self, now: float) -> None:
        marks = self._marks
        marks.append(Sample(now, self._carried))
        del marks[: first_in_window(marks, now)]
        span = now - marks[0].time
        rate = 8 * (self._carried - marks[0].delivered) / span if span >= MIN_SPAN else 0.0
        if rate >= MIN_RATE or self.baseline:
            self.baseline = max(rate, self.baseline * exp((self._learnt - now) / MEMORY))
            self._learnt = now


class Flow:
    """One subflow of a guarded connection, on its path."""

    __slots__ = ("_began", "_began_at", "_delivered", "four_tuple", "path", "present", "rate")

    def __init__(self, four_tuple: FourTuple, path: Path) -> None:
        self.four_tuple = four_tuple
        self.path = path
        self.present = False
        self.rate = 0
        """Bits/s."""
        self._delivered = self._began = 0
        self._began_at = 0.0
        path.flows[four_tuple] += 1

    def take(self, now: float, delivered: int) -> bool:
        """Take a sample; return whether data arrived since the one before."""
        if not self.present:
            self.present = True
            self.path.present += 1
            self.path.disturbed = max(self.path.disturbed, now)
            self._delivered = self._began = delivered
            self._began_at = now
            return True
        moved = delivered - self._delivered
        if moved > 0:
            self.path.carry(moved)
            self._delivered = delivered
        span = now - self._began_at
        if span >= MIN_SPAN:
            self.set_rate(int(8 * (self._delivered - self._began) / span))
            if span >= WINDOW:
                self._began, self._began_at = self._delivered, now
        return moved > 0

    def take_rate(self, history: History | None) -> None:
        """Take the rate from *history*, which has more samples."""
        if history is not None and history.span >= MIN_SPAN:
            self.set_rate(int(history.rate))

    def set_rate(self, rate: int) -> None:
        """Set the rate, bits/s."""
        self.path.rate += rate - self.rate
        self.rate = rate

    def pause(self) -> None:
        """The subflow has no socket any more, or is not used; until it is sampled again."""
        if self.present:
            self.set_rate(0)
            self.present = False
            self.path.present -= 1

    def leave(self) -> None:
        """It is gone for good."""
        self.pause()
        self.path.flows[self.four_tuple] -= 1
        if not self.path.flows[self.four_tuple]:
            del self.path.flows[self.four_tuple]


class Paths:
    """The paths of all guarded connections."""

    def __init__(self) -> None:
        self._used: dict[bytes, Path] = {}
        self._unused: dict[bytes, Path] = {}
        """Paths without subflows, whose baselines are still worth something; the one unused for longest first."""
        self._left: set[Path] = set()
        """Those that a subflow left since the last sample."""

    def __len__(self) -> int:
        return len(self._used) + len(self._unused)

    def used(self, address: bytes) -> Path | None:
        """Return the path of a client's *address* where subflows are on it."""
        return self._used.get(address)

    def join(self, four_tuple: FourTuple) -> Flow:
        """Return a new subflow on the path that it belongs to."""
        address = four_tuple.remote
        path = self._used.get(address)
        if path is None:
            path = self._used[address] = self._unused.pop(address) if address in self._unused else Path(address)
        return Flow(four_tuple, path)

    def leave(self, flow: Flow) -> None:
        """Take a subflow out for good."""
        path = flow.path
        if flow.present:
            self._left.add(path)
        flow.leave()
        if not path.flows:
            del self._used[path.address]
            if path.baseline >= MIN_RATE:
                self._unused[path.address] = path

    def begin(self, now: float) -> None:
        """Note when subflows left; a clock runs only in samples."""
        for path in self._left:
            path.disturbed = now
        self._left.clear()
        bound = max(MIN_UNUSED, len(self._used))
        while self._unused:
            address, path = next(iter(self._unused.items()))
            if len(self._unused) <= bound and now - path.sampled <= FORGET_AFTER:
                break
            del self._unused[address]
