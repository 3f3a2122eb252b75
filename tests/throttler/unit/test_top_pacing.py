"""When ``top`` asks: once a second at the most, at a pause only what is new. The clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from mptcp_throttler.cli.pacing import Pacing

TURNS = 100
"""Of the event loop: more than anything here needs, for nothing waits for a clock or for another process."""


class Daemon:
    """Takes *seconds* for each answer, by a clock that it moves itself."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.asked: list[float] = []
        self.is_paused = False
        self._seconds = seconds
        self.pacing = Pacing(self._ask, lambda: self.is_paused, lambda: self.now, self._sleep)

    async def _ask(self) -> None:
        self.asked.append(self.now)
        await self._sleep(self._seconds)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


def play(daemon: Daemon, scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        asking = asyncio.create_task(daemon.pacing.run())
        await scene()
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking

    asyncio.run(run())


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("takes", "period"), [(0.0, 1.0), (0.25, 1.0), (0.5, 1.0), (0.75, 1.5), (4.0, 8.0)])
def test_once_a_second_at_the_most_and_half_of_the_time_nothing(takes: float, period: float) -> None:
    daemon = Daemon(takes)
    play(daemon, turns)
    assert len(daemon.asked) > 10
    assert daemon.asked == [number * period for number in range(len(daemon.asked))]


def test_at_a_pause_only_what_is_new_is_asked_and_then_it_goes_on() -> None:
    daemon = Daemon(0.0)

    async def scene() -> None:
        daemon.is_paused = True
        await turns()
        assert len(daemon.asked) == 1
        for asked in (2, 3):
            daemon.pacing.wanted.set()
            await turns()
            assert len(daemon.asked) == asked
        daemon.is_paused = False
        daemon.pacing.wanted.set()
        await turns()
        assert len(daemon.asked) > 10

    play(daemon, scene)


def test_what_is_new_is_asked_no_earlier_than_anything() -> None:
    daemon = Daemon(0.0)

    async def scene() -> None:
        for _ in range(TURNS):
            daemon.pacing.wanted.set()
            await asyncio.sleep(0)

    play(daemon, scene)
    assert daemon.asked == [float(number) for number in range(len(daemon.asked))]
