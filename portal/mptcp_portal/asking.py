"""Questions to the throttler, so few that it does not notice: one at a time, a pause between two, and a short queue.

Each costs the daemon a fork. Clients ask every few seconds for as long as the page is open, and there may be many.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mptcp_common.status_client import ask_async
from mptcp_portal.check_report import Throttler

PAUSE_SECONDS = 0.5
"""Between two questions."""
WAITING = 6
"""How many may wait for their turn: three seconds."""
KEPT_SECONDS = 1.0
"""How long an answer holds for who asks the same again."""
_PATIENCE = 3.0
_MOST_KEPT = 256

Answer = tuple[Throttler, dict[str, Any]]


class Asker:
    """Asks the throttler that listens at *path*."""

    def __init__(self, path: Path, pause: float = PAUSE_SECONDS) -> None:
        self._path = path
        self._pause = pause
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._last = -pause
        self._kept: dict[str, tuple[float, Answer]] = {}

    async def ask(self, request: Mapping[str, object]) -> Answer:
        """Return what became of *request*, and the answer where there is one."""
        key = repr(sorted(request.items()))
        if (kept := self._kept.get(key)) and time.monotonic() - kept[0] < KEPT_SECONDS:
            return kept[1]
        if self._waiting >= WAITING:
            return Throttler.BUSY, {}
        self._waiting += 1
        try:
            async with self._turn:
                await asyncio.sleep(self._last + self._pause - time.monotonic())
                answer = await self._now(request)
                self._last = time.monotonic()
        finally:
            self._waiting -= 1
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        self._kept[key] = self._last, answer
        return answer

    async def _now(self, request: Mapping[str, object]) -> Answer:
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await ask_async(self._path, request, _PATIENCE)
        except OSError:
            return Throttler.ABSENT, {}
        # A daemon that is too old for requests answers with everything it knows: nothing of that is for a client.
        if "error" in answer or "schema" not in answer:
            return Throttler.ABSENT, {}
        return Throttler.ANSWERED, answer

    async def client(self, endpoint: str, token: int | None) -> Answer:
        """Return what the owner of *endpoint* may see.

        *token*: of the same connection, by the kernel. Where the subflow from *endpoint* has ended while the
        connection goes on over others, the throttler knows the connection by them alone.
        """
        status, answer = await self.ask({"query": "client", "endpoint": endpoint})
        if token is None or status is not Throttler.ANSWERED or answer.get("multipath"):
            return status, answer
        status, found = await self.ask({"query": "connections", "token": f"{token:08x}", "limit": 1})
        for other in _remotes(found):
            if other != endpoint:
                return await self.ask({"query": "client", "endpoint": other})
        return Throttler.ANSWERED, answer

    async def budgets_of(self, address: str) -> Answer:
        """Return the volumes that the client at *address* uses up; it need not have a connection."""
        return await self.ask({"query": "budgets", "client": address})


def _remotes(found: Mapping[str, Any]) -> list[str]:
    return [str(each["remote"]) for one in found.get("connections", ()) for each in one.get("subflows", ())]
