# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how often browsers' questions reach the throttler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mptcp_console.lane import BURST, FRESH, INTERVAL, LONGEST, MAX_ANSWERS, MAX_WAITING, Busy, Lane


class Throttler:
    """A fake throttler that answers at once, with a clock that advances only by sleeping."""

    def __init__(self, takes: float = 0.0) -> None:
        self.now = 1000.0
        self.takes = takes
        self.requests: list[tuple[float, Any]] = []
        self.fails = False

    async def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        self.requests.append((self.now, request["query"]))
        await asyncio.sleep(0)
        self.now += self.takes
        if self.fails:
            raise ConnectionRefusedError
        return {"answer": request["query"]}

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    def lane(self) -> Lane:
        return Lane(self.ask, lambda: self.now, self.sleep)


def test_equal_concurrent_questions_are_asked_once() -> None:
    throttler = Throttler()

    async def ask() -> list[dict[str, Any]]:
        lane = throttler.lane()
        return await asyncio.gather(*(lane.ask({"query": "a"}) for _ in range(20)))

    assert asyncio.run(ask()) == [{"answer": "a"}] * 20
    assert len(throttler.requests) == 1


def test_answer_is_reused_for_a_second() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        for later in (0.0, FRESH / 2, FRESH, FRESH / 2):
            throttler.now += later
            await lane.ask({"query": "a"})

    asyncio.run(ask())
    assert len(throttler.requests) == 2


def test_change_makes_an_answer_stale_once() -> None:
    throttler = Throttler(takes=0.25)

    async def ask() -> None:
        lane = throttler.lane()
        await lane.ask({"query": "a"})
        lane.changed()
        throttler.now += 0.1
        await lane.ask({"query": "a"})
        await lane.ask({"query": "a"})

    asyncio.run(ask())
    assert len(throttler.requests) == 2


def test_concurrent_questions_share_an_answer_despite_a_change() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = Lane(busy, lambda: throttler.now, throttler.sleep)

        happening.append(lane.changed)
        await asyncio.gather(*(lane.ask({"query": "a"}) for _ in range(10)))

    async def busy(request: Mapping[str, object]) -> dict[str, Any]:
        await asyncio.sleep(0)  # now all have asked
        throttler.now += 0.1
        happening[0]()
        return await throttler.ask(request)

    happening: list[Callable[[], None]] = []
    asyncio.run(ask())
    assert len(throttler.requests) == 1


def test_frequent_changes_cause_one_question_a_second() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        for _ in range(BURST + 30):
            lane.changed()
            throttler.now += 0.01
            await lane.ask({"query": "a"})

    asyncio.run(ask())
    assert throttler.requests[-1][0] - throttler.requests[0][0] == pytest.approx(30 * INTERVAL, rel=0.05)


def test_different_questions_are_asked_once_a_second() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        await asyncio.gather(*(lane.ask({"query": number}) for number in range(30)))

    asyncio.run(ask())
    times = [time - 1000 for time, _ in throttler.requests]
    assert len(times) == 30
    assert times[:BURST] == [0.0] * BURST
    assert times[BURST:] == [pytest.approx(INTERVAL * number) for number in range(1, 31 - BURST)]


@pytest.mark.parametrize("takes", [0.5, 4.0, 30.0])
def test_slow_answers_are_requested_less_often(takes: float) -> None:
    throttler = Throttler(takes)

    async def ask() -> None:
        lane = throttler.lane()
        for number in range(40):
            await lane.ask({"query": number})

    asyncio.run(ask())
    span = throttler.requests[-1][0] - throttler.requests[10][0]
    assert takes * 29 / span < 0.26


def test_missing_answers_are_requested_less_often() -> None:
    """Defect: missing answers did not count, so that repeated questions kept the throttler permanently busy."""
    throttler = Throttler()
    times: list[float] = []

    async def silent(_: Mapping[str, object]) -> dict[str, Any]:
        times.append(throttler.now)
        throttler.now += 3.0
        raise TimeoutError

    async def ask() -> None:
        lane = Lane(silent, lambda: throttler.now, throttler.sleep)
        for number in range(40):
            with pytest.raises(TimeoutError):
                await lane.ask({"query": number})

    asyncio.run(ask())
    assert 3.0 * 29 / (times[-1] - times[10]) < 0.26


def test_fast_answer_does_not_reset_the_wait_after_slow_ones() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        for number in range(60):
            throttler.takes = 10.0 if number % 2 else 0.0
            await lane.ask({"query": number})

    asyncio.run(ask())
    span = throttler.requests[-1][0] - throttler.requests[20][0]
    assert 10.0 * 20 / span < 0.26


def test_wait_after_one_slow_answer_is_bounded() -> None:
    throttler = Throttler()

    async def ask() -> float:
        lane = throttler.lane()
        for number in range(BURST):
            await lane.ask({"query": number})
        throttler.takes = 30.0
        await lane.ask({"query": "slow"})
        throttler.takes = 0.0
        ended = throttler.now
        await lane.ask({"query": "next"})
        return throttler.now - ended

    assert asyncio.run(ask()) <= LONGEST


def test_question_is_refused_if_too_many_wait() -> None:
    throttler = Throttler()

    async def ask() -> list[Any]:
        lane = throttler.lane()
        questions = (lane.ask({"query": number}) for number in range(MAX_WAITING + 5))
        found: list[Any] = await asyncio.gather(*questions, return_exceptions=True)
        return found

    answers = asyncio.run(ask())
    assert sum(isinstance(answer, Busy) for answer in answers) == 5


def test_failure_is_not_kept_as_an_answer() -> None:
    throttler = Throttler()

    async def ask() -> dict[str, Any]:
        lane = throttler.lane()
        throttler.fails = True
        with pytest.raises(ConnectionRefusedError):
            await lane.ask({"query": "a"})
        throttler.fails = False
        return await lane.ask({"query": "a"})

    assert asyncio.run(ask()) == {"answer": "a"}


def test_number_of_kept_answers_is_bounded() -> None:
    throttler = Throttler()
    lane = throttler.lane()

    async def ask() -> None:
        for number in range(100):
            await lane.ask({"query": number})

    asyncio.run(ask())
    assert len(lane._answers) <= MAX_ANSWERS
