"""Helpers of the event loop: a wait with a limit, and a gauge of the loop's delays."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress

from mptcp_throttler.views.answers import LoopDelay

PERIOD_SECONDS = 0.02
"""Of the measured timer: a delay may be seen shorter by as much. The timer of ``scheduling.rest_when_busy`` starts with
it, so that one wake of the loop serves both."""
LATE_SECONDS = 0.05
RECENT_SECONDS = 10.0


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until *event* is set, *seconds* at most. ``asyncio.wait_for`` of Python 3.11 loses a cancellation that comes
    together with the event; a task that waits in a loop would then never end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class LoopGauge:
    """Measures the delays of a timer, in seconds, for the status."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.late = 0
        """Number of delays above :data:`LATE_SECONDS`."""
        self._recent: deque[tuple[float, float]] = deque()
        """Time and size of delays, in order of falling size: the first is the longest within the window."""

    async def run(self) -> None:
        while True:
            due = time.monotonic() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            now = time.monotonic()
            self.note(now, max(0.0, now - due))

    def note(self, now: float, delay: float) -> None:
        """Count one *delay* that ended at *now*."""
        self.longest = max(self.longest, delay)
        self.late += delay > LATE_SECONDS
        while self._recent and self._recent[-1][1] <= delay:
            self._recent.pop()
        self._recent.append((now, delay))
        while self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()

    def as_json(self) -> LoopDelay:
        """Return for the status: ``longest`` since the start, ``recent`` within 10 s, ``late`` above 50 ms."""
        recent = self._recent[0][1] if self._recent else 0.0
        return {"longest": round(self.longest, 4), "recent": round(recent, 4), "late": self.late}
