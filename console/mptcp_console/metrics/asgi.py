# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers Prometheus: an ASGI application that gathers figures, formats them with the official client, and caches them
for half a second.

Concurrent scrapes share one gathering, which asks throttler, Squid and kernel once each, in parallel. A source that
does not answer in time counts as down: no old figures are shown. A thread reads Squid's pages, because the library is
synchronous, so the console's event loop stays free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, make_asgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from mptcp_common import journal, library_counters
from mptcp_common.status_client import ask_async

from .cache_manager import ADDRESS, read_pages
from .families import families
from .kernel import parse_mptcp_ext
from .squid import SquidPages

KEPT_SECONDS = 0.5
"""Lifetime of a cached answer."""
THROTTLER_SECONDS = 1.5
"""Maximum time for the throttler to answer. So within 2 s, Prometheus learns that it does not answer."""
SQUID_SECONDS = 1.0
SCHEMA = 2
"""The supported version of the throttler's answers."""
# Not /proc/net, which a unit with ProcSubset=pid does not have.
NETSTAT = Path("/proc/self/net/netstat")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the figures."""

    throttler: Path
    """Its status socket."""
    squid: str = ADDRESS
    """``http://HOST:PORT`` of Squid's listener."""
    netstat: Path = NETSTAT
    counters: Mapping[str, Path] = field(default_factory=lambda: library_counters.FILES)
    """Files with the preload libraries' counters, by service name."""


class _Gathered(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Scraper:
    """Answers scrapes, with one gathering at a time."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._gathering: asyncio.Task[App] | None = None
        self._until = 0.0
        """When the last gathering expires."""
        self._last_problem: dict[str, str | None] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"metrics are served by HTTP, not by {scope['type']}")
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send)
            return
        gathering = self._gathering
        if gathering is None or (gathering.done() and self._clock() >= self._until):
            gathering = self._gathering = asyncio.create_task(self._gather())
        # A scrape that is aborted does not cancel the gathering for others.
        answer = await asyncio.shield(gathering)
        await answer(scope, receive, send)

    async def _gather(self) -> App:
        try:
            throttler, squid = await asyncio.gather(self._throttler(), self._squid())
            gathered = self._gathered(throttler, squid, self._mptcp_ext())
        finally:
            self._until = self._clock() + KEPT_SECONDS
        registry = CollectorRegistry()
        registry.register(gathered)
        app: App = make_asgi_app(registry)
        return app

    def _gathered(
        self, throttler: Mapping[str, Any] | None, squid: SquidPages | None, mptcp_ext: Mapping[str, int] | None
    ) -> _Gathered:
        library = library_counters.of_all(self._sources.counters)
        try:
            gathered = _Gathered(families(throttler, squid, mptcp_ext, library))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The answer may be from another version. Squid and the kernel are still shown.
            problem = f"its answer cannot be read: {type(error).__name__} {error}"
            self._say("throttler", f"{self._sources.throttler}: {problem}")
            return _Gathered(families(None, squid, mptcp_ext, library))
        if throttler is not None:
            self._say("throttler", None)
        return gathered

    async def _throttler(self) -> Mapping[str, Any] | None:
        try:
            async with asyncio.timeout(THROTTLER_SECONDS):
                answer = await ask_async(self._sources.throttler, {"query": "summary"})
        except OSError as error:
            self._say("throttler", f"{self._sources.throttler}: {str(error) or 'no answer in time'}")
            return None
        if answer.get("schema") != SCHEMA or "error" in answer:
            problem = answer.get("error", f"answers in schema {answer.get('schema')}, not {SCHEMA}")
            self._say("throttler", f"{self._sources.throttler}: {problem}")
            return None
        return answer

    async def _squid(self) -> SquidPages | None:
        address = self._sources.squid
        try:
            async with asyncio.timeout(SQUID_SECONDS):
                # Stop a little before the limit, so that pages read until then are still shown.
                pages = await asyncio.to_thread(read_pages, address, 0.9 * SQUID_SECONDS)
        except (OSError, HTTPException, ValueError) as error:
            self._say("Squid", f"{address}: {str(error) or 'no answer in time'}")
            return None
        self._say("Squid", None)
        return pages

    def _mptcp_ext(self) -> Mapping[str, int] | None:
        try:
            return parse_mptcp_ext(self._sources.netstat.read_text())
        except OSError as error:
            self._say("kernel", f"{self._sources.netstat}: {error.strerror}")
            return None

    def _say(self, who: str, problem: str | None) -> None:
        """Log when a problem of *who* begins and ends, not at each scrape, because scrapes come every few seconds."""
        if problem != self._last_problem.get(who):
            if problem is None:
                journal.say(f"mptcp-console: metrics: {who} answers again")
            else:
                journal.say(f"mptcp-console: metrics: {who} does not answer: {problem}", journal.WARNING)
        self._last_problem[who] = problem


async def _refuse(send: Send) -> None:
    headers = [(b"allow", b"GET, HEAD"), (b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": b"GET or HEAD only\n"})
