"""When ``top`` asks the daemon: once a second at the most, and less often where answers take long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

ASK_SECONDS: Final = 1.0


class Pacing:
    """Asks again and again; at a pause only what is new."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[None]],
        is_paused: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ask = ask
        self._is_paused = is_paused
        self._clock = clock
        self._sleep = sleep
        self.wanted = asyncio.Event()
        """Somebody changed what is to be asked."""

    async def run(self) -> None:
        """Ask, for ever."""
        while True:
            began = self._clock()
            self.wanted.clear()
            await self._ask()
            took = self._clock() - began
            await self._sleep(max(ASK_SECONDS - took, took))
            if self._is_paused():
                await self.wanted.wait()
