# SPDX-License-Identifier: GPL-2.0-or-later
"""Samples the proxy's sockets for all consumers of samples.

A *sweep* lists all sockets in pieces; a *look-up* queries single sockets, many in one request. Each consumer names the
subflows that it watches, if any, and the few that are urgent. The sampler sweeps as often as the most demanding
consumer needs, or looks up the watched subflows if that is cheaper. In between it looks up urgent subflows. Sampling
takes a fixed share of a processor: the longer a sample takes (a sweep may take seconds), the rarer samples are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence, Set
from contextlib import asynccontextmanager

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.ports import KernelSockets
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.runtime.event_loop import begin_acyclic, end_acyclic, wait_at_most
from mptcp_throttler.stages.stage import Consumer, Outcome, Samples

log = logging.getLogger(__name__)

SWEEP_SHARE = 0.12  # share of a processor that sweeps and their consumers may take
SLICE_SECONDS = 0.002  # how long the sampler works before it yields: a new join waits until the slice ends
LOOKUP_CHUNK = 64
CHECKED = 1024  # number of subflows that are checked against the samples between two yields: about 0.3 ms
LOOKUP_COST = 2.0  # cost of looking up one socket, as a multiple of the cost of one socket in a sweep
SWEEP_COST = 300  # fixed cost of a sweep, in sockets: the kernel walks its whole hash table, which takes 1.4 ms
IDLE_SECONDS = 0.5  # pause while no consumer watches a subflow, and after a failure
BUSY_SECONDS = 0.01  # pause until a consumer that is busy with samples is asked again for its urgent subflows
REST = 1.5
"""Pause of a gentle sweep after each slice, as a multiple of its work. Without it the process uses up its time on the
processor, and then a join waits many milliseconds while other processes run."""


class _Fed:
    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.turn = asyncio.Lock()  # held while the consumer takes samples
        self.waits = False  # whether a sweep's samples must come next, so that it gets no look-ups
        self.looked_up = set[FourTuple]()  # subflows of urgent look-ups since the sweep or its replacement began
        self.next_urgent = 0.0
        self.idle = True  # whether it had no urgent subflow when last asked; asked again when the sampler is woken


class Sampler:
    """Samples sockets for its consumers. During a sweep, only those *by request* get look-ups, too."""

    def __init__(
        self,
        sockets: KernelSockets,
        consumers: Sequence[Consumer],
        tracked: Callable[[], int],
        take: Callable[[Outcome], None],
    ) -> None:
        """*tracked* returns the expected number of sockets of a sweep; *take* gets each outcome of a stage."""
        self.latest: dict[FourTuple, KernelSubflow] = {}  # of the last sweep; during another, some are already newer
        self.latest_time = float("-inf")  # when the last sweep ended, monotonic seconds
        self.sweeps = 0
        self.lookups = 0
        self.sweep_seconds = 0.0  # processing time of the last sweep and its consumers, seconds, without pauses
        self._sockets = sockets
        self._fed = [_Fed(consumer) for consumer in consumers]
        self._tracked = tracked
        self._take = take
        self._wake_sweeps, self._wake_urgent = asyncio.Event(), asyncio.Event()
        self._sweeping = asyncio.Lock()
        self._last_sweep = self._next_sweep = 0.0

    def as_json(self) -> dict[str, float | int]:
        return {"sweeps": self.sweeps, "lookups": self.lookups, "sweep_seconds": round(self.sweep_seconds, 4)}

    def is_current(self) -> bool:
        """Return whether :attr:`latest` is at most a second old, or at most ten times as old as a sweep takes."""
        return time.monotonic() - self.latest_time <= max(1.0, 10 * self.sweep_seconds)

    def cookies(self, since: float) -> set[int] | None:
        """Return the cookies of all sockets of the last sweep, or None if it ended before *since*, monotonic seconds.
        While few subflows are watched, only resyncs cause sweeps."""
        # During a sweep, the result includes the sockets of the previous one. 20,000 sockets take 2 ms.
        return None if self.latest_time < since else {each.cookie for each in self.latest.values()}

    def wake(self) -> None:
        """Query the consumers again, because they may have new urgent subflows, or their first watched subflows."""
        self._wake_sweeps.set()
        self._wake_urgent.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._wake_sweeps, self._pause_to_sweep, self.watch))
            tasks.create_task(self._repeat(self._wake_urgent, self._pause_to_urgent, self.look_up_urgent))

    async def _repeat(
        self, wake: asyncio.Event, pause: Callable[[], float], sample: Callable[[], Awaitable[None]]
    ) -> None:
        while True:
            # Let the event loop run even if a sample is overdue.
            await wait_at_most(wake, max(0.0005, pause()))
            wake.clear()
            try:
                await sample()
            except KernelError as error:
                log.error("%s; sampling again in %g s", error, IDLE_SECONDS)
                for fed in self._fed:
                    async with fed.turn:
                        fed.consumer.failed(time.monotonic())
                await asyncio.sleep(IDLE_SECONDS)

    async def watch(self) -> None:
        """Sample all watched subflows if due: by a sweep, or by look-ups if they are few. Raises KernelError."""
        watching = [fed.consumer for fed in self._fed if fed.consumer.watches_any()]
        if self._pause_to_sweep() > 0 or not watching:
            return
        self._last_sweep = time.monotonic()
        sets, affordable = [each.watched() for each in watching], (self._tracked() + SWEEP_COST) / LOOKUP_COST
        # Do not build the union of the sets of ten thousand connections, which is as large as the largest set.
        if max(map(len, sets)) > affordable or len(watched := set().union(*sets)) > affordable:
            await self.sweep(gently=True)
            return
        async with self._sweeping, self._stages_wait():
            pace = _Pace()
            await self._give_all(await self._look_up(list(watched), pace), pace, looked_up=watched)
            pace.end()
            self._next_sweep = time.monotonic() + pace.worked / SWEEP_SHARE

    async def sweep(
        self, each_piece: Callable[[Sequence[KernelSubflow]], None] | None = None, gently: bool = False
    ) -> None:
        """List all sockets; pass each piece to *each_piece*, and then all samples to the consumers. *gently*: with
        pauses (``REST``). Raises KernelError."""
        async with self._sweeping, self._stages_wait():
            pace = _Pace(REST if gently else 0.0)
            # ``latest`` is updated in place, so that old samples are freed one by one as new ones come.
            seen = set[FourTuple]()
            for piece in self._sockets.batches():
                for subflow in piece:
                    self.latest[subflow.four_tuple] = subflow
                    seen.add(subflow.four_tuple)
                if each_piece is not None:
                    each_piece(piece)
                await pace.give_way()
            if len(seen) < len(self.latest):
                for four_tuple in self.latest.keys() - seen:
                    del self.latest[four_tuple]
            self.latest_time = time.monotonic()
            self.sweeps += 1
            await self._give_all(self.latest, pace)
            pace.end()
            self.sweep_seconds, self._last_sweep = pace.worked, self.latest_time
            self._next_sweep = self.latest_time + self.sweep_seconds / SWEEP_SHARE

    async def look_up_urgent(self) -> None:
        """Look up the urgent subflows of the consumers that are due. Raises KernelError."""
        for fed in self._fed:
            now = time.monotonic()
            if now < fed.next_urgent:
                continue
            if fed.waits or fed.turn.locked():
                fed.idle = False  # the consumer is busy: query it again
                continue
            urgent = list(fed.consumer.urgent())
            fed.idle = not urgent
            if not urgent:
                continue
            async with fed.turn:
                pace = _Pace()
                found = await self._look_up(urgent, pace)
                if self._sweeping.locked():
                    fed.looked_up.update(urgent)
                await self._give(fed.consumer, Samples(time.monotonic(), found, False, urgent), pace)
                pace.end()
            fed.next_urgent = now + max(fed.consumer.interval, pace.worked / fed.consumer.urgent_share)

    def _pause_to_sweep(self) -> float:
        periods = [fed.consumer.period for fed in self._fed if fed.consumer.watches_any()]
        if not periods:
            return IDLE_SECONDS
        return max(self._next_sweep, self._last_sweep + min(periods)) - time.monotonic()

    def _pause_to_urgent(self) -> float:
        due = [fed.next_urgent for fed in self._fed if not fed.idle]
        pause = min(due) - time.monotonic() if due else IDLE_SECONDS
        return max(pause, BUSY_SECONDS) if any(fed.waits or fed.turn.locked() for fed in self._fed) else pause

    async def _look_up(self, four_tuples: list[FourTuple], pace: _Pace) -> dict[FourTuple, KernelSubflow]:
        found: dict[FourTuple, KernelSubflow] = {}
        for start in range(0, len(four_tuples), LOOKUP_CHUNK):
            found.update(self._sockets.look_up(four_tuples[start : start + LOOKUP_CHUNK]))
            await pace.give_way()
        self.lookups += len(four_tuples)
        return found

    @asynccontextmanager
    async def _stages_wait(self) -> AsyncIterator[None]:
        """Let the look-ups of consumers that are not *by request* end; the next ones come after the sweep's samples."""
        for fed in self._fed:
            fed.looked_up.clear()
            fed.waits = not fed.consumer.by_request
        try:
            for fed in self._fed:
                if fed.waits:
                    async with fed.turn:
                        pass
            yield
        finally:
            for fed in self._fed:
                fed.waits = False

    async def _give_all(
        self, found: dict[FourTuple, KernelSubflow], pace: _Pace, looked_up: Set[FourTuple] | None = None
    ) -> None:
        """Give all consumers the samples *found* of their watched subflows. After a sweep, include their urgent
        subflows. *looked_up*: the requested subflows, if they were looked up instead of a sweep."""
        now, rest = time.monotonic(), pace.rest
        for fed in self._fed:
            consumer = fed.consumer
            pace.end()
            async with fed.turn:
                pace.begin()
                pace.rest = 0.0 if consumer.by_request else rest  # without pauses, because its urgent look-ups wait
                urgent = consumer.urgent() if looked_up is None else ()
                if urgent or consumer.watches_any():
                    watched = consumer.watched()
                    asked = list(watched)
                    if urgent:  # otherwise do not build this set: for all sockets it takes long
                        known = watched if isinstance(watched, Set) else frozenset(watched)
                        asked += [each for each in urgent if each not in known]
                    asked = await _without(asked, fed.looked_up, pace)
                    # Look up missing subflows: one that joined after the dump passed its hash bucket is not closed.
                    missing = await _without(asked, found, pace)
                    if looked_up is not None:
                        missing = await _without(missing, looked_up, pace)
                    if missing:
                        found.update(await self._look_up(missing, pace))
                    await self._give(consumer, Samples(now, found, True, asked), pace)
            fed.waits, pace.rest = False, rest

    async def _give(self, consumer: Consumer, samples: Samples, pace: _Pace) -> None:
        for outcome in consumer.observe(samples):
            if outcome is not None:
                self._take(outcome)
            await pace.give_way()
        await pace.give_way()


async def _without(asked: list[FourTuple], known: Collection[FourTuple], pace: _Pace) -> list[FourTuple]:
    """Return *asked* without *known*, in slices, because ten thousand subflows take milliseconds."""
    if not known:
        return asked
    found: list[FourTuple] = []
    for start in range(0, len(asked), CHECKED):
        found += [each for each in asked[start : start + CHECKED] if each not in known]
        await pace.give_way()
    return found


class _Pace:
    """Yields to the event loop in time, and sums up the processing time. The garbage collector skips the samples,
    because they have no cycles."""

    def __init__(self, rest: float = 0.0) -> None:
        """*rest*: pause after a slice, as a multiple of its work."""
        self.worked = 0.0
        self.rest = rest
        self.begin()

    async def give_way(self) -> None:
        worked = time.monotonic() - self._began
        if worked < SLICE_SECONDS:
            return
        self.end()
        await asyncio.sleep(self.rest * worked)
        self.begin()

    def end(self) -> None:
        end_acyclic()
        self.worked += time.monotonic() - self._began

    def begin(self) -> None:
        self._began = time.monotonic()
        begin_acyclic()
