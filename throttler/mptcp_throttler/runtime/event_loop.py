# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers that keep the event loop responsive: waits with a limit, a gauge of its delays, and short garbage
collections.

With ten thousand connections, a full garbage collection walks half a million objects, takes 60 ms or more, and frees
almost nothing, because reference counting frees nearly all objects here. So only young objects are collected, often,
and the survivors are set aside (``gc.freeze``). Code that makes thousands of objects without cycles (samples, verdicts)
announces this, and these objects are set aside without a walk: for the objects of one sweep, a walk would take 30 ms.

An exception is part of a cycle if a local variable of a function in its traceback refers to it. The kernel may refuse a
change for days, and an exception that is kept across a pause is set aside and never freed. So code that keeps an
exception, to raise it after it has tried the other changes, keeps it in a list and pops it when it raises it.
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
"""Period of the measured timer. A delay may be measured shorter by up to this. The timer of
``scheduling.rest_when_busy`` has the same start, so that the loop wakes once for both."""
LATE_SECONDS, RECENT_SECONDS = 0.05, 10.0  # delay above which the timer counts as late; how long recent delays are kept
POLL_SECONDS = 0.05
COLLECT_SECONDS = 2.0
MAX_YOUNG = 5_000  # number of new objects that triggers a collection, which takes one or two milliseconds
SWITCH_SECONDS = 0.001  # how long a worker thread may hold the interpreter while the event loop waits to run
LARGE_BYTES = 256 * 1024
"""The C library maps objects of at least this size separately (``mmap``). This is twice its initial threshold:
libnftables allocates ten tables of 132 KiB per transaction, and took twice as long when they were mapped separately."""
_M_MMAP_THRESHOLD = -3
_TURNS = 3
_making_cycles = set[object]()  # one mark per active :func:`cycles` context


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until *event* is set, for at most *seconds*. ``asyncio.wait_for`` of Python 3.11 loses a cancellation that
    comes together with the event, so that a task that waits in a loop would never end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class LoopGauge:
    """Measures the delays of a timer, in seconds, for the status."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.late = 0
        self._recent: deque[tuple[float, float]] = deque()  # end and length of each delay in ``RECENT_SECONDS``

    async def run(self) -> None:
        while True:
            due = time.monotonic() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            now = time.monotonic()
            self.note(now, max(0.0, now - due))

    def note(self, now: float, delay: float) -> None:
        self.longest = max(self.longest, delay)
        self.late += delay > LATE_SECONDS
        self._recent.append((now, delay))
        while self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()

    def as_json(self) -> LoopDelay:
        """Return the figures for the status: ``longest`` delay since the start, longest delay of the last 10 s
        (``recent``), and number of delays above 50 ms (``late``)."""
        recent = max((delay for _, delay in self._recent), default=0.0)
        return {"longest": round(self.longest, 4), "recent": round(recent, 4), "late": self.late}


def set_aside() -> None:
    """Set aside the objects made during the start. Call this before the event loop has requests to answer."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.disable()


@asynccontextmanager
async def cycles() -> AsyncIterator[None]:
    """Suspend setting aside while the context is active: its work leaves cycles for the next collection."""
    mark = object()
    _making_cycles.add(mark)
    try:
        yield
        # The event loop releases closed transports only in its next iterations.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    finally:
        _making_cycles.discard(mark)


def begin_acyclic() -> None:
    """Collect young objects. Call this before code that makes many objects without cycles and does not yield."""
    if not gc.isenabled() and not _making_cycles:
        gc.collect(0)


def end_of_acyclic() -> None:
    """Set aside all objects made since :func:`begin_acyclic`. This takes a few microseconds for any number of them."""
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
    """Make the C library map large objects separately from its heap, so that it returns them to the kernel when they
    are freed: mallopt(3). By default, the threshold rises to the size of each mapped object that is freed: after one of
    two megabytes, all smaller objects go to the heap, where growing tables leave holes. A separate mapping costs time,
    because the kernel clears each of its pages."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
