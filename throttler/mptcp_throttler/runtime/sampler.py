# SPDX-License-Identifier: GPL-2.0-or-later
"""Samples the proxy's sockets for all consumers of samples.

A *sweep* lists all sockets in batches; a *look-up* queries single sockets, many in one request. Each consumer names the
subflows that it watches, if any, and the few that are urgent. The sampler sweeps as often as the most demanding
consumer needs, or looks up the watched subflows if that is cheaper. In between it looks up urgent subflows. To limit
its share of a processor, it samples less often if samples take longer (a sweep may take seconds).
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
LOOKUP_CHUNK = 64  # number of sockets per request
CHECK_CHUNK = 1024  # number of subflows that are checked against the samples between two yields: about 0.3 ms
LOOKUP_COST = 2.0  # cost of looking up one socket, as a multiple of the cost of one socket in a sweep
SWEEP_COST = 300  # fixed cost of a sweep, in sockets: the kernel walks its whole hash table, which takes 1.4 ms
IDLE_SECONDS = 0.5  # pause while no consumer watches a subflow, and after a failure
BUSY_SECONDS = 0.01  # pause until a consumer that is busy with samples is queried again for its urgent subflows
PAUSE_RATIO = 1.5
"""Pause after each slice of a sweep, as a multiple of its work. Without pauses, the process would use up its time
slice, and the scheduler would then run other processes while a join waits."""


class _ConsumerState:
    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.lock = asyncio.Lock()  # held while the consumer processes samples
        self.awaits_sweep = False  # whether it gets no look-ups until it gets the samples of a sweep
        self.looked_up = set[FourTuple]()  # subflows looked up as urgent since the current sweep began
        self.next_urgent = 0.0  # when its urgent subflows are due, monotonic seconds
        self.is_idle = True  # whether it had no urgent subflow at the last query; :meth:`Sampler.wake` causes a new one


class Sampler:
    """Samples sockets for its consumers. During a sweep, only consumers that are ``by_request`` get look-ups."""

    def __init__(
        self,
        sockets: KernelSockets,
        consumers: Sequence[Consumer],
        count_sockets: Callable[[], int],
        handle_outcome: Callable[[Outcome], None],
    ) -> None:
        """*count_sockets* returns the expected number of sockets of a sweep; *handle_outcome* gets the outcomes."""
        self.latest: dict[FourTuple, KernelSubflow] = {}  # samples of the last sweep; a running sweep has replaced some
        self.latest_time = float("-inf")  # when the last sweep ended, monotonic seconds
        self.sweeps = 0
        self.lookups = 0
        self.sweep_seconds = 0.0  # processing time of the last sweep and its consumers, seconds, without pauses
        self._sockets = sockets
        self._states = [_ConsumerState(consumer) for consumer in consumers]
        self._count_sockets, self._handle_outcome = count_sockets, handle_outcome
        self._wake_sweeps, self._wake_urgent = asyncio.Event(), asyncio.Event()
        self._sweep_lock = asyncio.Lock()
        self._last_sweep = self._next_sweep = 0.0

    def as_json(self) -> dict[str, float | int]:
        return {"sweeps": self.sweeps, "lookups": self.lookups, "sweep_seconds": round(self.sweep_seconds, 4)}

    def is_current(self) -> bool:
        """Return whether :attr:`latest` is at most a second old, or at most as old as ten sweeps take."""
        return time.monotonic() - self.latest_time <= max(1.0, 10 * self.sweep_seconds)

    def cookies(self, since: float) -> set[int] | None:
        """Return the cookies of all sockets of the last sweep, or None if it ended before *since*, monotonic seconds.
        It may be old, because only resyncs cause sweeps while few subflows are watched."""
        # During a sweep, the result includes the sockets of the previous one. Copying 20,000 cookies takes 2 ms.
        return None if self.latest_time < since else {each.cookie for each in self.latest.values()}

    def wake(self) -> None:
        """Query the consumers again, because they may have new urgent subflows, or their first watched subflows."""
        self._wake_sweeps.set()
        self._wake_urgent.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._repeat(self._wake_sweeps, self._pause_to_sweep, self.sample_watched))
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
                for state in self._states:
                    async with state.lock:
                        state.consumer.sampling_failed(time.monotonic())
                await asyncio.sleep(IDLE_SECONDS)

    async def sample_watched(self) -> None:
        """Sample all watched subflows if due: by a sweep, or by look-ups if they are few. Raises KernelError."""
        watching = [state.consumer for state in self._states if state.consumer.watches_any()]
        if self._pause_to_sweep() > 0 or not watching:
            return
        self._last_sweep = time.monotonic()
        sets, limit = [each.watched() for each in watching], (self._count_sockets() + SWEEP_COST) / LOOKUP_COST
        # First test the largest set, because the union of the sets of ten thousand connections is slow to build.
        if max(map(len, sets)) > limit or len(watched := set().union(*sets)) > limit:
            await self.sweep(with_pauses=True)
            return
        async with self._sweep_lock, self._block_look_ups():
            pace = _Pace()
            await self._deliver_all(await self._look_up(list(watched), pace), pace, looked_up=watched)
            pace.end()
            self._next_sweep = time.monotonic() + pace.work_seconds / SWEEP_SHARE

    async def sweep(
        self, handle_batch: Callable[[Sequence[KernelSubflow]], None] | None = None, with_pauses: bool = False
    ) -> None:
        """List all sockets; pass each batch to *handle_batch*, and then all samples to the consumers. *with_pauses*:
        pause after each slice (``PAUSE_RATIO``). Raises KernelError."""
        async with self._sweep_lock, self._block_look_ups():
            pace = _Pace(PAUSE_RATIO if with_pauses else 0.0)
            # ``latest`` is updated in place, so that old samples are freed one by one as new samples arrive.
            seen = set[FourTuple]()
            for batch in self._sockets.batches():
                for subflow in batch:
                    self.latest[subflow.four_tuple] = subflow
                    seen.add(subflow.four_tuple)
                if handle_batch is not None:
                    handle_batch(batch)
                await pace.pause_if_due()
            if len(seen) < len(self.latest):
                for four_tuple in self.latest.keys() - seen:
                    del self.latest[four_tuple]
            self.latest_time = time.monotonic()
            self.sweeps += 1
            await self._deliver_all(self.latest, pace)
            pace.end()
            self.sweep_seconds, self._last_sweep = pace.work_seconds, self.latest_time
            self._next_sweep = self.latest_time + self.sweep_seconds / SWEEP_SHARE

    async def look_up_urgent(self) -> None:
        """Look up the urgent subflows of the consumers that are due. Raises KernelError."""
        for state in self._states:
            now = time.monotonic()
            if now < state.next_urgent:
                continue
            if state.awaits_sweep or state.lock.locked():
                state.is_idle = False  # the consumer is busy: query it again
                continue
            urgent = list(state.consumer.urgent())
            state.is_idle = not urgent
            if not urgent:
                continue
            async with state.lock:
                pace = _Pace()
                sockets = await self._look_up(urgent, pace)
                if self._sweep_lock.locked():
                    state.looked_up.update(urgent)
                await self._deliver(state.consumer, Samples(time.monotonic(), sockets, False, urgent), pace)
                pace.end()
            state.next_urgent = now + max(state.consumer.interval, pace.work_seconds / state.consumer.urgent_share)

    def _pause_to_sweep(self) -> float:
        periods = [state.consumer.period for state in self._states if state.consumer.watches_any()]
        if not periods:
            return IDLE_SECONDS
        return max(self._next_sweep, self._last_sweep + min(periods)) - time.monotonic()

    def _pause_to_urgent(self) -> float:
        times = [state.next_urgent for state in self._states if not state.is_idle]
        pause = min(times) - time.monotonic() if times else IDLE_SECONDS
        is_busy = any(state.awaits_sweep or state.lock.locked() for state in self._states)
        return max(pause, BUSY_SECONDS) if is_busy else pause

    async def _look_up(self, four_tuples: list[FourTuple], pace: _Pace) -> dict[FourTuple, KernelSubflow]:
        sockets: dict[FourTuple, KernelSubflow] = {}
        for start in range(0, len(four_tuples), LOOKUP_CHUNK):
            sockets.update(self._sockets.look_up(four_tuples[start : start + LOOKUP_CHUNK]))
            await pace.pause_if_due()
        self.lookups += len(four_tuples)
        return sockets

    @asynccontextmanager
    async def _block_look_ups(self) -> AsyncIterator[None]:
        """Wait for the look-ups of consumers that are not ``by_request``, and give them none within this context."""
        for state in self._states:
            state.looked_up.clear()
            state.awaits_sweep = not state.consumer.by_request
        try:
            for state in self._states:
                if state.awaits_sweep:
                    async with state.lock:
                        pass
            yield
        finally:
            for state in self._states:
                state.awaits_sweep = False

    async def _deliver_all(
        self, sockets: dict[FourTuple, KernelSubflow], pace: _Pace, looked_up: Set[FourTuple] | None = None
    ) -> None:
        """Pass *sockets* to each consumer, as samples of its watched and, after a sweep, its urgent subflows; look up
        those that *sockets* lacks. *looked_up*: the watched subflows, if they were looked up instead of a sweep."""
        now, pause_ratio = time.monotonic(), pace.pause_ratio
        for state in self._states:
            consumer = state.consumer
            pace.end()
            async with state.lock:
                pace.begin()
                pace.pause_ratio = 0.0 if consumer.by_request else pause_ratio  # do not pause: its look-ups wait
                urgent = consumer.urgent() if looked_up is None else ()
                if urgent or consumer.watches_any():
                    watched = consumer.watched()
                    requested = list(watched)
                    if urgent:  # build this set only if needed: with all sockets, it takes long
                        watched_set = watched if isinstance(watched, Set) else frozenset(watched)
                        requested += [each for each in urgent if each not in watched_set]
                    requested = await _exclude(requested, state.looked_up, pace)
                    # A missing subflow may be open: the kernel may have listed its hash bucket before it joined.
                    missing = await _exclude(requested, sockets, pace)
                    if looked_up is not None:
                        missing = await _exclude(missing, looked_up, pace)
                    if missing:
                        sockets.update(await self._look_up(missing, pace))
                    await self._deliver(consumer, Samples(now, sockets, True, requested), pace)
            state.awaits_sweep, pace.pause_ratio = False, pause_ratio

    async def _deliver(self, consumer: Consumer, samples: Samples, pace: _Pace) -> None:
        for outcome in consumer.observe(samples):
            if outcome is not None:
                self._handle_outcome(outcome)
            await pace.pause_if_due()
        await pace.pause_if_due()


async def _exclude(requested: list[FourTuple], excluded: Collection[FourTuple], pace: _Pace) -> list[FourTuple]:
    """Return *requested* without *excluded*, in slices, because ten thousand subflows take milliseconds."""
    if not excluded:
        return requested
    remaining: list[FourTuple] = []
    for start in range(0, len(requested), CHECK_CHUNK):
        remaining += [each for each in requested[start : start + CHECK_CHUNK] if each not in excluded]
        await pace.pause_if_due()
    return remaining


class _Pace:
    """Yields to the event loop after each slice, and sums up the processing time. The garbage collector skips the
    samples, because they have no cycles."""

    def __init__(self, pause_ratio: float = 0.0) -> None:
        """*pause_ratio*: pause after a slice, as a multiple of its work."""
        self.work_seconds, self.pause_ratio = 0.0, pause_ratio
        self.begin()

    async def pause_if_due(self) -> None:
        seconds = time.monotonic() - self._start
        if seconds < SLICE_SECONDS:
            return
        self.end()
        await asyncio.sleep(self.pause_ratio * seconds)
        self.begin()

    def end(self) -> None:
        end_acyclic()
        self.work_seconds += time.monotonic() - self._start

    def begin(self) -> None:
        self._start = time.monotonic()
        begin_acyclic()
