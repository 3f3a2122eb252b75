"""Keeps the cyclic garbage collector from stopping the event loop.

With ten thousand connections a full collection walks through half a million objects, for 60 ms and more, to find next
to nothing: what is dropped here is freed by its reference count. So young objects alone are collected, often, and
what survives is set aside (``gc.freeze``).
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable

POLL_SECONDS = 0.05
COLLECT_SECONDS = 2.0
MAX_YOUNG = 10_000
"""Objects made and not freed since the last collection, after which there is another: some two milliseconds."""
SWITCH_SECONDS = 0.001
"""How long a worker thread may keep the event loop from running Python code."""


def set_aside() -> None:
    """Set aside what was made at the start: done before the event loop has anything to answer."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.disable()


async def run(busy: Callable[[], object]) -> None:
    """Collect young objects, forever.

    What is alive while something is *busy* is not set aside: streams leave cycles behind.
    """
    try:
        collected = time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if gc.get_count()[0] > MAX_YOUNG or now - collected > COLLECT_SECONDS:
                gc.collect(0)
                if not busy():
                    gc.freeze()
                collected = now
    finally:
        gc.enable()
