# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers Prometheus: an ASGI application that reads figures from the throttler, Squid and the kernel, formats them
with the official client, and caches them for half a second.

Concurrent scrapes share one query of all sources. A source that does not answer in time counts as down: its old figures
are not exported. A thread reads Squid's pages, because the HTTP library would block the console's event loop.
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

CACHE_SECONDS = 0.5
"""Lifetime of a cached answer."""
THROTTLER_SECONDS = 1.5
"""Maximum time for the throttler to answer, so that Prometheus gets the metrics within 2 s even without its answer."""
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
    """The throttler's status socket."""
    squid: str = ADDRESS
    """``http://HOST:PORT`` of Squid's listener."""
    netstat: Path = NETSTAT
    counters: Mapping[str, Path] = field(default_factory=lambda: library_counters.FILES)
    """Files with the preload libraries' counters, by service name."""


class _Figures(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = tuple(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


class Scraper:
    """Answers scrapes, with one query of the sources at a time."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._running_query: asyncio.Task[App] | None = None
        self._expires = 0.0
        """When the cached answer expires, monotonic seconds."""
        self._last_problem: dict[str, str | None] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"metrics are served by HTTP, not by {scope['type']}")
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send)
            return
        query = self._running_query
        if query is None or (query.done() and self._clock() >= self._expires):
            query = self._running_query = asyncio.create_task(self._query_sources())
        # A scrape that is aborted does not cancel the query for others.
        answer = await asyncio.shield(query)
        await answer(scope, receive, send)

    async def _query_sources(self) -> App:
        try:
            throttler, squid = await asyncio.gather(self._throttler(), self._squid())
            figures = self._figures(throttler, squid, self._mptcp_ext())
        finally:
            self._expires = self._clock() + CACHE_SECONDS
        registry = CollectorRegistry()
        registry.register(figures)
        app: App = make_asgi_app(registry)
        return app

    def _figures(
        self, throttler: Mapping[str, Any] | None, squid: SquidPages | None, mptcp_ext: Mapping[str, int] | None
    ) -> _Figures:
        library = library_counters.counts_of_all(self._sources.counters)
        try:
            figures = _Figures(families(throttler, squid, mptcp_ext, library))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The throttler may have another version. The figures of Squid and the kernel are still exported.
            problem = f"its answer cannot be read: {type(error).__name__} {error}"
            self._log_change("throttler", f"{self._sources.throttler}: {problem}")
            return _Figures(families(None, squid, mptcp_ext, library))
        if throttler is not None:
            self._log_change("throttler", None)
        return figures

    async def _throttler(self) -> Mapping[str, Any] | None:
        try:
            async with asyncio.timeout(THROTTLER_SECONDS):
                answer = await ask_async(self._sources.throttler, {"query": "summary"})
        except OSError as error:
            self._log_change("throttler", f"{self._sources.throttler}: {str(error) or 'no answer in time'}")
            return None
        if answer.get("schema") != SCHEMA or "error" in answer:
            problem = answer.get("error", f"answers in schema {answer.get('schema')}, not {SCHEMA}")
            self._log_change("throttler", f"{self._sources.throttler}: {problem}")
            return None
        return answer

    async def _squid(self) -> SquidPages | None:
        address = self._sources.squid
        try:
            async with asyncio.timeout(SQUID_SECONDS):
                # Stop a little before the limit, so that the pages read until then are still exported.
                pages = await asyncio.to_thread(read_pages, address, 0.9 * SQUID_SECONDS)
        except (OSError, HTTPException, ValueError) as error:
            self._log_change("Squid", f"{address}: {str(error) or 'no answer in time'}")
            return None
        self._log_change("Squid", None)
        return pages

    def _mptcp_ext(self) -> Mapping[str, int] | None:
        try:
            return parse_mptcp_ext(self._sources.netstat.read_text())
        except OSError as error:
            self._log_change("kernel", f"{self._sources.netstat}: {error.strerror}")
            return None

    def _log_change(self, source: str, problem: str | None) -> None:
        """Log when a problem of *source* begins and ends, but not at each scrape, which would be every few seconds."""
        if problem != self._last_problem.get(source):
            if problem is None:
                journal.say(f"mptcp-console: metrics: {source} answers again")
            else:
                journal.say(f"mptcp-console: metrics: {source} does not answer: {problem}", journal.WARNING)
        self._last_problem[source] = problem


async def _refuse(send: Send) -> None:
    headers = [(b"allow", b"GET, HEAD"), (b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": 405, "headers": headers})
    await send({"type": "http.response.body", "body": b"GET or HEAD only\n"})
