"""How long the event loop answers nothing: the delay of a timer, exported with the status."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass

PERIOD_SECONDS = 0.02
"""By as much a delay may be seen shorter: a slower timer would miss those near ``LATE_SECONDS``. The timer of
``respite`` begins with it, so that one wake of the loop serves both: an idle daemon wakes 66 times a second, with a
single timer as well."""
LATE_SECONDS = 0.05
RECENT_SECONDS = 10.0


@dataclass(slots=True)
class LoopDelays:
    """Delays of the event loop, seconds."""

    longest: float = 0.0
    """Since the start."""
    late: int = 0
    """How many were above ``LATE_SECONDS``."""


class LoopGauge:
    """Measures while it runs."""

    def __init__(self) -> None:
        self.delays = LoopDelays()
        self._recent: deque[tuple[float, float]] = deque()
        """Time and size of delays, the sizes falling: the first is the longest within the window."""

    async def run(self) -> None:
        """Measure, forever."""
        while True:
            due = time.monotonic() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            now = time.monotonic()
            self.note(now, max(0.0, now - due))

    def note(self, now: float, delay: float) -> None:
        """Count one *delay* that ended at *now*."""
        self.delays.longest = max(self.delays.longest, delay)
        self.delays.late += delay > LATE_SECONDS
        while self._recent and self._recent[-1][1] <= delay:
            self._recent.pop()
        self._recent.append((now, delay))
        while self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()

    def as_json(self) -> dict[str, float | int]:
        """Return for the status: ``longest`` since the start, ``recent`` within 10 s, ``late`` above 50 ms."""
        recent = self._recent[0][1] if self._recent else 0.0
        return {"longest": round(self.delays.longest, 4), "recent": round(recent, 4), "late": self.delays.late}
