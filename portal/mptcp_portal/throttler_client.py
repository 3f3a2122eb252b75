# SPDX-License-Identifier: GPL-2.0-or-later
"""Sends requests to the throttler one at a time, with pauses and short queues, so that they cause little load.

For each request, the daemon forks. Open check pages send a request every few seconds. Operating systems request their
volume once, when they join a network, and all at the same time when an access point restarts. So each kind has its own
queue. Each client (:mod:`mptcp_common.clients`) has one place in the queue of check pages, and may take half of the
queue of operating systems, because an IPv6 /64 is a whole LAN of phones, or one host with many addresses. So a client
with many connections and addresses cannot exclude others.
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
from mptcp_portal.check_report import ThrottlerOutcome

PAUSE_SECONDS = 0.5
"""Pause between two requests of one queue."""
MAX_PAGES = 6
"""Maximum number of waiting check pages; they wait up to three seconds."""
MAX_ADDRESSES = 20
"""Maximum number of addresses whose operating system waits: up to ten seconds, after which Android gives up."""
MAX_ADDRESSES_PER_NETWORK = MAX_ADDRESSES // 2
"""Maximum number of waiting addresses of one network. This suffices for the phones of one LAN, but a host with
2**64 addresses leaves half of the places to others."""
MAX_WAIT_SECONDS = MAX_ADDRESSES * PAUSE_SECONDS
"""Maximum time in a queue. Together with the request itself, it must stay below bounded.REQUEST_SECONDS."""
CACHE_SECONDS = 1.0
"""How long an answer is cached for the same request."""
START_SECONDS = 3.0
"""How long after its start the portal waits for a missing throttler, which may be starting, too."""
_RETRY_SECONDS = 0.25
_TIMEOUT = 3.0
_MAX_CACHED = 256

Answer = tuple[ThrottlerOutcome, dict[str, Any]]


class _Queue:
    """Sends one request at a time, and limits how many requests wait."""

    def __init__(self, max_waiting: int, max_per_client: int, pause: float) -> None:
        self._max_waiting = max_waiting
        self._max_per_client = max_per_client
        self._pause = pause
        self._waiting: Counter[bytes] = Counter()
        self._lock = asyncio.Lock()
        self._last_end = -pause

    async def wait(self, address: str, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the result of *work*; BUSY if the client or the queue has no free place, or after the maximum wait."""
        client = client_of(ip_address(address.strip("[]")).packed)
        if self._waiting[client] >= self._max_per_client or self._waiting.total() >= self._max_waiting:
            return ThrottlerOutcome.BUSY, {}
        self._waiting[client] += 1
        try:
            try:
                async with asyncio.timeout(MAX_WAIT_SECONDS):
                    await self._lock.acquire()
            except TimeoutError:
                return ThrottlerOutcome.BUSY, {}
            try:
                await sleep(self._last_end + self._pause - time.monotonic())
                return await work()
            finally:
                self._last_end = time.monotonic()
                self._lock.release()
        finally:
            # Subtracting with Counter also drops clients without places.
            self._waiting -= Counter((client,))


class ThrottlerClient:
    """Sends requests to the throttler that listens at *path*."""

    def __init__(self, path: Path, pause: float = PAUSE_SECONDS, start: float = 0.0) -> None:
        """*start*: for this many seconds from now, wait for a missing throttler."""
        self._path = path
        self._wait_until = time.monotonic() + start
        self._pages_queue = _Queue(MAX_PAGES, 1, pause)
        self._volumes_queue = _Queue(MAX_ADDRESSES, MAX_ADDRESSES_PER_NETWORK, pause)
        self._cache: dict[str, tuple[float, Answer]] = {}
        self._running: dict[str, asyncio.Task[Answer]] = {}
        self._is_closed = False
        self._is_refused = False

    def close(self) -> None:
        """Answer BUSY to all requests from now on, including waiting ones, because the portal is about to end."""
        self._is_closed = True
        for task in list(self._running.values()):
            task.cancel()

    async def client(self, remote: str, local: str, token: int | None) -> Answer:
        """Return the outcome, and, if there is an answer, the data that the owner of one connection may see.

        *remote* and *local*: the connection's ends; clients of one NAT may share *remote*. *token*: the kernel's token,
        with which the throttler finds the connection even after the subflow with these ends has ended.
        """
        request = {"query": "client", "endpoint": remote, "local": local}
        if token is not None:
            request["token"] = f"{token:08x}"

        async def send() -> Answer:
            return await self._send_when_started(request)

        # The key contains the token, because another connection may have these ends within a second.
        return await self._share_request(
            f"client {remote} {local} {token}", self._pages_queue, remote.rpartition(":")[0], send
        )

    async def budgets_of(self, address: str) -> Answer:
        """Like :meth:`client`, for the budgets of *address*, even if it has no connections."""

        async def send() -> Answer:
            return await self._send_when_started({"query": "budgets", "client": address})

        return await self._share_request(f"budgets {address}", self._volumes_queue, address, send)

    async def _share_request(
        self, key: str, queue: _Queue, address: str, work: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        """Return the result of *work*, or of a recent or running request for the same *key*."""
        if self._is_closed:
            return ThrottlerOutcome.BUSY, {}
        if (cached := self._cache.get(key)) and time.monotonic() - cached[0] < CACHE_SECONDS:
            return cached[1]
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.ensure_future(queue.wait(address, work))
            task.add_done_callback(lambda _: self._running.pop(key, None))
        try:
            # A client that disconnects must not cancel the answer for others.
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            return ThrottlerOutcome.BUSY, {}
        if answer[0] is not ThrottlerOutcome.BUSY:
            if len(self._cache) >= _MAX_CACHED:
                self._cache.clear()
            self._cache[key] = time.monotonic(), answer
        return answer

    async def _send_when_started(self, request: Mapping[str, object]) -> Answer:
        answer = await self._send(request)
        while answer[0] is ThrottlerOutcome.ABSENT and time.monotonic() < self._wait_until and not self._is_refused:
            await sleep(_RETRY_SECONDS)
            answer = await self._send(request)
        return answer

    async def _send(self, request: Mapping[str, object]) -> Answer:
        try:
            async with asyncio.timeout(_TIMEOUT):
                answer = await ask_async(self._path, request, _TIMEOUT)
        except PermissionError as error:
            # Clients only see that the throttler does not run; the log has the real reason for the operator.
            if not self._is_refused:
                journal.say(
                    f"mptcp-portal: cannot query the throttler at {self._path}: {reason(error)}", journal.WARNING
                )
            self._is_refused = True
            return ThrottlerOutcome.ABSENT, {}
        except TimeoutError:
            return ThrottlerOutcome.SILENT, {}
        except OSError:
            return ThrottlerOutcome.ABSENT, {}
        self._is_refused = False
        # A daemon without this request sends its whole status, which no client may see.
        if "error" in answer or "schema" not in answer:
            return ThrottlerOutcome.ABSENT, {}
        return ThrottlerOutcome.ANSWERED, answer
