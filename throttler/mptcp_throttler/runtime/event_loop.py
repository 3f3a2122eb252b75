# SPDX-License-Identifier: GPL-2.0-or-later
"""Helpers that keep the event loop responsive: waits with a limit, a measurement of its delays, and short garbage
collections.

With ten thousand connections, a full garbage collection walks half a million objects, takes 60 ms or more, and frees
almost nothing, because reference counting frees nearly all objects here. So only young objects are collected, often,
and the survivors are frozen (``gc.freeze``). Code that creates thousands of acyclic objects (samples, verdicts) calls
:func:`begin_acyclic` and :func:`end_acyclic`; those objects are frozen without being scanned, because scanning the
objects of one sweep would take 30 ms.

An exception is part of a cycle if a local variable of a function in its traceback refers to it. Such a cycle that lives
across an await is frozen and leaks; with a change that the kernel refuses for days, that adds up. Code that saves an
exception to raise it later must therefore keep it in a list, and pop it when raising it.
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
"""Period of the measured timer. Measured delays can be too small by up to this. The timer of
``scheduling.rest_when_busy`` is started at the same moment, so that the loop wakes once for both."""
LATE_SECONDS = 0.05  # a longer delay counts as late
RECENT_SECONDS = 10.0
POLL_SECONDS = 0.05
COLLECT_SECONDS = 2.0
MAX_YOUNG = 5_000  # number of new objects that triggers a collection, which takes one or two milliseconds
SWITCH_SECONDS = 0.001  # how long a worker thread may hold the interpreter while the event loop waits to run
LARGE_BYTES = 256 * 1024
"""The C library maps objects of at least this size separately (``mmap``). This is twice its initial threshold:
libnftables allocates ten tables of 132 KiB per transaction, and took twice as long when they were mapped separately."""
_M_MMAP_THRESHOLD = -3
_CLOSE_ITERATIONS = 3
_cycle_contexts = set[object]()  # one mark per active :func:`skip_collection` context


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until *event* is set, for at most *seconds*. ``asyncio.wait_for`` of Python 3.11 can lose a
    cancellation that arrives at the same time as the event, so that a task that waits in a loop would never end."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class LoopDelayMeter:
    """Measures the delays of a timer, in seconds, for the status."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.late = 0
        self._recent: deque[tuple[float, float]] = deque()  # end and length of each delay in ``RECENT_SECONDS``

    async def run(self) -> None:
        while True:
            expected = time.monotonic() + PERIOD_SECONDS
            await asyncio.sleep(PERIOD_SECONDS)
            now = time.monotonic()
            self.record(now, max(0.0, now - expected))

    def record(self, now: float, delay: float) -> None:
        self.longest = max(self.longest, delay)
        self.late += delay > LATE_SECONDS
        self._recent.append((now, delay))
        while self._recent[0][0] < now - RECENT_SECONDS:
            self._recent.popleft()

    def as_json(self) -> LoopDelay:
        recent = max((delay for _, delay in self._recent), default=0.0)
        return {"longest": round(self.longest, 4), "recent": round(recent, 4), "late": self.late}


def freeze_startup_objects() -> None:
    """Freeze the objects created so far. Call this before the event loop has requests to answer."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.disable()


@asynccontextmanager
async def skip_collection() -> AsyncIterator[None]:
    """Suspend collecting and freezing while the context is active, because its work creates cycles that the next
    collection must free."""
    mark = object()
    _cycle_contexts.add(mark)
    try:
        yield
        # The event loop releases closed transports only in its next iterations.
        for _ in range(_CLOSE_ITERATIONS):
            await asyncio.sleep(0)
    finally:
        _cycle_contexts.discard(mark)


def begin_acyclic() -> None:
    """Collect young objects. Call this before code that creates many acyclic objects and does not yield."""
    if not gc.isenabled() and not _cycle_contexts:
        gc.collect(0)


def end_acyclic() -> None:
    """Freeze all objects created since :func:`begin_acyclic`, in a few microseconds for any number of them."""
    if not gc.isenabled() and not _cycle_contexts:
        gc.freeze()


async def collect_garbage() -> None:
    """Forever, collect young objects and freeze the survivors."""
    try:
        collected = time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if not _cycle_contexts and (gc.get_count()[0] > MAX_YOUNG or now - collected > COLLECT_SECONDS):
                gc.collect(0)
                gc.freeze()
                collected = now
    finally:
        gc.enable()


def map_large_objects_separately() -> None:
    """Make the C library map large objects separately from its heap, so that it returns them to the kernel when they
    are freed: mallopt(3). By default, the threshold grows to the size of the largest mapped object freed so far; once a
    2 MB object has been freed, all smaller ones come from the heap, and growing tables fragment it. A separate mapping
    costs time, because the kernel clears each of its pages."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
