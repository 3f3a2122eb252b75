# SPDX-License-Identifier: GPL-2.0-or-later
"""What keeps the event loop answering: waits with a limit, a gauge of its delays, and no long garbage collection.

With ten thousand connections a full collection walks half a million objects, for 60 ms and more, and finds next to
nothing: reference counts free what is dropped here. So only young objects are collected, often, and survivors are set
aside (``gc.freeze``). Code that makes thousands of objects without cycles (samples, verdicts) says so, and they are set
aside without a walk: that of one sweep's objects would take 30 ms.

An error is part of a cycle if a local variable of a function in its traceback refers to it. The kernel may refuse a
change for days, and an error kept across a pause is set aside. So code that keeps an error, to raise it after trying
all else, keeps it in a list and pops it as it raises it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from mptcp_throttler.views.answers import LoopDelay

PERIOD_SECONDS = 0.02
"""Of the measured timer: a delay may be seen shorter by as much. The timer of ``scheduling.rest_when_busy`` starts with
it, so that one wake of the loop serves both."""
LATE_SECONDS, RECENT_SECONDS = 0.05, 10.0
"""A delay from which on it counts as late; how long the longest recent one is kept."""
POLL_SECONDS = 0.05
COLLECT_SECONDS = 2.0
MAX_YOUNG = 5_000
"""Objects made and not freed since the last collection that trigger another one: a millisecond or two."""
SWITCH_SECONDS = 0.001
"""How long a worker thread may keep the event loop from running Python code."""
LARGE_BYTES = 256 * 1024
"""Objects from this size on are kept apart: twice the C library's initial limit. For each transaction libnftables makes
ten tables of 132 KiB, and took twice as long when these were kept apart."""
_M_MMAP_THRESHOLD = -3
_TURNS = 3
_making_cycles = set[object]()
"""One mark per running :func:`cycles`."""


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
        self._recent: deque[tuple[float, float]] = deque()
        """Time and size of the delays within the window."""

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
        self._recent.append((now, delay))
        while self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()

    def as_json(self) -> LoopDelay:
        """Return for the status: ``longest`` since the start, ``recent`` within 10 s, ``late`` above 50 ms."""
        recent = max((delay for _, delay in self._recent), default=0.0)
        return {"longest": round(self.longest, 4), "recent": round(recent, 4), "late": self.late}


def set_aside() -> None:
    """Set aside what the start made, before the event loop has anything to answer."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.disable()


@asynccontextmanager
async def cycles() -> AsyncIterator[None]:
    """Set nothing aside meanwhile: this work leaves cycles behind, for the next collection to find."""
    mark = object()
    _making_cycles.add(mark)
    try:
        yield
        # The event loop releases what was closed only in its next turns.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    finally:
        _making_cycles.discard(mark)


def begin_acyclic() -> None:
    """Collect young objects; call before making many objects without cycles and without yielding."""
    if not gc.isenabled() and not _making_cycles:
        gc.collect(0)


def end_of_acyclic() -> None:
    """Set aside what was made since :func:`begin_acyclic`: a few microseconds, however much it is."""
    if not gc.isenabled() and not _making_cycles:
        gc.freeze()


async def collect_garbage() -> None:
    """Collect young objects and set those that survive aside, forever."""
    try:
        collected = time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if not _making_cycles and (gc.get_count()[0] > MAX_YOUNG or now - collected > COLLECT_SECONDS):
                gc.collect(0)
                gc.freeze()
                collected = now
    finally:
        gc.enable()


def keep_large_objects_apart() -> None:
    """Have the C library keep large objects apart from its heap, and so give them back once freed: mallopt(3). By
    default it stops doing so after an object of, say, two megabytes was freed: then all up to that size go to its heap,
    where tables that outgrow their place again and again leave holes. Memory that is apart is cleared page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
