# SPDX-License-Identifier: GPL-2.0-or-later
"""Passes browsers' queries, except those for the shared summary, to the throttler, one at a time.

Even with many browsers, the throttler gets at most one query a second on average, after a short burst, and is busy with
answers for at most a quarter of the time: an answer about ten thousand connections takes a third of a second of
processor time. If there is no answer, the waiting time counts as the answer's duration. After one slow answer, the
interval is at most ``MAX_FIRST_INTERVAL``; after further slow answers it is not limited. A repeated query gets a recent
or pending answer, unless :meth:`QueryQueue.invalidate` was called since that answer began.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

Query = Callable[[Mapping[str, object]], Awaitable[dict[str, Any]]]
"""Queries the throttler; raises OSError."""

BURST: Final = 4
INTERVAL: Final = 1.0
"""Average seconds per query."""
PAUSE_FACTOR: Final = 3.0
"""After the burst, the pause is this many times the duration of the last answer."""
MAX_FIRST_INTERVAL: Final = 8.0
"""Maximum interval in seconds after the first slow answer."""
TOLERANCE_FACTOR: Final = 2.0
"""After a slow answer, ``MAX_FIRST_INTERVAL`` does not apply for this many times the answer's interval."""
REUSE_SECONDS: Final = 1.0
"""Seconds for which an answer is reused for the same query."""
MAX_WAITING: Final = 32
MAX_ANSWERS: Final = 16


class Busy(Exception):
    """Too many requests are waiting already."""


class _TimedAnswer(NamedTuple):
    start: float
    end: float
    answer: dict[str, Any]


class QueryQueue:
    """Queries the throttler on behalf of all browsers."""

    def __init__(
        self,
        query: Query,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._query = query
        self._clock = clock
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._allowed_queries: float = BURST
        """Number of queries that may be sent without a pause (token bucket)."""
        self._interval = INTERVAL
        self._filled_at = clock()
        """The time to which ``_allowed_queries`` applies; during a pause, the end of the pause."""
        self._tolerates_from = self._filled_at
        """When the next slow answer is a first one again, to which ``MAX_FIRST_INTERVAL`` applies."""
        self._changed_at = -math.inf
        """When the throttler's state last changed."""
        self._answers: dict[str, _TimedAnswer] = {}

    def invalidate(self) -> None:
        """Record that the state has changed, so that later queries need a new answer."""
        self._changed_at = self._clock()

    async def query(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Return the throttler's answer. Raises OSError like its client, and Busy if too many wait."""
        key, request_time = json.dumps(request, sort_keys=True), self._clock()
        if (answer := self._reusable(key, request_time)) is not None:
            return answer
        if self._waiting >= MAX_WAITING:
            raise Busy
        self._waiting += 1
        try:
            async with self._lock:
                # Another request may have got this answer while this one waited.
                if (answer := self._reusable(key, request_time)) is not None:
                    return answer
                await self._wait_until_allowed()
                return await self._answer(key, request)
        finally:
            self._waiting -= 1

    def _reusable(self, key: str, request_time: float) -> dict[str, Any] | None:
        found = self._answers.get(key)
        # An answer that began after the request is valid for it, even if the state changed in between. Otherwise,
        # concurrent requests would need one answer each if the state changes during each answer.
        if found is None or (found.start <= self._changed_at and found.start < request_time):
            return None
        return found.answer if self._clock() - found.end < REUSE_SECONDS else None

    async def _wait_until_allowed(self) -> None:
        now = self._clock()
        self._allowed_queries = min(BURST, self._allowed_queries + (now - self._filled_at) / self._interval)
        self._filled_at = now
        self._allowed_queries -= 1
        if self._allowed_queries < 0:
            pause = -self._allowed_queries * self._interval
            # The pause after a slow answer must not also allow further queries.
            self._allowed_queries, self._filled_at = 0, now + pause
            await self._sleep(pause)

    async def _answer(self, key: str, request: Mapping[str, object]) -> dict[str, Any]:
        start = self._clock()
        try:
            answer = await self._query(request)
        finally:
            now = self._clock()
            self._interval = self._interval_after(now - start, now)
        self._answers = {each: timed for each, timed in self._answers.items() if now - timed.end < REUSE_SECONDS}
        while len(self._answers) >= MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = _TimedAnswer(start, now, answer)
        return answer

    def _interval_after(self, duration: float, now: float) -> float:
        """Return the seconds between two queries after an answer that took *duration* seconds."""
        interval = max(INTERVAL, (1 + PAUSE_FACTOR) * duration)
        if interval <= MAX_FIRST_INTERVAL:
            return interval
        is_tolerated = now >= self._tolerates_from
        self._tolerates_from = max(self._tolerates_from, now + TOLERANCE_FACTOR * interval)
        return MAX_FIRST_INTERVAL if is_tolerated else interval
