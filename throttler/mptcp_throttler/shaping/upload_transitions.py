"""Caps on uploads begin in a ramp: the class falls from the rate that comes in to the cap in a few seconds. Pure.

The scheduler that hands data to the subflows is the client's. What it has handed over leaves at the rate of the class
alone, and only by that does it learn of the cap: so the class has to fall slower than what waits at the client drains
and its estimate of the rate follows (docs/soft-start.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.shaping.rate_transition import GENTLE_FALL

MEASURE_SECONDS = 0.1
"""Over which the rate is taken from which a ramp begins."""
STEP_SECONDS = 0.05
RAMP_SECONDS = 4.0
MAX_MOVED = 1024
"""Moves of the planner followed at a time."""
SLICE = 128
"""Subflows looked through at a time."""
MAX_UNSAMPLED_SECONDS = 3.0
"""A subflow whose rate could not be measured for so long is capped at once."""


@dataclass(slots=True)
class _Ramp:
    began: float
    start: int
    """Bits/s."""


@dataclass(slots=True)
class _Measurement:
    began: float
    """When the subflow came to the cap; then, when it was first sampled."""
    received: int | None = None
    """Bytes at its first sample."""


class UploadTransitions:
    """The ramps of one planner. Times are monotonic seconds."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._measured: dict[FourTuple, _Measurement] = {}
        self._ramps: dict[FourTuple, _Ramp] = {}
        planner.soft_caps = True

    @property
    def busy(self) -> bool:
        """A step is due soon."""
        return bool(self._measured or self._ramps or self._planner.has_moved)

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows whose rate is being measured."""
        return list(self._measured)

    def observe(self, asked: Collection[FourTuple], sockets: Mapping[FourTuple, KernelSubflow], now: float) -> None:
        """Take the samples of those *asked* for, of which those without a socket are missing from *sockets*."""
        for four_tuple in asked:
            measurement = self._measured.get(four_tuple)
            if measurement is None:
                continue
            sample = sockets.get(four_tuple)
            if sample is None:
                self._begin(four_tuple, 0, now)
            elif measurement.received is None:
                measurement.began, measurement.received = now, sample.bytes_received
            elif now - measurement.began >= MEASURE_SECONDS:
                octets = max(0, sample.bytes_received - measurement.received)
                self._begin(four_tuple, round(8 * octets / (now - measurement.began)), now)

    def step(self, now: float) -> Iterator[bool]:
        """Take the planner's moves and go on with all ramps, a slice at a time; yield whether the plan changed."""
        for four_tuple in self._planner.take_moved(MAX_MOVED):
            if self._planner.is_pending(four_tuple):
                self._measured.setdefault(four_tuple, _Measurement(now))
            elif self._planner.soft_cap(four_tuple) is None:
                self._measured.pop(four_tuple, None)
        for four_tuple, measurement in list(self._measured.items()):
            if now - measurement.began > MAX_UNSAMPLED_SECONDS:
                self._begin(four_tuple, 0, now)
        ramps = iter(list(self._ramps.items()))
        while part := list(islice(ramps, SLICE)):
            rates = {four_tuple: self._rate(four_tuple, ramp, now) for four_tuple, ramp in part}
            changed = self._planner.set_interim(rates)
            for four_tuple, rate in rates.items():
                changed |= self._planner.complete(four_tuple)
                if rate is None:
                    self._ramps.pop(four_tuple, None)
            yield changed

    def _begin(self, four_tuple: FourTuple, start: int, now: float) -> None:
        del self._measured[four_tuple]
        self._ramps[four_tuple] = _Ramp(now, start)

    def _rate(self, four_tuple: FourTuple, ramp: _Ramp, now: float) -> int | None:
        """Return how many bits/s a subflow still has; None where it is down at its cap, or left it."""
        cap, done = self._planner.soft_cap(four_tuple), (now - ramp.began) / RAMP_SECONDS
        if cap is None or cap.ceil >= ramp.start * GENTLE_FALL or done >= 1:
            return None
        left: float = (cap.ceil / ramp.start) ** done
        return round(ramp.start * left)
