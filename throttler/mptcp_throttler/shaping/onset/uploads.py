# SPDX-License-Identifier: GPL-2.0-or-later
"""The soft onset of upload caps (docs/soft-start.md): the class rate falls from the incoming rate to the cap no faster
than the client adapts. Pure.

The client's scheduler notices the cap only because assigned data leave at the rate of the class. While they drain, the
data sequence numbers on the other paths run ahead, by the *lag*. Without a lag, the rate's logarithm falls by
``MAX_FALL`` per second, at low rates by at most ``MAX_FALL_PER_ASSIGNMENT`` in the time in which one assignment leaves.
At a lag of ``LAG_SECONDS`` or ``LAG_BYTES``, plus the time one assignment takes to leave, the rate does not fall.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, Sockets, compute_rate
from mptcp_throttler.shaping.model import NO_TRANSITION_SHARE
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES
from mptcp_throttler.shaping.plan import Planner

MEASURE_SECONDS = 0.1  # time over which the initial rate of a ramp is measured
STEP_SECONDS = 0.05
MAX_FALL = 0.8  # fall of the natural logarithm of the rate per second: in 1 s the rate falls to 0.45 of its value
MAX_FALL_PER_ASSIGNMENT = 0.15
LAG_SECONDS, LAG_BYTES = 0.45, 1_500_000
"""Limits of the lag. The lower one applies: the bytes, if the other paths are fast. A client buffers about 3.5 MB
(Linux: at most 4 MB per subflow, minus overhead); the bytes above this limit wait on the subflow or are in flight."""
STEADY_LAG = 0.25  # a lag up to this share of its limit does not slow the fall
MAX_RAMP_SECONDS = 15.0
"""After this time the cap is in force in any case. The lag counts less and less: even if it is always at its limit, the
rate falls to 1/55."""
MAX_BASE_LAG_SECONDS = 0.3  # maximum of the initial lag that counts as a difference between the delays of the paths
MAX_STEP_SECONDS = 0.2  # longer pauses between two steps of a ramp count as this
SLICE = 128
MAX_UNSAMPLED_SECONDS = 3.0  # if the rate of a subflow was not measured after this time, its cap begins at once
_SEQUENCES = 1 << 64


@dataclass(slots=True)
class _Ramp:
    """The ramp of one subflow: first the incoming rate is measured, then it falls to the cap. Rates in bits/s."""

    began: float  # when the present phase began: waiting for the first sample, measuring, or falling
    received: int | None = None  # bytes received when the measurement began; None until then
    is_falling: bool = False
    start: int = 0  # rate at which the fall began
    siblings: Collection[FourTuple] = ()  # the other subflows of the connection
    rate: float = 0.0
    last_step: float = 0.0
    base_lag: float | None = None  # lag at the first sample, seconds
    lag: float = 0.0  # lag in excess of ``base_lag``, seconds
    sibling_bytes: dict[FourTuple, int] = field(default_factory=dict)  # received on each sibling at ``last_sample``
    last_sample: float = 0.0
    siblings_rate: float = 0.0  # highest total rate of the siblings between two samples

    def begin_fall(self, start: int, now: float, siblings: Collection[FourTuple] = ()) -> None:
        self.is_falling, self.start, self.rate, self.siblings = True, start, start, siblings
        self.began = self.last_step = now


class UploadOnsets:
    """The ramps of one planner. Times are monotonic seconds."""

    def __init__(self, planner: Planner, subflows: Callable[[int], Collection[FourTuple]]) -> None:
        """*subflows* returns the subflows of the connection with the given token."""
        self._planner = planner
        self._subflows = subflows
        self._ramps: dict[FourTuple, _Ramp] = {}
        planner.soft_caps = True

    @property
    def busy(self) -> bool:
        """Whether a step is needed soon."""
        return bool(self._ramps or self._planner.changed_subflows)

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows in a ramp, and the siblings of those whose rate falls."""
        # A subflow and its siblings are adjacent in the list, so that they are sampled at the same time.
        subflows = (each for four_tuple, ramp in self._ramps.items() for each in (four_tuple, *ramp.siblings))
        return list(dict.fromkeys(subflows))

    def observe(self, queried: Collection[FourTuple], sockets: Sockets, now: float) -> None:
        """Process samples of the *queried* subflows; those missing from *sockets* have no socket."""
        for four_tuple in queried:
            sample, ramp = sockets.get(four_tuple), self._ramps.get(four_tuple)
            if ramp is None:
                continue
            if sample is None:
                if not ramp.is_falling:
                    ramp.begin_fall(0, now)
            elif ramp.is_falling:
                _measure_lag(ramp, sample, sockets)
            elif ramp.received is None:
                if sample.read >= ramp.began:  # otherwise the sample is older than the cap; another follows soon
                    ramp.began, ramp.received = sample.read, sample.bytes_received
            elif (elapsed := sample.read - ramp.began) >= MEASURE_SECONDS:
                rate = compute_rate(ramp.received, sample.bytes_received, elapsed)
                siblings = [each for each in self._subflows(sample.token) if each != four_tuple]
                ramp.begin_fall(round(rate), now, siblings)

    def step(self, now: float) -> Iterator[bool]:
        """Process changed subflows and advance all ramps, a slice at a time; yield whether the plan changed."""
        for four_tuple in self._planner.take_changed_subflows():
            if self._planner.in_onset(four_tuple):
                self._ramps.setdefault(four_tuple, _Ramp(now))
        ramps = iter(list(self._ramps.items()))
        while chunk := list(islice(ramps, SLICE)):
            rates: dict[FourTuple, int | None] = {}
            for four_tuple, ramp in chunk:
                if not ramp.is_falling and now - ramp.began > MAX_UNSAMPLED_SECONDS:
                    ramp.begin_fall(0, now)
                if ramp.is_falling or self._planner.soft_cap(four_tuple) is None:
                    rates[four_tuple] = self._interim_rate(four_tuple, ramp, now)
            plan_changed = self._planner.set_interim(rates)
            for four_tuple, rate in rates.items():
                plan_changed |= self._planner.complete(four_tuple)
                if rate is None:
                    self._ramps.pop(four_tuple, None)
            yield plan_changed

    def _interim_rate(self, four_tuple: FourTuple, ramp: _Ramp, now: float) -> int | None:
        """Return the interim rate of a subflow, bits/s; None if it has reached its cap, or left it."""
        cap = self._planner.soft_cap(four_tuple)
        if cap is None or cap.ceil >= ramp.start * NO_TRANSITION_SHARE or now - ramp.began >= MAX_RAMP_SECONDS:
            return None
        elapsed = min(MAX_STEP_SECONDS, now - ramp.last_step)
        min_fall_share = ((now - ramp.began) / MAX_RAMP_SECONDS) ** 2
        ramp.rate *= math.exp(-elapsed * allowed_fall(ramp.rate, ramp.lag, ramp.siblings_rate, min_fall_share))
        ramp.last_step = now
        # The sum of all interim rates falls to the cap, so each falls to its part.
        return round(ramp.rate) if ramp.rate > cap.ceil / max(1, len(cap.interim_rates)) else None


