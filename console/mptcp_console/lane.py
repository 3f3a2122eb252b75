"""What browsers want to know of the throttler, beside what all of them watch: one question at a time.

However many browsers ask, the throttler is asked once a second at most over any longer time, after a few at once, and
for no more than a quarter of the time: an answer about ten thousand connections takes a third of a second of processor
time. One that does not come took as long as it was waited for. One slow answer is forgiven, after which nobody waits
longer than ``LONGEST``; the next ones are not. Who asks what was just answered, or is being asked, gets that answer,
unless something has happened since it was asked.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

Ask = Callable[[Mapping[str, object]], Awaitable[dict[str, Any]]]
"""Asks the throttler; raises OSError."""

BURST: Final = 4
INTERVAL: Final = 1.0
"""Seconds, over any longer time, for each question."""
IDLE_SHARE: Final = 3.0
"""How many times as long as the last answer took nothing is asked, once the burst is spent."""
LONGEST: Final = 8.0
"""Seconds from one question to the next after a slow answer that is forgiven."""
FORGETTING: Final = 2.0
"""For how many times the interval that a slow answer asks for the next one is not forgiven."""
FRESH: Final = 1.0
"""Seconds for which an answer is good enough for the next who asks the same."""
MOST_WAITING: Final = 32
MOST_ANSWERS: Final = 16


class Busy(Exception):
    """Too many wait already."""


class _Answered(NamedTuple):
    begun: float
    ended: float
    answer: dict[str, Any]


class Lane:
    """Asks on behalf of all browsers."""

    def __init__(
        self,
        ask: Ask,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._lock = asyncio.Lock()
        self._waiting = 0
        self._tokens: float = BURST
        self._interval = INTERVAL
        self._filled = clock()
        self._forgives_from = self._filled
        self._changed = -math.inf
        self._answers: dict[str, _Answered] = {}

    def changed(self) -> None:
        """Something has happened: what was asked before is not good for those who ask from now on."""
        self._changed = self._clock()

    async def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        """Return the throttler's answer. Raises OSError as the throttler's client does, Busy where many wait."""
        key, asked = json.dumps(request, sort_keys=True), self._clock()
        if (answer := self._fresh(key, asked)) is not None:
            return answer
        if self._waiting >= MOST_WAITING:
            raise Busy
        self._waiting += 1
        try:
            async with self._lock:
                # Who asked the same before us has the answer by now.
                if (answer := self._fresh(key, asked)) is not None:
                    return answer
                await self._turn()
                return await self._answer(key, request)
        finally:
            self._waiting -= 1

    def _fresh(self, key: str, asked: float) -> dict[str, Any] | None:
        found = self._answers.get(key)
        # What began after somebody asked is good for them, whatever has happened meanwhile: else many who ask at the
        # same time would get an answer each, where something happens during each answer.
        if found is None or (found.begun <= self._changed and found.begun < asked):
            return None
        return found.answer if self._clock() - found.ended < FRESH else None

    async def _turn(self) -> None:
        now = self._clock()
        self._tokens = min(BURST, self._tokens + (now - self._filled) / self._interval)
        self._filled = now
        self._tokens -= 1
        if self._tokens < 0:
            pause = -self._tokens * self._interval
            # What was waited for after a slow answer counts once, not again at the pace after a fast one.
            self._tokens, self._filled = 0, now + pause
            await self._sleep(pause)

    async def _answer(self, key: str, request: Mapping[str, object]) -> dict[str, Any]:
        begun = self._clock()
        try:
            answer = await self._ask(request)
        finally:
            now = self._clock()
            self._interval = self._interval_after(now - begun, now)
        self._answers = {each: held for each, held in self._answers.items() if now - held.ended < FRESH}
        while len(self._answers) >= MOST_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = _Answered(begun, now, answer)
        return answer

    def _interval_after(self, took: float, now: float) -> float:
        """Return the seconds from one question to the next after an answer that *took* so many."""
        interval = max(INTERVAL, (1 + IDLE_SHARE) * took)
        if interval <= LONGEST:
            return interval
        forgiven = now >= self._forgives_from
        self._forgives_from = max(self._forgives_from, now + FORGETTING * interval)
        return LONGEST if forgiven else interval
