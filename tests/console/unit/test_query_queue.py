# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how often browsers' queries reach the throttler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mptcp_console.query_queue import (
    BURST,
    INTERVAL,
    MAX_ANSWERS,
    MAX_FIRST_INTERVAL,
    MAX_WAITING,
    REUSE_SECONDS,
    Busy,
    QueryQueue,
)

MAX_BUSY_SHARE = 0.26
"""Share of the time in which queries may keep the throttler busy: a quarter, and a tolerance."""


class Throttler:
    """A fake throttler that answers at once, with a clock that advances only by sleeping."""

    def __init__(self, duration: float = 0.0) -> None:
        self.now = 1000.0
        self.duration = duration
        self.requests: list[tuple[float, Any]] = []
        self.fails = False

    async def send(self, request: Mapping[str, object]) -> dict[str, Any]:
        self.requests.append((self.now, request["query"]))
        await asyncio.sleep(0)
        self.now += self.duration
        if self.fails:
            raise ConnectionRefusedError
        return {"answer": request["query"]}

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def query_queue(self) -> QueryQueue:
        return QueryQueue(self.send, lambda: self.now, self.sleep)


def test_equal_concurrent_queries_are_sent_once() -> None:
    throttler = Throttler()

    async def send() -> list[dict[str, Any]]:
        query_queue = throttler.query_queue()
        return await asyncio.gather(*(query_queue.query({"query": "a"}) for _ in range(20)))

    assert asyncio.run(send()) == [{"answer": "a"}] * 20
    assert len(throttler.requests) == 1


def test_answer_is_reused_for_a_second() -> None:
    throttler = Throttler()

    async def send() -> None:
        query_queue = throttler.query_queue()
        for pause in (0.0, REUSE_SECONDS / 2, REUSE_SECONDS, REUSE_SECONDS / 2):
            throttler.now += pause
            await query_queue.query({"query": "a"})

    asyncio.run(send())
    assert len(throttler.requests) == 2


def test_change_makes_an_answer_stale_once() -> None:
    throttler = Throttler(duration=0.25)

    async def send() -> None:
        query_queue = throttler.query_queue()
        await query_queue.query({"query": "a"})
        query_queue.invalidate()
        throttler.now += 0.1
        await query_queue.query({"query": "a"})
        await query_queue.query({"query": "a"})

    asyncio.run(send())
    assert len(throttler.requests) == 2


def test_concurrent_queries_share_an_answer_despite_a_change() -> None:
    throttler = Throttler()

    async def send() -> None:
        query_queue = QueryQueue(query_with_a_change, lambda: throttler.now, throttler.sleep)

        invalidations.append(query_queue.invalidate)
        await asyncio.gather(*(query_queue.query({"query": "a"}) for _ in range(10)))

    async def query_with_a_change(request: Mapping[str, object]) -> dict[str, Any]:
        await asyncio.sleep(0)  # now all queries are waiting
        throttler.now += 0.1
        invalidations[0]()
        return await throttler.send(request)

    invalidations: list[Callable[[], None]] = []
    asyncio.run(send())
    assert len(throttler.requests) == 1


def test_frequent_changes_cause_one_query_a_second() -> None:
    throttler = Throttler()

    async def send() -> None:
        query_queue = throttler.query_queue()
        for _ in range(BURST + 30):
            query_queue.invalidate()
            throttler.now += 0.01
            await query_queue.query({"query": "a"})

    asyncio.run(send())
    assert throttler.requests[-1][0] - throttler.requests[0][0] == pytest.approx(30 * INTERVAL, rel=0.05)


def test_different_queries_are_sent_once_a_second() -> None:
    throttler = Throttler()

    async def send() -> None:
        query_queue = throttler.query_queue()
        await asyncio.gather(*(query_queue.query({"query": number}) for number in range(30)))

    asyncio.run(send())
    times = [time - 1000 for time, _ in throttler.requests]
    assert len(times) == 30
    assert times[:BURST] == [0.0] * BURST
    assert times[BURST:] == [pytest.approx(INTERVAL * number) for number in range(1, 31 - BURST)]


@pytest.mark.parametrize("duration", [0.5, 4.0, 30.0])
def test_slow_answers_are_requested_less_often(duration: float) -> None:
    throttler = Throttler(duration)

    async def send() -> None:
        query_queue = throttler.query_queue()
        for number in range(40):
            await query_queue.query({"query": number})

    asyncio.run(send())
    span = throttler.requests[-1][0] - throttler.requests[10][0]
    assert duration * 29 / span < MAX_BUSY_SHARE


def test_missing_answers_are_requested_less_often() -> None:
    """Defect: missing answers did not count, so that repeated queries kept the throttler busy all the time."""
    throttler = Throttler()
    times: list[float] = []

    async def time_out(_: Mapping[str, object]) -> dict[str, Any]:
        times.append(throttler.now)
        throttler.now += 3.0
        raise TimeoutError

    async def send() -> None:
        query_queue = QueryQueue(time_out, lambda: throttler.now, throttler.sleep)
        for number in range(40):
            with pytest.raises(TimeoutError):
                await query_queue.query({"query": number})

    asyncio.run(send())
    assert 3.0 * 29 / (times[-1] - times[10]) < MAX_BUSY_SHARE


def test_fast_answer_does_not_reset_the_wait_after_slow_ones() -> None:
    throttler = Throttler()

    async def send() -> None:
        query_queue = throttler.query_queue()
        for number in range(60):
            throttler.duration = 10.0 if number % 2 else 0.0
            await query_queue.query({"query": number})

    asyncio.run(send())
    span = throttler.requests[-1][0] - throttler.requests[20][0]
    assert 10.0 * 20 / span < MAX_BUSY_SHARE


def test_wait_after_one_slow_answer_is_bounded() -> None:
    throttler = Throttler()

    async def send() -> float:
        query_queue = throttler.query_queue()
        for number in range(BURST):
            await query_queue.query({"query": number})
        throttler.duration = 30.0
        await query_queue.query({"query": "slow"})
        throttler.duration = 0.0
        end_of_slow_answer = throttler.now
        await query_queue.query({"query": "next"})
        return throttler.now - end_of_slow_answer

    assert asyncio.run(send()) <= MAX_FIRST_INTERVAL


def test_query_is_refused_if_too_many_wait() -> None:
    throttler = Throttler()

    async def send() -> list[Any]:
        query_queue = throttler.query_queue()
        queries = (query_queue.query({"query": number}) for number in range(MAX_WAITING + 5))
        found: list[Any] = await asyncio.gather(*queries, return_exceptions=True)
        return found

    answers = asyncio.run(send())
    assert sum(isinstance(answer, Busy) for answer in answers) == 5


def test_failure_is_not_kept_as_an_answer() -> None:
    throttler = Throttler()

    async def send() -> dict[str, Any]:
        query_queue = throttler.query_queue()
        throttler.fails = True
        with pytest.raises(ConnectionRefusedError):
            await query_queue.query({"query": "a"})
        throttler.fails = False
        return await query_queue.query({"query": "a"})

    assert asyncio.run(send()) == {"answer": "a"}


def test_number_of_kept_answers_is_bounded() -> None:
    throttler = Throttler()
    query_queue = throttler.query_queue()

    async def send() -> None:
        for number in range(100):
            await query_queue.query({"query": number})

    asyncio.run(send())
    assert len(query_queue._answers) <= MAX_ANSWERS
