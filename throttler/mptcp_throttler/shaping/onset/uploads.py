"""Caps on uploads begin in a ramp: the class falls from the rate that comes in to the cap, as the client follows. Pure.

The scheduler that hands data to the subflows is the client's. What it has handed over leaves at the rate of the class
alone, and only by that does it learn of the cap: so the class has to fall slower than what waits at the client drains
and its estimate of the rate follows (docs/soft-start.md). How far the client is behind shows in the data sequence
numbers: what comes over the other paths lies ahead of what comes over this one by what they send while this one drains.
Of that *lag* the fall depends:

- without any it is as fast as ``FALL``, where rates are low by no more than ``FALL_PER_ASSIGNMENT`` while an assignment
  of the scheduler's leaves;
- with ``LAG_SECONDS`` or ``LAG_BYTES`` of it, beside what one assignment takes to leave, the rate is held until some
  has drained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.shaping.model import GENTLE_FALL
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES
from mptcp_throttler.shaping.plan import Planner

MEASURE_SECONDS = 0.1
"""Over which the rate is taken from which a ramp begins."""
STEP_SECONDS = 0.05
FALL = 0.8
"""Natural logarithm of the rate, per second: a second takes it to 0.45."""
FALL_PER_ASSIGNMENT = 0.15
LAG_SECONDS = 0.45
LAG_BYTES = 1_500_000
"""The same where the others are fast: a client keeps some 3.5 MB (Linux: a send buffer of 4 MB for each subflow at the
most, of which a part is for its book-keeping), the rest waits or is under way."""
STEADY_LAG = 0.25
"""Up to this share of it the fall is not slowed down."""
MAX_RAMP_SECONDS = 15.0
"""By then the cap is in force whatever the client does. Until then a lag counts for less and less: held all the time, a
ramp falls to a 55th by then."""
MAX_BASE_LAG_SECONDS = 0.3
"""Of the lag at the beginning, which may be a difference between the paths' delays, so much is left out of account."""
MAX_STEP_SECONDS = 0.2
"""A ramp that was not stepped for longer goes on as if it had been so long."""
SLICE = 128
"""Subflows looked through at a time."""
MAX_UNSAMPLED_SECONDS = 3.0
"""A subflow whose rate could not be measured for so long is capped at once."""
_SEQUENCES = 1 << 64


@dataclass(slots=True)
class _Ramp:
    """One subflow on its way: its rate is measured, then it falls to the cap."""

    began: float
    """When it came to the cap; when it was first sampled; when it began to fall."""
    received: int | None = None
    """Bytes at its first sample."""
    falls: bool = False
    start: int = 0
    """Bits/s."""
    siblings: Collection[FourTuple] = ()
    """The connection's other subflows."""
    rate: float = 0.0
    """Bits/s that it has now."""
    stepped: float = 0.0
    base_lag: float | None = None
    """Seconds, at the first sample."""
    lag: float = 0.0
    """Seconds beyond that."""
    others: dict[FourTuple, int] = field(default_factory=dict)
    """Bytes that each of the others had received at the last sample,"""
    sampled: float = 0.0
    """and when that was."""
    others_rate: float = 0.0
    """The most that they brought together between two samples, bits/s."""

    def fall_from(self, start: int, now: float, siblings: Collection[FourTuple] = ()) -> None:
        self.falls, self.start, self.rate, self.siblings = True, start, start, siblings
        self.began = self.stepped = now


