# SPDX-License-Identifier: GPL-2.0-or-later
"""Questions to the throttler, rare enough not to load it: one client at a time, a pause between two, short queues.

Each question costs the daemon a fork. Check pages ask every few seconds while they are open. Operating systems ask for
their volume once, when they join a network, and all at once when an access point comes back. So each kind has its own
queue. Each client (:mod:`mptcp_common.clients`) has one place among the pages, and a share of the places for systems:
an IPv6 /64 is a whole LAN of phones, or one host with many addresses. So a client with many connections and addresses
cannot lock out others.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import sleep
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from mptcp_common import journal
from mptcp_common.clients import client_of
from mptcp_common.reasons import reason
from mptcp_common.status_client import ask_async
from mptcp_portal.check_report import Throttler

PAUSE_SECONDS = 0.5
"""Pause between the questions for two clients of one kind."""
MOST_PAGES = 6
"""Maximum number of waiting check pages; they wait up to three seconds."""
MOST_SYSTEMS = 20
"""Maximum number of waiting operating systems; they wait up to ten seconds, after which Android gives up."""
MOST_SYSTEMS_OF_ONE = MOST_SYSTEMS // 2
"""Maximum number of waiting operating systems per client. This suffices for the phones of one LAN, but a host with
2**64 addresses leaves half of the places to others."""
LONGEST_SECONDS = MOST_SYSTEMS * PAUSE_SECONDS
"""Maximum wait for a turn. Together with the question itself, it must stay below bounded.REQUEST_SECONDS."""
KEPT_SECONDS = 1.0
"""How long a kept answer serves the same question."""
START_SECONDS = 3.0
"""How long after its start the portal waits for an absent throttler: both may have just started."""
_AGAIN_SECONDS = 0.25
_PATIENCE = 3.0
_MOST_KEPT = 256

Answer = tuple[Throttler, dict[str, Any]]


class _Queue:
    """Serializes the questions, and limits how many wait."""

    def __init__(self, most: int, most_of_one: int, pause: float) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._pause = pause
        self._waiting: Counter[bytes] = Counter()
        self._turn = asyncio.Lock()
        self._last = -pause

    async def wait(self, address: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of *work*; BUSY if the client or the queue has no free place, or the turn does not come."""
        client = client_of(ip_address(address.strip("[]")).packed)
        if self._waiting[client] >= self._most_of_one or self._waiting.total() >= self._most:
            return Throttler.BUSY, {}
        self._waiting[client] += 1
        try:
            try:
                async with asyncio.timeout(LONGEST_SECONDS):
                    await self._turn.acquire()
            except TimeoutError:
                return Throttler.BUSY, {}
            try:
                await sleep(self._last + self._pause - time.monotonic())
                return await work()
            finally:
                self._last = time.monotonic()
                self._turn.release()
        finally:
            # Subtracting with Counter also drops clients without places.
            self._waiting -= Counter((client,))


class Asker:
    """Asks the throttler that listens at *path*."""

    def __init__(self, path: Path, pause: float = PAUSE_SECONDS, start: float = 0.0) -> None:
        """*start*: seconds from now for which to wait for an absent throttler."""
        self._path = path
        self._started = time.monotonic() + start
        self._pages = _Queue(MOST_PAGES, 1, pause)
        self._systems = _Queue(MOST_SYSTEMS, MOST_SYSTEMS_OF_ONE, pause)
        self._kept: dict[str, tuple[float, Answer]] = {}
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self._is_closed = False
        self._is_refused = False

    def close(self) -> None:
        """Answer BUSY to all requests from now on, also to waiting ones. The portal is about to end."""
        self._is_closed = True
        for task in list(self._under_way.values()):
            task.cancel()

    async def client(self, remote: str, local: str, token: int | None) -> Answer:
        """Return the outcome, and what the owner of one connection may see, if there is an answer.

        *remote* and *local*: the connection's ends; clients behind one NAT may share the former. *token*: the kernel's.
        The throttler finds the connection by it even after the subflow with these ends has ended.
        """
        request = {"query": "client", "endpoint": remote, "local": local}
        if token is not None:
            request["token"] = f"{token:08x}"

        async def ask() -> Answer:
            return await self._now(request)

        # With the token, because another connection may have these ends within a second.
        return await self._once(f"client {remote} {local} {token}", self._pages, remote.rpartition(":")[0], ask)

    async def budgets_of(self, address: str) -> Answer:
        """Like :meth:`client`, for budgets of *address*, connected or not. Concurrent requests share a question."""

        async def ask() -> Answer:
            return await self._now({"query": "budgets", "client": address})

        return await self._once(f"budgets {address}", self._systems, address, ask)

    async def _once(self, key: str, queue: _Queue, address: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of *work*, or of a recent or running request for the same *key*."""
        if self._is_closed:
            return Throttler.BUSY, {}
        if (kept := self._kept.get(key)) and time.monotonic() - kept[0] < KEPT_SECONDS:
            return kept[1]
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.ensure_future(queue.wait(address, work))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        try:
            # A client that disconnects must not cancel the answer for others.
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return Throttler.BUSY, {}
        if answer[0] is not Throttler.BUSY:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = time.monotonic(), answer
        return answer

    async def _now(self, request: Mapping[str, object]) -> Answer:
        answer = await self._ask(request)
        while answer[0] is Throttler.ABSENT and time.monotonic() < self._started and not self._is_refused:
            await sleep(_AGAIN_SECONDS)
            answer = await self._ask(request)
        return answer

    async def _ask(self, request: Mapping[str, object]) -> Answer:
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await ask_async(self._path, request, _PATIENCE)
        except PermissionError as error:
            # Clients only learn that it does not run; the log has the real reason for the operator.
            if not self._is_refused:
                journal.say(f"mptcp-portal: ask the throttler at {self._path}: {reason(error)}", journal.WARNING)
            self._is_refused = True
            return Throttler.ABSENT, {}
        except TimeoutError:
            return Throttler.SILENT, {}
        except OSError:
            return Throttler.ABSENT, {}
        self._is_refused = False
        # A daemon too old for requests answers with everything it knows, which no client may see.
        if "error" in answer or "schema" not in answer:
            return Throttler.ABSENT, {}
        return Throttler.ANSWERED, answer
