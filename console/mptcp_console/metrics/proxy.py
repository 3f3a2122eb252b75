# SPDX-License-Identifier: GPL-2.0-or-later
"""The proxy's state for the page: figures of Squid, and the kernel's figures about Multipath TCP.

All browsers share an answer, so Squid gets a query only every few seconds. A thread sends it, because the HTTP library
would block the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .asgi import SQUID_SECONDS, Sources
from .cache_manager import read_pages
from .kernel import parse_mptcp_ext
from .squid import SquidPages

CACHE_SECONDS = 4.0
_INFO_TITLES = {
    "clients": "Number of clients accessing cache",
    "descriptors": "Number of file desc currently in use",
    "descriptors_limit": "Maximum number of file descriptors",
}
_COUNTER_NAMES = {
    "requests": "client_http.requests",
    "errors": "client_http.errors",
    "tunnels": "server.other.requests",
    "server_errors": "server.all.errors",
}
_KERNEL_FIELDS = {"asked": "MPCapableSYNRX", "fallbacks": "MPCapableFallbackACK", "joins": "MPJoinAckRx"}


class ProxyHealth:
    """Answers all browsers from one shared query."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._clock = clock
        self._lock = asyncio.Lock()
        self._answer: dict[str, Any] = {}
        self._expires = float("-inf")

    async def answer(self, _: Request) -> Response:
        async with self._lock:
            if self._clock() >= self._expires:
                self._answer = {"squid": await self._squid(), "mptcp": self._mptcp()}
                self._expires = self._clock() + CACHE_SECONDS
        return JSONResponse({"time": time.time(), **self._answer})

    async def _squid(self) -> dict[str, Any]:
        address = self._sources.squid
        try:
            async with asyncio.timeout(SQUID_SECONDS):
                pages = await asyncio.to_thread(read_pages, address, 0.9 * SQUID_SECONDS)
            return {"address": address, "problem": None, **figures(pages)}
        except TimeoutError:
            problem = f"no answer within {SQUID_SECONDS:g} s"
        except (OSError, HTTPException, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return {"address": address, "problem": problem}

    def _mptcp(self) -> dict[str, int] | None:
        try:
            fields = parse_mptcp_ext(self._sources.netstat.read_text())
        except (OSError, ValueError):
            return None
        return (
            None
            if fields is None
            else {name: fields[field] for name, field in _KERNEL_FIELDS.items() if field in fields}
        )


def figures(pages: SquidPages) -> dict[str, Any]:
    """Return the page's figures from Squid's *pages*, without missing figures. Raises ValueError."""
    found: dict[str, Any] = {"version": pages.info.get("Squid Object Cache", "").removeprefix("Version ")}
    if started := pages.info.get("Start Time"):
        found["started"] = parsedate_to_datetime(started).timestamp()
    for name, title in _INFO_TITLES.items():
        words = pages.info.get(title, "").split()
        if words and words[0].isdigit():
            found[name] = int(words[0])
    for name, counter in _COUNTER_NAMES.items():
        found[name] = round(sum(_values(pages.counters, counter)))
    return found


def _values(counters: Mapping[int, Mapping[str, float]], name: str) -> list[float]:
    return [values[name] for values in counters.values() if name in values]
