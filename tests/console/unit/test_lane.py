# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how often browsers' questions reach the throttler."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from mptcp_console.lane import BURST, FRESH, INTERVAL, LONGEST, MOST_ANSWERS, MOST_WAITING, Busy, Lane


class Throttler:
    """A fake throttler that answers at once, with a clock that advances only by sleeping."""

    def __init__(self, takes: float = 0.0) -> None:
        self.now = 1000.0
        self.takes = takes
        self.asked: list[tuple[float, Any]] = []
        self.fails = False

    async def ask(self, request: Mapping[str, object]) -> dict[str, Any]:
        self.asked.append((self.now, request["query"]))
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


def test_equal_questions_are_asked_once() -> None:
    throttler = Throttler()

    async def ask() -> list[dict[str, Any]]:
        lane = throttler.lane()
        return await asyncio.gather(*(lane.ask({"query": "a"}) for _ in range(20)))

    assert asyncio.run(ask()) == [{"answer": "a"}] * 20
    assert len(throttler.asked) == 1


def test_an_answer_is_good_for_a_second() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        for later in (0.0, FRESH / 2, FRESH, FRESH / 2):
            throttler.now += later
            await lane.ask({"query": "a"})

    asyncio.run(ask())
    assert len(throttler.asked) == 2


def test_what_was_asked_before_something_happened_is_asked_again_once() -> None:
    throttler = Throttler(takes=0.25)

    async def ask() -> None:
        lane = throttler.lane()
        await lane.ask({"query": "a"})
        lane.changed()
        throttler.now += 0.1
        await lane.ask({"query": "a"})
        await lane.ask({"query": "a"})

    asyncio.run(ask())
    assert len(throttler.asked) == 2


def test_many_who_ask_together_share_an_answer_during_which_something_happens() -> None:
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
    assert len(throttler.asked) == 1


def test_however_often_something_happens_the_throttler_is_asked_once_a_second() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        for _ in range(BURST + 30):
            lane.changed()
            throttler.now += 0.01
            await lane.ask({"query": "a"})

    asyncio.run(ask())
    assert throttler.asked[-1][0] - throttler.asked[0][0] == pytest.approx(30 * INTERVAL, rel=0.05)


def test_many_browsers_with_different_questions_ask_once_a_second() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        await asyncio.gather(*(lane.ask({"query": number}) for number in range(30)))

    asyncio.run(ask())
    times = [time - 1000 for time, _ in throttler.asked]
    assert len(times) == 30
    assert times[:BURST] == [0.0] * BURST
    assert times[BURST:] == [pytest.approx(INTERVAL * number) for number in range(1, 31 - BURST)]


@pytest.mark.parametrize("takes", [0.5, 4.0, 30.0])
def test_expensive_answers_are_asked_for_less_often(takes: float) -> None:
    throttler = Throttler(takes)

    async def ask() -> None:
        lane = throttler.lane()
        for number in range(40):
            await lane.ask({"query": number})

    asyncio.run(ask())
    span = throttler.asked[-1][0] - throttler.asked[10][0]
    assert takes * 29 / span < 0.26


def test_answers_that_do_not_come_are_waited_for_less_often() -> None:
    """Defect: missing answers did not count, so that repeated questions kept the throttler permanently busy."""
    throttler = Throttler()
    asked: list[float] = []

    async def silent(_: Mapping[str, object]) -> dict[str, Any]:
        asked.append(throttler.now)
        throttler.now += 3.0
        raise TimeoutError

    async def ask() -> None:
        lane = Lane(silent, lambda: throttler.now, throttler.sleep)
        for number in range(40):
            with pytest.raises(TimeoutError):
                await lane.ask({"query": number})

    asyncio.run(ask())
    assert 3.0 * 29 / (asked[-1] - asked[10]) < 0.26


def test_a_cheap_question_between_two_slow_ones_does_not_have_them_forgiven() -> None:
    throttler = Throttler()

    async def ask() -> None:
        lane = throttler.lane()
        for number in range(60):
            throttler.takes = 10.0 if number % 2 else 0.0
            await lane.ask({"query": number})

    asyncio.run(ask())
    span = throttler.asked[-1][0] - throttler.asked[20][0]
    assert 10.0 * 20 / span < 0.26


def test_one_slow_answer_does_not_stop_the_next_for_long() -> None:
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


def test_who_comes_when_too_many_wait_is_told() -> None:
    throttler = Throttler()

    async def ask() -> list[Any]:
        lane = throttler.lane()
        questions = (lane.ask({"query": number}) for number in range(MOST_WAITING + 5))
        found: list[Any] = await asyncio.gather(*questions, return_exceptions=True)
        return found

    answers = asyncio.run(ask())
    assert sum(isinstance(answer, Busy) for answer in answers) == 5


def test_a_failure_is_not_kept_and_lets_the_next_try() -> None:
    throttler = Throttler()

    async def ask() -> dict[str, Any]:
        lane = throttler.lane()
        throttler.fails = True
        with pytest.raises(ConnectionRefusedError):
            await lane.ask({"query": "a"})
        throttler.fails = False
        return await lane.ask({"query": "a"})

    assert asyncio.run(ask()) == {"answer": "a"}


def test_few_answers_are_kept() -> None:
    throttler = Throttler()
    lane = throttler.lane()

    async def ask() -> None:
        for number in range(100):
            await lane.ask({"query": number})

    asyncio.run(ask())
    assert len(lane._answers) <= MOST_ANSWERS