def allowed_fall(rate: float, lag: float, siblings_rate: float, min_fall_share: float = 0.0) -> float:
    """Return by how much the logarithm of *rate* may fall per second, at a *lag* in seconds. Rates are in bits/s.
    *min_fall_share*: the fall is at least this share of the fall without a lag."""
    assignment = 8 * ASSIGNMENT_BYTES / rate
    limit = min(LAG_SECONDS, 8 * LAG_BYTES / siblings_rate) if siblings_rate else LAG_SECONDS
    fall_share = (limit + assignment - lag) / (limit * (1 - STEADY_LAG))
    return min(MAX_FALL, MAX_FALL_PER_ASSIGNMENT / assignment) * min(1.0, max(min_fall_share, fall_share))


def _measure_lag(ramp: _Ramp, sample: KernelSubflow, sockets: Sockets) -> None:
    """Measure how far the data of a subflow are behind those of its siblings."""
    siblings = [sockets[each] for each in ramp.siblings if each in sockets]
    if not siblings:
        return
    times = [each.read for each in (sample, *siblings)]
    read = max(times)
    elapsed = read - ramp.last_sample
    if read - min(times) > MEASURE_SECONDS / 2 or (ramp.sibling_bytes and elapsed < MEASURE_SECONDS / 2):
        return  # the reads are too far apart (as in a sweep), or so close to the last sample that bursts would count
    before = ramp.sibling_bytes
    octets = sum(max(0, each.bytes_received - before.get(each.four_tuple, each.bytes_received)) for each in siblings)
    if before and elapsed > 0:
        ramp.siblings_rate = max(ramp.siblings_rate, compute_rate(0, octets, elapsed))
    ramp.sibling_bytes, ramp.last_sample = {each.four_tuple: each.bytes_received for each in siblings}, read
    if not ramp.siblings_rate:
        return
    # Use the siblings' highest rate, because the lag does not shrink while they send nothing.
    lead = max(bytes_ahead(each.data_sequence, sample.data_sequence) for each in siblings)
    lag = 8 * max(0, lead) / ramp.siblings_rate
    if ramp.base_lag is None:
        ramp.base_lag = min(lag, MAX_BASE_LAG_SECONDS)
    ramp.lag = max(0.0, lag - ramp.base_lag)


def bytes_ahead(first: int, second: int) -> int:
    """Return by how many bytes the data sequence number *first* is ahead of *second*."""
    return (first - second + _SEQUENCES // 2) % _SEQUENCES - _SEQUENCES // 2
