"""Long work in the event loop, in turns with everybody else: a new subflow must not wait for ten thousand entries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

T = TypeVar("T")

TURN_SECONDS = 0.001


async def in_turns(items: Iterable[T], seconds: float = TURN_SECONDS) -> AsyncIterator[T]:
    """Yield *items*, giving way to the rest of the loop whenever *seconds* have been spent since the last time."""
    end = time.perf_counter() + seconds
    for item in items:
        yield item
        if time.perf_counter() > end:
            await asyncio.sleep(0)
            end = time.perf_counter() + seconds
