"""Keeps the cyclic garbage collector from stopping the event loop, and has the C library give memory back.

With ten thousand connections a full collection walks through half a million objects, for 60 ms and more, to find next
to nothing: what is dropped here is freed by its reference count. So young objects alone are collected, often, and
what survives is set aside (``gc.freeze``). What makes objects by the thousand and no cycle among them, samples and
verdicts, says so, and they are set aside unseen: to walk through those of one sweep would take 30 ms.

An error refers to itself where a variable of a function has it that its traceback goes through. What the kernel refuses
may be refused for days, and an error that is waited with is set aside meanwhile. So who keeps an error, to raise it
when all else was tried, keeps it in a list, and takes it out of that as it is raised.
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
"""Objects made and not freed since the last collection, after which there is another: a millisecond or two."""
SWITCH_SECONDS = 0.001
"""How long a worker thread may keep the event loop from running Python code."""
LARGE_BYTES = 256 * 1024
"""Objects from this size on are apart: twice the C library's own limit at the start. For each transaction libnftables
makes ten tables of 132 KiB, and took twice as long where these were apart."""
_M_MMAP_THRESHOLD = -3
_TURNS = 3
_making_cycles = set[object]()
"""Who is at work within :func:`cycles`."""


def set_aside() -> None:
    """Set aside what was made at the start: done before the event loop has anything to answer."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.disable()


@asynccontextmanager
async def cycles() -> AsyncIterator[None]:
    """Set nothing aside meanwhile: what is done here leaves cycles behind, which the next collection finds."""
    mark = object()
    _making_cycles.add(mark)
    try:
        yield
        # What was closed there, the event loop lets go of in its next turns.
        for _ in range(_TURNS):
            await asyncio.sleep(0)
    finally:
        _making_cycles.discard(mark)


def begin_acyclic() -> None:
    """Collect what is young, before many objects are made without giving way, none of which refers to itself."""
    if not gc.isenabled() and not _making_cycles:
        gc.collect(0)


def end_of_acyclic() -> None:
    """Set aside what was made since :func:`begin_acyclic`; a few microseconds, however much that is."""
    if not gc.isenabled() and not _making_cycles:
        gc.freeze()


async def run() -> None:
    """Collect young objects, forever."""
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
    """Have the C library keep large objects apart from its heap, and so give them back when they are freed: mallopt(3).

    It does so by itself until one of two megabytes was freed; then all up to that size go to its heap, where tables
    that outgrow their place again and again leave holes. Memory that is apart is cleared page by page.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
