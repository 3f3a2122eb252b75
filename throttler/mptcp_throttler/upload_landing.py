"""Caps on uploads fall in a ramp: the class goes from the rate that comes in down to the cap in a few seconds.

The scheduler that hands data to the subflows is the client's. What it has handed over leaves at the rate of the class
alone, and only by that does it learn of the cap: so the class has to fall slower than what waits at the client drains
and its estimate of the rate follows (docs/landing.md).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from .kernel.ports import KernelError
from .mptcp.model import FourTuple, KernelSubflow
from .shaping.landing import GENTLE
from .shaping.plan import Planner

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""Over which the rate is taken from which a ramp begins."""
STEP_SECONDS = 0.05
RAMP_SECONDS = 4.0


@dataclass(slots=True)
class _Ramp:
    began: float
    received: int
    """Bytes, when the subflow was first looked at."""
    start: int | None = None
    """Bits/s; None while the rate is not yet known."""


class UploadLander:
    """The ramps of one planner. *look* finds a subflow's socket; *changed* hears of changes of the plan."""

    def __init__(
        self, planner: Planner, look: Callable[[FourTuple], KernelSubflow | None], changed: Callable[[], None]
    ) -> None:
        self._planner = planner
        self._look = look
        self._changed = changed
        self._ramps: dict[FourTuple, _Ramp] = {}
        self._wake = asyncio.Event()
        planner.soft = True

    def wake(self) -> None:
        """Say that the plan may have changed."""
        if self._planner.moved:
            self._wake.set()

    async def run(self) -> None:
        """Follow the plan, forever."""
        while True:
            if not self._ramps:
                await self._wake.wait()
            self._wake.clear()
            self.step(time.monotonic())
            await asyncio.sleep(STEP_SECONDS)

    def step(self, now: float) -> None:
        """Begin ramps for what has come to a cap, and go on with those that are under way."""
        moved, self._planner.moved = self._planner.moved, set()
        try:
            for four_tuple in moved & self._planner.landing:
                socket = self._look(four_tuple)
                self._ramps[four_tuple] = _Ramp(now, 0 if socket is None else socket.bytes_received)
            for four_tuple, ramp in self._ramps.items():
                if ramp.start is None and now - ramp.began >= LOOK_SECONDS:
                    self._measure(four_tuple, ramp, now)
        except KernelError as error:
            log.error("%s; caps on uploads fall at once", error)
            self._ramps = {four_tuple: _Ramp(float("-inf"), 0, 0) for four_tuple in self._planner.landing}
        self._set_classes(now)

    def _measure(self, four_tuple: FourTuple, ramp: _Ramp, now: float) -> None:
        socket = self._look(four_tuple)
        octets = 0 if socket is None else max(0, socket.bytes_received - ramp.received)
        ramp.start, ramp.began = round(8 * octets / (now - ramp.began)), now

    def _set_classes(self, now: float) -> None:
        """Give each class what its subflows together have on their ways down, or its cap."""
        levels = {four_tuple: self._level(four_tuple, ramp, now) for four_tuple, ramp in self._ramps.items()}
        for four_tuple, ramp in list(self._ramps.items()):
            if ramp.start is None:
                continue
            others = (levels.get(each) for each in self._planner.sharers(four_tuple))
            self._planner.ramp(four_tuple, sum(level for level in others if level) or None)
            self._planner.landed(four_tuple)
            if levels[four_tuple] is None:
                del self._ramps[four_tuple]
            self._changed()

    def _level(self, four_tuple: FourTuple, ramp: _Ramp, now: float) -> int | None:
        """Return how many bits/s a subflow still has; None where it has landed, or left the cap."""
        ceil, done = self._planner.ceil_of(four_tuple), (now - ramp.began) / RAMP_SECONDS
        if ramp.start is None or ceil is None or ceil >= ramp.start * GENTLE or done >= 1:
            return None
        left: float = (ceil / ramp.start) ** done
        return round(ramp.start * left)
