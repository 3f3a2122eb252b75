# SPDX-License-Identifier: GPL-2.0-or-later
"""A watch over a fake throttler, on a clock of its own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fake_throttler import World

from mptcp_console.happenings import Wanted
from mptcp_console.watch import Watch

SOCKET = Path("/run/mptcp-throttler/status.sock")
START = 1_795_000_000.0


class Site:
    """A watch over a simulated world, on a clock of its own."""

    def __init__(self) -> None:
        self.now = START
        self.world = World(clock=lambda: self.now)
        self.fails: OSError | None = None
        self.says: dict[str, Any] | None = None
        self.began: float | None = None
        """Start time of the throttler; None for the world's own."""
        self.alive: list[str] = []
        self.rests: list[float] = []
        self.takes = 0.0
        """Seconds that each answer takes."""
        self.watch = Watch(
            self.ask, SOCKET, self.alive.append, sleep=self.sleep, clock=lambda: self.now, monotonic=lambda: self.now
        )

    async def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        self.now += self.takes
        if self.fails is not None:
            raise self.fails
        if self.says is not None:
            return self.says
        answer = self.world.answer(dict(request))
        return answer if self.began is None else answer | {"started": self.began}

    async def sleep(self, seconds: float) -> None:
        self.rests.append(seconds)
        await asyncio.sleep(0)

    async def look(self, seconds: float = 1.0) -> None:
        self.now += seconds
        await self.watch.look()

    def texts(self) -> list[str]:
        return [json.loads(each.text)["text"] for each in self.watch.happenings.newest(Wanted(), 10_000)[0]]

    def count_of_texts(self) -> Counter[str]:
        return Counter(self.texts())


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def queries(site: Site) -> list[str]:
    return [each["query"] for each in site.world.queries]
