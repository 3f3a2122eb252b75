"""Keeps the cyclic garbage collector from stopping the event loop, and has the C library give memory back.

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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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


async def run() -> None:
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
