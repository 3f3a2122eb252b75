"""The one sampler: samples the proxy's sockets for everybody who needs to know how subflows are doing.

There are two ways, both by socket diagnostics: a *sweep* lists all sockets, in pieces; a *look-up* asks for
single ones, many in one request. Consumers say which subflows they watch, and which few are urgent. The sampler sweeps
as often as the most demanding watcher wants, looks urgent ones up in between, and takes whichever way is cheaper. It
spends no more than a fixed share of a processor: where sampling takes long it samples less often, and every sample
carries its time.

Nothing is sampled that nobody watches: without caps, budgets and steering there is nothing but the resync.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from mptcp_throttler.kernel.ports import KernelError, Sockets
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.runtime.waiting import wait_at_most

log = logging.getLogger(__name__)

SWEEP_SHARE = 0.12
"""Share of a processor that sweeps may take, with what their consumers do."""
SLICE_SECONDS = 0.004
"""How long the sampler works before it gives way to the event loop."""
LOOKUP_CHUNK = 128
"""Sockets asked for at a time."""
LOOKUP_COST = 2.0
"""A look-up costs about so many times what a socket costs in a sweep."""
SWEEP_COST = 600
"""A sweep costs as much as so many sockets more: the kernel walks its whole table for each family and port."""
IDLE_SECONDS = 0.5
"""Between two questions whether anybody watches anything."""


class Consumer(Protocol):
    """Who needs samples."""

    interval: float
    """Seconds between two samples of urgent subflows."""
    urgent_share: float
    """Share of a processor that look-ups of urgent subflows for it may take."""
    period: float
    """Seconds between two sweeps."""

    def watches_any(self) -> bool:
        """Tell whether :meth:`watched` would return any: asked often."""

    def watched(self) -> Collection[FourTuple]: ...

    def urgent(self) -> Collection[FourTuple]: ...

    def observe(
        self, asked: Collection[FourTuple], sockets: Mapping[FourTuple, KernelSubflow], now: float, complete: bool
    ) -> Iterator[None]:
        """Take the samples of those *asked* for, as they were at *now*, monotonic seconds; *complete*: of all watched.

        Yields where the caller may give way to the event loop.
        """

    def failed(self, now: float) -> None:
        """Samples could not be taken."""


class Sampler:
    """Samples sockets for its consumers."""

    def __init__(self, sockets: Sockets, consumers: Sequence[Consumer], tracked: Callable[[], int]) -> None:
        """*tracked* returns how many sockets a sweep is expected to list."""
        self.latest: dict[FourTuple, KernelSubflow] = {}
        """What the last sweep found, for those who show it; in part newer while one is under way."""
        self.latest_time = float("-inf")
        """When that was, monotonic seconds."""
        self.sweeps = 0
        self.lookups = 0
        self.sweep_seconds = 0.0
        """How long the last sweep and its consumers worked, waiting apart."""
        self._sockets = sockets
        self._consumers = tuple(consumers)
        self._tracked = tracked
        self._wake = asyncio.Event()
        self._sweeping = asyncio.Lock()
        self._last_sweep = self._next_sweep = 0.0
        self._next_urgent = [0.0] * len(self._consumers)
        self._idle = [True] * len(self._consumers)
        """Who had nothing urgent when asked last: they are asked again when woken."""

    def as_json(self) -> dict[str, float | int]:
        """Return for the status how often sockets were sampled, and for how long the last sweep worked."""
        return {"sweeps": self.sweeps, "lookups": self.lookups, "sweep_seconds": round(self.sweep_seconds, 4)}

    def wake(self) -> None:
        """Say that there may be new urgent subflows."""
        self._wake.set()

    async def run(self) -> None:
        """Sample, forever."""
        while True:
            pause = min(self._pause_to_sweep(), self._pause_to_urgent())
            # Even where a look is overdue, the loop has its turn.
            await wait_at_most(self._wake, max(0.0005, pause))
            self._wake.clear()
            try:
                await self._look()
            except KernelError as error:
                log.error("%s; sampling again in %g s", error, IDLE_SECONDS)
                now = time.monotonic()
                for consumer in self._consumers:
                    consumer.failed(now)
                await asyncio.sleep(IDLE_SECONDS)

    async def sweep(self, each_piece: Callable[[Sequence[KernelSubflow]], None] | None = None) -> None:
        """List all sockets, giving each piece to *each_piece*, and then the whole to all consumers.

        Raises KernelError where the sockets cannot be listed.
        """
        async with self._sweeping:
            pace = _Pace()
            await self._list(pace, each_piece)
            found, now = self.latest, self.latest_time
            for consumer in self._consumers:
                if consumer.watches_any() or consumer.urgent():
                    asked = {*consumer.watched(), *consumer.urgent()}
                    await self._give(consumer, asked, found, now, True, pace)
            self.sweep_seconds = pace.worked()
            self._last_sweep = now
            self._next_sweep = now + self.sweep_seconds / SWEEP_SHARE

    async def refresh(self) -> None:
        """Have :attr:`latest` a second old at most, or ten times what a sweep takes; nobody else hears of it.

        Raises KernelError.
        """
        # One that is under way brings it soon enough: nobody waits for what its consumers make of it.
        if not self._sweeping.locked() and time.monotonic() - self.latest_time > max(1.0, 10 * self.sweep_seconds):
            async with self._sweeping:
                await self._list(_Pace(), None)

    async def _list(self, pace: _Pace, each_piece: Callable[[Sequence[KernelSubflow]], None] | None) -> None:
        """List all sockets into :attr:`latest`: in place, so that old samples go one by one as new ones come."""
        found, seen = self.latest, set[FourTuple]()
        for piece in self._sockets.pieces():
            for subflow in piece:
                found[subflow.four_tuple] = subflow
                seen.add(subflow.four_tuple)
            if each_piece is not None:
                each_piece(piece)
            await pace.give_way()
        if len(seen) < len(found):
            for four_tuple in found.keys() - seen:
                del found[four_tuple]
        self.latest_time = time.monotonic()
        self.sweeps += 1

    async def look_up(self, four_tuples: Iterable[FourTuple]) -> dict[FourTuple, KernelSubflow]:
        """Return the subflows that have a socket. Raises KernelError."""
        pace = _Pace()
        return await self._look_up(list(four_tuples), pace)

    def _pause_to_sweep(self) -> float:
        periods = [consumer.period for consumer in self._consumers if consumer.watches_any()]
        if not periods:
            return IDLE_SECONDS
        return max(self._next_sweep, self._last_sweep + min(periods)) - time.monotonic()

    def _pause_to_urgent(self) -> float:
        due = [at for at, idle in zip(self._next_urgent, self._idle, strict=True) if not idle]
        return min(due) - time.monotonic() if due else IDLE_SECONDS

    async def _look(self) -> None:
        if self._sweep_is_due():
            await self._watch()
        for index, consumer in enumerate(self._consumers):
            now = time.monotonic()
            if now < self._next_urgent[index]:
                continue
            urgent = list(consumer.urgent())
            self._idle[index] = not urgent
            if not urgent:
                continue
            pace = _Pace()
            found = await self._look_up(urgent, pace)
            await self._give(consumer, urgent, found, time.monotonic(), False, pace)
            self._next_urgent[index] = now + max(consumer.interval, pace.worked() / consumer.urgent_share)

    def _sweep_is_due(self) -> bool:
        return self._pause_to_sweep() <= 0 and any(consumer.watches_any() for consumer in self._consumers)

    async def _watch(self) -> None:
        """Sample all that is watched: by a sweep, or where that is little of what there is, by look-ups."""
        self._last_sweep = time.monotonic()
        watched = set().union(*(consumer.watched() for consumer in self._consumers if consumer.watches_any()))
        if len(watched) * LOOKUP_COST > self._tracked() + SWEEP_COST:
            await self.sweep()
            return
        pace = _Pace()
        found = await self._look_up(list(watched), pace)
        now = time.monotonic()
        for consumer in self._consumers:
            if consumer.watches_any():
                await self._give(consumer, consumer.watched(), found, now, True, pace)
        self._next_sweep = now + pace.worked() / SWEEP_SHARE

    async def _look_up(self, four_tuples: list[FourTuple], pace: _Pace) -> dict[FourTuple, KernelSubflow]:
        found: dict[FourTuple, KernelSubflow] = {}
        for start in range(0, len(four_tuples), LOOKUP_CHUNK):
            found.update(self._sockets.look_up(four_tuples[start : start + LOOKUP_CHUNK]))
            await pace.give_way()
        self.lookups += len(four_tuples)
        return found

    @staticmethod
    async def _give(
        consumer: Consumer,
        asked: Collection[FourTuple],
        found: Mapping[FourTuple, KernelSubflow],
        now: float,
        complete: bool,
        pace: _Pace,
    ) -> None:
        for _ in consumer.observe(asked, found, now, complete):
            await pace.give_way()
        await pace.give_way()


class _Pace:
    """Gives way to the event loop often enough, and adds up the time worked."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._worked = 0.0

    async def give_way(self) -> None:
        now = time.monotonic()
        if now - self._began < SLICE_SECONDS:
            return
        self._worked += now - self._began
        await asyncio.sleep(0)
        self._began = time.monotonic()

    def worked(self) -> float:
        """Return the seconds worked so far."""
        return self._worked + time.monotonic() - self._began
