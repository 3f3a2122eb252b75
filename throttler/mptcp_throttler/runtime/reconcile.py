"""Brings the kernel to the planner's desired state, and keeps it there.

The order is the contract's: a class before the entries that name it, and an entry goes before its class; a
packet whose priority named a missing class would pass unshaped. What the kernel refuses is tried again with
growing pauses, after everything else was done; before that the actual state is read back, because a failed batch may
have been done in part.

The periodic comparison with the kernel runs beside all this: it reads while changes go on, leaves out what was changed
meanwhile, and only where something differs are changes stopped until everything was read again and put right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.ports import Netfilter, TrafficControl
from mptcp_throttler.kernel.scheduling import in_turns
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.model import ClassSpec, Target
from mptcp_throttler.shaping.plan import Planner

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.5
"""Seconds. What the kernel takes again is right within two seconds."""
_BATCH = 500
"""Entries for each call: after it comes what became urgent meanwhile, deletions first."""
_CLASS_BATCH = 50
"""Classes for each call."""
_FEW = 16
"""Entries that may be made without giving way to the event loop: well under a millisecond with ipset."""


@dataclass(slots=True)
class ReconcileCounters:
    entries_upserted: int = 0
    entries_deleted: int = 0
    classes_upserted: int = 0
    classes_deleted: int = 0
    failures: int = 0
    repairs: int = 0
    """Objects that a read-back found missing, changed or foreign."""


class Reconciler:
    """One planner against one kernel."""

    def __init__(self, planner: Planner, traffic_control: TrafficControl, netfilter: Netfilter) -> None:
        self.planner = planner
        self.counters = ReconcileCounters()
        self._tc = traffic_control
        self._netfilter = netfilter
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._closed = False
        """Everything of ours was removed: who waited for the lock meanwhile must not put it back."""
        self._refused = False
        """The kernel refused a change: what is there is read again before the next one, which :meth:`run` makes."""
        self._in_hand: set[int | FourTuple] = set()
        """Classes and entries that are being changed at this moment."""
        self._changed: set[int | FourTuple] | None = None
        """Those that were changed since the reading began that is under way."""

    async def prepare(self) -> None:
        """Take the interfaces and make or adopt sets and rules; the planner learns what is there."""
        async with self._lock:
            await self._prepare_and_read_back()
            self._closed = False

    def wake(self) -> None:
        """Say that the desired state may have changed: a few new entries are made at once, the rest by :meth:`run`."""
        self._wake.set()
        entries, classes = self.planner.entries, self.planner.classes
        if self._closed or self._refused or self._lock.locked() or not 0 < len(entries.upserts) <= _FEW:
            return
        # A subflow that joins waits for no turn of the loop; most often its class is there.
        ready = {key: target for key, target in entries.upserts.items() if target.minor not in classes.upserts}
        if not ready:
            return
        try:
            with self._changing(ready):
                if self._netfilter.upsert_at_once(ready):
                    entries.upserted(ready)
                    self.counters.entries_upserted += len(ready)
        except KernelError:
            self._refused = True  # in part, perhaps: run() finds out, tries again and reports it

    async def run(self) -> None:
        """Apply whenever woken, forever."""
        pause = _FIRST_PAUSE
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                refused = await self._start_over() if self._refused else None
                await self.apply()
                if refused is not None:
                    raise refused
                self._refused = False
                pause = _FIRST_PAUSE
            except KernelError as error:
                self.counters.failures += 1
                self._refused = True
                log.error("%s; trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                self._wake.set()

    async def apply(self) -> None:
        """Make all pending changes; none once closed.

        Raises :class:`KernelError` with the first that the kernel refused, after the others were made.
        """
        async with self._lock:
            while not (self._closed or self._settled):
                await self._apply_once()

    async def verify(self) -> None:
        """Compare the kernel with what we put there; where it differs, count that and put it right.

        What was left out is tried again, and has all classes when it is taken: they are found missing.

        Raises :class:`KernelError` where the kernel cannot be put right; :meth:`run` tries again.
        """
        try:
            problems = await self._differences()
        except KernelError as error:
            problems = {str(error): 1}  # what cannot be read is perhaps not there
        if not problems and not self._tc.left_out:
            return
        async with self._lock:
            if self._closed:
                return
            for problem in problems:
                log.warning("%s", problem)
            before = dict(self.planner.classes.actual), dict(self.planner.entries.actual)
            try:
                await self._prepare_and_read_back()
            except KernelError:
                self._refused = True
                self._wake.set()
                raise
            found = self.planner.classes.actual, self.planner.entries.actual
            # What is left out is said once: who watches the counter is to know how long that lasts.
            self.counters.failures += len(self._tc.left_out)
        changed = _count_changes(before[0], found[0], ClassSpec.same_as)
        changed += _count_changes(before[1], found[1], Target.__eq__)
        changed += sum(problems.values())
        if changed:
            self.counters.repairs += changed
            log.warning("%d kernel objects were not as we left them; putting them right", changed)
        await self.apply()

    async def close(self) -> None:
        """Remove everything of ours: first what sends packets to classes, then the classes with their root.

        What fails does not keep the rest from being removed. Raises KernelError with all that failed.
        """
        failures = []
        async with self._lock:
            self._closed = True
            for remove in (self._netfilter.remove, self._tc.restore):
                try:
                    await remove()
                except KernelError as error:
                    failures.append(str(error))
        if failures:
            raise KernelError("; ".join(failures))

    @property
    def _settled(self) -> bool:
        return self._tc.settled and self.planner.classes.settled and self.planner.entries.settled

    async def _apply_once(self) -> None:
        """Make the changes that are pending now; raise the first refusal.

        It returns early where something came to be wanted meanwhile that has to be done first.
        """
        classes, entries = self.planner.classes, self.planner.entries
        refused: list[KernelError] = []  # the first alone: see ``garbage``

        async def made(change: Awaitable[None], changed: Iterable[int | FourTuple] = ()) -> bool:
            """Make *change* to some classes or entries; return whether the kernel took it."""
            try:
                with self._changing(changed):
                    await change
            except KernelError as error:
                if not refused:
                    refused.append(error)
                return False
            return True

        if not self._tc.settled:
            await made(self._tc.settle())
        # Deletions of entries first: they make room in a full set, and nothing depends on them.
        for gone in _batches(entries.deletes, _BATCH):
            if await made(self._netfilter.delete_entries(gone), gone):
                entries.deleted(gone)
                self.counters.entries_deleted += len(gone)
                await asyncio.sleep(0)
        for minors in _batches(classes.upserts, _CLASS_BATCH):
            specs = {minor: classes.upserts[minor] for minor in minors}
            if await made(self._tc.upsert_classes(specs.values()), minors):
                classes.upserted(specs)
                self.counters.classes_upserted += len(specs)
                await asyncio.sleep(0)
        for keys in _batches(entries.upserts, _BATCH):
            # Their class has to be there first.
            batch = {key: entries.upserts[key] for key in keys if entries.upserts[key].minor not in classes.upserts}
            if len(batch) < len(keys) and not refused:
                return  # a class came to be wanted meanwhile
            if not batch or not await made(self._netfilter.upsert_entries(batch), batch):
                continue
            entries.upserted(batch)
            self.counters.entries_upserted += len(batch)
            await asyncio.sleep(0)
            if entries.deletes and not refused:
                return  # by the next round
        if entries.settled:
            for minors in _batches(classes.deletes, _CLASS_BATCH):
                if not await made(self._tc.delete_classes(minors), minors):
                    continue
                classes.deleted(minors)
                self.counters.classes_deleted += len(minors)
                await asyncio.sleep(0)
                if not entries.settled:
                    break
        if refused:
            raise refused.pop()

    @contextmanager
    def _changing(self, changed: Iterable[int | FourTuple]) -> Iterator[None]:
        """Note that classes and entries are changed within, for a reading that is under way or begins meanwhile."""
        self._in_hand = set(changed)
        if self._changed is not None:
            self._changed |= self._in_hand
        try:
            yield
        finally:
            self._in_hand = set()

    async def _differences(self) -> dict[str, int]:
        """Return in words what in the kernel is not as we left it, with a count of what is not an entry or a class."""
        changed = self._changed = set(self._in_hand)
        try:
            wrong, classes = await self._tc.read()
            problems = dict.fromkeys([*wrong, *await self._netfilter.check()], 1)
            if not problems:
                entries = await self._netfilter.read_entries()
                believed = self.planner.classes.actual, self.planner.entries.actual
                if classes is not None and await _differ(believed[0], classes, ClassSpec.same_as, changed):
                    problems["classes differ"] = 0
                if await _differ(believed[1], entries, Target.__eq__, changed):
                    problems["entries differ"] = 0
        finally:
            self._changed = None
        return problems

    async def _prepare_and_read_back(self) -> None:
        await self._tc.prepare()
        await self._netfilter.prepare()
        _, classes = await self._tc.read()
        if classes is None:
            classes = dict(self.planner.classes.actual)
        self.planner.adopt(classes, await self._netfilter.read_entries())

    async def _start_over(self) -> KernelError | None:
        """After a refusal: what our changes stand on may be gone, and a failed batch may have been done in part.

        Return what was refused again.
        """
        async with self._lock:
            if not self._closed:
                try:
                    await self._prepare_and_read_back()
                except KernelError as error:
                    return error
        return None


def _batches(pending: Collection[K], size: int) -> Iterator[list[K]]:
    """Yield what is pending now in batches, leaving out what is not any more when its turn comes."""
    keys = iter(list(pending))
    while batch := list(islice(keys, size)):
        if left := [key for key in batch if key in pending]:
            yield left


async def _differ(
    believed: Mapping[K, V], found: Mapping[K, V], same: Callable[[V, V], bool], changed: Container[object]
) -> bool:
    """Tell whether *found* is not what is *believed* to be in the kernel, but for what is *changed* meanwhile."""
    async for key in in_turns([*believed, *(found.keys() - believed.keys())]):
        if key in changed:
            continue
        if key not in believed or key not in found or not same(believed[key], found[key]):
            return True
    return False


def _count_changes(before: Mapping[K, V], after: Mapping[K, V], same: Callable[[V, V], bool]) -> int:
    kept = before.keys() & after.keys()
    return len(before.keys() ^ after.keys()) + sum(not same(before[key], after[key]) for key in kept)
