# SPDX-License-Identifier: GPL-2.0-or-later
"""A :class:`Watch` with a fake throttler and its own clock."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fake_throttler import World

from mptcp_console.event_log import EventFilter
from mptcp_console.watch import Watch

SOCKET = Path("/run/mptcp-throttler/status.sock")
START = 1_795_000_000.0


class Site:
    """A :class:`Watch` of a simulated throttler, with its own clock."""

    def __init__(self) -> None:
        self.now = START
        self.world = World(clock=lambda: self.now)
        self.error: OSError | None = None
        self.answer: dict[str, Any] | None = None
        self.started: float | None = None
        """Start time of the throttler; None for the time of :class:`World`."""
        self.status_lines: list[str] = []
        self.pauses: list[float] = []
        self.answer_seconds = 0.0
        """Seconds that each answer takes."""
        self.watch = Watch(
            self.query,
            SOCKET,
            self.status_lines.append,
            sleep=self.sleep,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    async def query(self, request: Mapping[str, object]) -> dict[str, Any]:
        self.now += self.answer_seconds
        if self.error is not None:
            raise self.error
        if self.answer is not None:
            return self.answer
        answer = self.world.answer(dict(request))
        return answer if self.started is None else answer | {"started": self.started}

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(0)

    async def poll(self, seconds: float = 1.0) -> None:
        self.now += seconds
        await self.watch.poll()

    def texts(self) -> list[str]:
        return [json.loads(each.text)["text"] for each in self.watch.event_log.newest(EventFilter(), 10_000)[0]]

    def count_of_texts(self) -> Counter[str]:
        return Counter(self.texts())


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def queries(site: Site) -> list[str]:
    return [each["query"] for each in site.world.queries]
