"""Questions to the throttler, so few that it does not notice: one client at a time, a pause between two, short queues.

Each question costs the daemon a fork. Check pages ask every few seconds for as long as they are open, and there may be
many; operating systems ask for their volume once, when they join a network, and all at once where an access point comes
back. So each kind has a queue of its own, in which neither waits for the other. Each client
(:mod:`mptcp_common.clients`) has one place among the pages, and a share of those for systems: an IPv6 /64 is a whole
LAN of phones, or one host with many addresses. However many connections and addresses a client has, others have a turn.
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
"""Between two clients of one kind."""
MOST_PAGES = 6
"""Check pages that may wait for their turn: three seconds."""
MOST_SYSTEMS = 20
"""Operating systems that may: ten seconds, after which Android's gives up."""
MOST_SYSTEMS_OF_ONE = MOST_SYSTEMS // 2
"""Of one client: as many phones of one LAN, while a host with 2**64 addresses leaves the other half to others."""
LONGEST_SECONDS = MOST_SYSTEMS * PAUSE_SECONDS
"""For which anybody waits for their turn, however long the throttler takes for those before: together with their own
questions less than bounded.REQUEST_SECONDS, after which there is no answer at all."""
KEPT_SECONDS = 1.0
"""How long an answer holds for who asks the same again."""
START_SECONDS = 3.0
"""From the portal's start on, for which a throttler that is not there is waited for: both may have just begun."""
_AGAIN_SECONDS = 0.25
_PATIENCE = 3.0
_MOST_KEPT = 256

Answer = tuple[Throttler, dict[str, Any]]


class _Queue:
    """Who waits, and whose turn it is."""

    def __init__(self, most: int, most_of_one: int, pause: float) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._pause = pause
        self._waiting: Counter[bytes] = Counter()
        self._turn = asyncio.Lock()
        self._last = -pause

    async def wait(self, address: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return what *work* does, unless the client at *address* has its places already, or there is none, or its
        turn does not come."""
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
            # Who has no place any more is not remembered.
            self._waiting -= Counter((client,))


class Asker:
    """Asks the throttler that listens at *path*."""

    def __init__(self, path: Path, pause: float = PAUSE_SECONDS, start: float = 0.0) -> None:
        """*start*: seconds from now on for which one that is not there is waited for."""
        self._path = path
        self._started = time.monotonic() + start
        self._pages = _Queue(MOST_PAGES, 1, pause)
        self._systems = _Queue(MOST_SYSTEMS, MOST_SYSTEMS_OF_ONE, pause)
        self._kept: dict[str, tuple[float, Answer]] = {}
        self._under_way: dict[str, asyncio.Task[Answer]] = {}
        self._is_closed = False
        self._is_refused = False

    def close(self) -> None:
        """Ask nothing more: who waits, and who comes, is told at once that too many ask. The portal is about to end."""
        self._is_closed = True
        for task in list(self._under_way.values()):
            task.cancel()

    async def client(self, remote: str, local: str, token: int | None) -> Answer:
        """Return what became of the question, and what the owner of one connection may see, where there is an answer.

        *remote* and *local*: the ends of the connection, of which clients behind one NAT may have the former in common.
        *token*: of the connection, by the kernel. By that the throttler knows it, too, when the subflow with these ends
        has ended.
        """
        asked = {"query": "client", "endpoint": remote, "local": local}
        if token is not None:
            asked["token"] = f"{token:08x}"

        async def ask() -> Answer:
            return await self._now(asked)

        # The token as well: within a second another connection may have these ends.
        return await self._once(f"client {remote} {local} {token}", self._pages, remote.rpartition(":")[0], ask)

    async def budgets_of(self, address: str) -> Answer:
        """Return the same of the volumes that the client at *address* uses up; it need not have a connection.

        One address has one place: what it asks meanwhile is the same question.
        """

        async def ask() -> Answer:
            return await self._now({"query": "budgets", "client": address})

        return await self._once(f"budgets {address}", self._systems, address, ask)

    async def _once(self, key: str, queue: _Queue, address: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return what *work* answers, or has just answered or will answer to somebody else who asked for *key*."""
        if self._is_closed:
            return Throttler.BUSY, {}
        if (kept := self._kept.get(key)) and time.monotonic() - kept[0] < KEPT_SECONDS:
            return kept[1]
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.ensure_future(queue.wait(address, work))
            task.add_done_callback(lambda _: self._under_way.pop(key, None))
        try:
            # Who goes away takes nobody's answer with them.
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
            # To clients as if it did not run; an operator would look for that in vain.
            if not self._is_refused:
                journal.say(f"mptcp-portal: ask the throttler at {self._path}: {reason(error)}", journal.WARNING)
            self._is_refused = True
            return Throttler.ABSENT, {}
        except TimeoutError:
            return Throttler.SILENT, {}
        except OSError:
            return Throttler.ABSENT, {}
        self._is_refused = False
        # A daemon that is too old for requests answers with everything it knows: nothing of that is for a client.
        if "error" in answer or "schema" not in answer:
            return Throttler.ABSENT, {}
        return Throttler.ANSWERED, answer
