# SPDX-License-Identifier: GPL-2.0-or-later
"""Makes the kernel's state equal to the planner's desired state, and keeps it equal.

A class is created before the entries that name it, and an entry is deleted before its class: a packet whose priority
names a missing class would pass unshaped. If the kernel refuses a change, the other changes are made first; then the
refused change is retried with growing pauses. Before a retry the actual state is read: a batch may fail in part.

The comparison with the kernel runs concurrently, and ignores objects that were changed since it began. If any other
object differs, changes stop until the whole state has been read again and repaired.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.ports import Netfilter, TrafficControl
from mptcp_throttler.kernel.scheduling import in_slices
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import ClassSpec, Target
from mptcp_throttler.shaping.plan import Planner

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_MIN_PAUSE, _MAX_PAUSE = 0.1, 1.5  # seconds between retries: a refused change is repaired within two seconds
_BATCH = 500  # Entries per call. Between two calls, new deletions and new classes are handled first.
_CLASS_BATCH = 50
_MAX_IMMEDIATE = 16  # number of entries added without yielding to the event loop: well under a millisecond with ipset


@dataclass(slots=True)
class ReconcileCounters:
    entries_upserted: int = 0
    entries_deleted: int = 0
    classes_upserted: int = 0
    classes_deleted: int = 0
    failures: int = 0
    repairs: int = 0  # objects that a read-back found missing, changed or foreign


class Reconciler:
    def __init__(self, planner: Planner, traffic_control: TrafficControl, netfilter: Netfilter) -> None:
        self.planner = planner
        self.counters = ReconcileCounters()
        self._tc = traffic_control
        self._netfilter = netfilter
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._is_closed = False  # whether everything was removed: a task that waited for the lock must not recreate it
        self._was_refused = False
        """Whether the kernel refused a change. Then only :meth:`run` makes changes, after it has read the state."""
        self._changing_now: set[int | FourTuple] = set()  # classes and entries that are being changed right now
        self._changed_since_read: set[int | FourTuple] | None = None  # changed since the current comparison began

    async def prepare(self) -> None:
        """Prepare the interfaces, create or adopt sets and rules, and give the actual state to the planner."""
        async with self._lock:
            await self._prepare_and_read_back()
            self._is_closed = False

    def wake(self) -> None:
        """Note that the desired state may have changed: add a few new entries at once; :meth:`run` does the rest."""
        self._wake.set()
        entries, classes = self.planner.entries, self.planner.classes
        is_blocked = self._is_closed or self._was_refused or self._lock.locked()
        if is_blocked or not 0 < len(entries.upserts) <= _MAX_IMMEDIATE:
            return
        # A joining subflow gets its entry without a wait for the event loop; its class usually exists.
        ready = {key: target for key, target in entries.upserts.items() if target.minor not in classes.upserts}
        try:
            with self._mark_changing(ready):
                if ready and self._netfilter.upsert_at_once(ready):
                    entries.record_upserts(ready)
                    self.counters.entries_upserted += len(ready)
        except KernelError:
            self._was_refused = True  # perhaps only a part was refused: run() reads the state, retries and reports it

    async def run(self) -> None:
        pause = _MIN_PAUSE
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                refused = await self._prepare_again() if self._was_refused else None
                await self.apply()
                if refused is not None:
                    raise refused
                self._was_refused = False
                pause = _MIN_PAUSE
            except KernelError as error:
                self.counters.failures += 1
                self._was_refused = True
                log.error("%s; trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
                self._wake.set()

    async def apply(self) -> None:
        """Make all pending changes, unless closed. Raises KernelError, the first refusal, after the other changes."""
        async with self._lock:
            plan = self.planner
            while not self._is_closed and not (self._tc.settled and plan.classes.settled and plan.entries.settled):
                await self._apply_once()

    async def verify(self) -> None:
        """Compare the kernel with the recorded state; count and repair differences. Also retry interfaces that were
        left out: once prepared, they lack their classes, which then differ. Raises KernelError; :meth:`run` retries."""
        try:
            problems = await self._differences()
        except KernelError as error:
            problems = {str(error): 1}  # an object that cannot be read may be missing
        if not problems and not self._tc.left_out:
            return
        async with self._lock:
            if self._is_closed:
                return
            for problem in problems:
                log.warning("%s", problem)
            classes, entries = dict(self.planner.classes.actual), dict(self.planner.entries.actual)
            try:
                await self._prepare_and_read_back()
            except KernelError:
                self._was_refused = True
                self._wake.set()
                raise
            count = sum(problems.values())
            count += await _count_differences(classes, self.planner.classes.actual, ClassSpec.same_as)
            count += await _count_differences(entries, self.planner.entries.actual, Target.__eq__)
            # An interface that is left out is logged only once; the counter grows as long as it stays left out.
            self.counters.failures += len(self._tc.left_out)
        if count:
            self.counters.repairs += count
            log.warning("%d kernel objects were changed or removed; repairing them", count)
        await self.apply()

    async def close(self) -> None:
        """Remove all objects: first the rules that send packets to classes, then the classes with their root qdisc,
        even if the rules could not be removed. Raises KernelError with all failures."""
        failures = []
        async with self._lock:
            self._is_closed = True
            for remove in (self._netfilter.remove, self._tc.restore):
                try:
                    await remove()
                except KernelError as error:
                    failures.append(str(error))
        if failures:
            raise KernelError("; ".join(failures))

    async def _apply_once(self) -> None:
        """Make the pending changes; raise the first refusal. Return early if a new change must be made first."""
        tc, netfilter, counters = self._tc, self._netfilter, self.counters
        classes, entries = self.planner.classes, self.planner.entries
        refused: list[KernelError] = []  # only the first refusal; why in a list: see ``event_loop``

        async def apply(
            change: Awaitable[None], objects: Collection[Any] = (), record: Callable[[Any], None] = lambda objects: None
        ) -> int:
            """Make a change of *objects*, then *record* it; return the number of changed objects, 0 if refused."""
            try:
                with self._mark_changing(objects):
                    await change
            except KernelError as error:
                if not refused:
                    refused.append(error)
                return 0
            record(objects)
            await asyncio.sleep(0)
            return len(objects)

        if not tc.settled:
            await apply(tc.settle())
        # Deletions of entries first: they make room in a full set, and nothing depends on them.
        for keys in _batches(entries.deletes, _BATCH):
            counters.entries_deleted += await apply(netfilter.delete_entries(keys), keys, entries.record_deletes)
        for minors in _batches(classes.upserts, _CLASS_BATCH):
            specs = {minor: classes.upserts[minor] for minor in minors}
            counters.classes_upserted += await apply(tc.upsert_classes(specs.values()), specs, classes.record_upserts)
        for keys in _batches(entries.upserts, _BATCH):
            # The class of an entry must exist before the entry.
            batch = {key: entries.upserts[key] for key in keys if entries.upserts[key].minor not in classes.upserts}
            if len(batch) < len(keys) and not refused:
                return  # the plan has a new class, which must be created first
            if batch:
                counters.entries_upserted += await apply(netfilter.upsert_entries(batch), batch, entries.record_upserts)
            if entries.deletes and not refused:
                return
        for minors in _batches(classes.deletes, _CLASS_BATCH):
            if not entries.settled:
                break
            counters.classes_deleted += await apply(tc.delete_classes(minors), minors, classes.record_deletes)
        if refused:
            raise refused.pop()

    @contextmanager
    def _mark_changing(self, objects: Collection[int | FourTuple]) -> Iterator[None]:
        """Mark classes and entries as being changed, so that a concurrent comparison ignores them."""
        self._changing_now = set(objects)
        if self._changed_since_read is not None:
            self._changed_since_read |= self._changing_now
        try:
            yield
        finally:
            self._changing_now = set()

    async def _differences(self) -> dict[str, int]:
        """Return each difference with its number of objects, or with 0 if :meth:`verify` counts these objects later."""
        changed_meanwhile = self._changed_since_read = set(self._changing_now)
        try:
            tc_problems, classes = await self._tc.read()
            problems = dict.fromkeys([*tc_problems, *await self._netfilter.check()], 1)
            if not problems:
                entries, plan = await self._netfilter.read_entries(), self.planner
                recorded, is_same = plan.classes.actual, ClassSpec.same_as
                if classes is not None and await _count_differences(recorded, classes, is_same, changed_meanwhile):
                    problems["classes differ"] = 0
                if await _count_differences(plan.entries.actual, entries, Target.__eq__, changed_meanwhile):
                    problems["entries differ"] = 0
        finally:
            self._changed_since_read = None
        return problems

    async def _prepare_and_read_back(self) -> None:
        await self._tc.prepare()
        await self._netfilter.prepare()
        _, classes = await self._tc.read()
        if classes is None:
            classes = dict(self.planner.classes.actual)
        self.planner.adopt(classes, await self._netfilter.read_entries())

    async def _prepare_again(self) -> KernelError | None:
        """Prepare again after a refusal, because objects that changes depend on may be missing; return the error."""
        async with self._lock:
            if not self._is_closed:
                try:
                    await self._prepare_and_read_back()
                except KernelError as error:
                    return error
        return None


def _batches(pending: Collection[K], size: int) -> Iterator[list[K]]:
    """Yield the pending keys in batches, without those that are no longer pending when their batch is yielded."""
    keys = iter(list(pending))
    while batch := list(islice(keys, size)):
        if pending_keys := [key for key in batch if key in pending]:
            yield pending_keys


async def _count_differences(
    recorded: Mapping[K, V], actual: Mapping[K, V], is_same: Callable[[V, V], bool], ignored: Container[object] = ()
) -> int:
    """Return how many objects differ between *recorded* and *actual*, without *ignored* objects."""
    count = 0
    async for key in in_slices([*recorded, *(actual.keys() - recorded.keys())]):
        if key not in ignored:
            count += key not in recorded or key not in actual or not is_same(recorded[key], actual[key])
    return count