class UploadOnsets:
    """The ramps of one planner. Times are monotonic seconds."""

    def __init__(self, planner: Planner, subflows: Callable[[int], Collection[FourTuple]]) -> None:
        """*subflows* returns those of the connection with a token."""
        self._planner = planner
        self._subflows = subflows
        self._ramps: dict[FourTuple, _Ramp] = {}
        planner.soft_caps = True

    @property
    def busy(self) -> bool:
        """A step is due soon."""
        return bool(self._ramps or self._planner.has_moved)

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows whose rate is being measured, and those that fall with their siblings."""
        wanted: dict[FourTuple, None] = {}
        for four_tuple, ramp in self._ramps.items():
            # Next to each other, so that they are sampled at the same time.
            wanted.update(dict.fromkeys((four_tuple, *ramp.siblings)))
        return list(wanted)

    def observe(self, asked: Collection[FourTuple], sockets: Mapping[FourTuple, KernelSubflow], now: float) -> None:
        """Take the samples of those *asked* for, of which those without a socket are missing from *sockets*."""
        for four_tuple in asked:
            sample, ramp = sockets.get(four_tuple), self._ramps.get(four_tuple)
            if ramp is None:
                continue
            if sample is None:
                if not ramp.falls:
                    ramp.fall_from(0, now)
            elif ramp.falls:
                _see_lag(ramp, sample, sockets)
            elif ramp.received is None:
                if sample.read >= ramp.began:  # else a sweep read it before it came to the cap; it is looked up soon
                    ramp.began, ramp.received = sample.read, sample.bytes_received
            elif (passed := sample.read - ramp.began) >= MEASURE_SECONDS:
                octets = max(0, sample.bytes_received - ramp.received)
                siblings = [each for each in self._subflows(sample.token) if each != four_tuple]
                ramp.fall_from(round(8 * octets / passed), now, siblings)

    def step(self, now: float) -> Iterator[bool]:
        """Take the planner's moves and go on with all ramps, a slice at a time; yield whether the plan changed."""
        for four_tuple in self._planner.take_moved():
            if self._planner.is_pending(four_tuple):
                self._ramps.setdefault(four_tuple, _Ramp(now))
        ramps = iter(list(self._ramps.items()))
        while part := list(islice(ramps, SLICE)):
            rates: dict[FourTuple, int | None] = {}
            for four_tuple, ramp in part:
                if not ramp.falls and now - ramp.began > MAX_UNSAMPLED_SECONDS:
                    ramp.fall_from(0, now)
                if ramp.falls or self._planner.soft_cap(four_tuple) is None:
                    rates[four_tuple] = self._rate(four_tuple, ramp, now)
            changed = self._planner.set_interim(rates)
            for four_tuple, rate in rates.items():
                changed |= self._planner.complete(four_tuple)
                if rate is None:
                    self._ramps.pop(four_tuple, None)
            yield changed

    def _rate(self, four_tuple: FourTuple, ramp: _Ramp, now: float) -> int | None:
        """Return how many bits/s a subflow still has; None where it is down at its cap, or left it."""
        cap = self._planner.soft_cap(four_tuple)
        if cap is None or cap.ceil >= ramp.start * GENTLE_FALL or now - ramp.began >= MAX_RAMP_SECONDS:
            return None
        passed = min(MAX_STEP_SECONDS, now - ramp.stepped)
        impatience = ((now - ramp.began) / MAX_RAMP_SECONDS) ** 2
        ramp.rate *= math.exp(-passed * fall(ramp.rate, ramp.lag, ramp.others_rate, impatience))
        ramp.stepped = now
        # Together they go down to the cap.
        return round(ramp.rate) if ramp.rate > cap.ceil / max(1, len(cap.interim)) else None


def fall(rate: float, lag: float, others: float, impatience: float = 0.0) -> float:
    """Return by how much the logarithm of *rate* may fall in a second, with a *lag* in seconds behind *others*.

    Rates are in bits/s. With an *impatience* of 1 the lag does not count.
    """
    assignment = 8 * ASSIGNMENT_BYTES / rate
    most = min(LAG_SECONDS, 8 * LAG_BYTES / others) if others else LAG_SECONDS
    slowing = (most + assignment - lag) / (most * (1 - STEADY_LAG))
    return min(FALL, FALL_PER_ASSIGNMENT / assignment) * min(1.0, max(impatience, slowing))


def _see_lag(ramp: _Ramp, sample: KernelSubflow, sockets: Mapping[FourTuple, KernelSubflow]) -> None:
    """Take how far what came over a subflow is behind what came over its siblings."""
    others = [sockets[each] for each in ramp.siblings if each in sockets]
    if not others:
        return
    times = [each.read for each in (sample, *others)]
    read = max(times)
    passed = read - ramp.sampled
    if read - min(times) > MEASURE_SECONDS / 2 or (ramp.others and passed < MEASURE_SECONDS / 2):
        return  # a sweep read them one long after the other; what came in so short a time may be a burst
    octets = sum(max(0, each.bytes_received - ramp.others.get(each.four_tuple, each.bytes_received)) for each in others)
    if ramp.others and passed > 0:
        ramp.others_rate = max(ramp.others_rate, 8 * octets / passed)
    ramp.others, ramp.sampled = {each.four_tuple: each.bytes_received for each in others}, read
    if not ramp.others_rate:
        return
    # What waits while the others stand still is as much as before: the rate is their best.
    lead = max(ahead(each.data_sequence, sample.data_sequence) for each in others)
    lag = 8 * max(0, lead) / ramp.others_rate
    if ramp.base_lag is None:
        ramp.base_lag = min(lag, MAX_BASE_LAG_SECONDS)
    ramp.lag = max(0.0, lag - ramp.base_lag)


def ahead(one: int, other: int) -> int:
    """Return by how many bytes one data sequence number is ahead of another."""
    return (one - other + _SEQUENCES // 2) % _SEQUENCES - _SEQUENCES // 2
