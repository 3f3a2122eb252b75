"""Brings the kernel to the planner's desired state, and keeps it there.

The order is the contract's: a class before the entries that name it, and an entry goes before its class; a
packet whose priority named a missing class would pass unshaped. What the kernel refuses is tried again with
growing pauses; before that the actual state is read back, because a failed batch may have been done in part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from .kernel.ports import KernelError, Netfilter, TrafficControl
from .shaping.model import ClassSpec, Target
from .shaping.plan import Planner

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_BATCH = 512
"""Entries for each call: between batches the observers get their turn."""


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

    async def prepare(self) -> None:
        """Take the interfaces and make or adopt sets and rules; the planner learns what is there."""
        async with self._lock:
            await self._prepare_and_read_back()

    def wake(self) -> None:
        """Say that the desired state may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Apply whenever woken, forever."""
        pause = _FIRST_PAUSE
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.apply()
                pause = _FIRST_PAUSE
            except KernelError as error:
                self.counters.failures += 1
                log.error("%s; trying again in %.1f s", error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                await self._start_over()
                self._wake.set()

    async def apply(self) -> None:
        """Make all pending changes. Raises :class:`KernelError` at the first that the kernel refuses."""
        async with self._lock:
            while not (self.planner.classes.settled and self.planner.entries.settled):
                await self._apply_once()

    async def verify(self) -> None:
        """Read the kernel back, count what differs from what we put there, and mend it."""
        async with self._lock:
            left = dict(self.planner.classes.actual), dict(self.planner.entries.actual)
            await self._prepare_and_read_back()
            found = self.planner.classes.actual, self.planner.entries.actual
        changed = _count_changes(left[0], found[0], ClassSpec.same_as) + _count_changes(
            left[1], found[1], Target.__eq__
        )
        if changed:
            self.counters.repairs += changed
            log.warning("%d kernel objects were not as we left them; mending", changed)
        await self.apply()

    async def close(self) -> None:
        """Remove everything of ours: first what sends packets to classes, then the classes with their root.

        What fails does not keep the rest from being removed. Raises KernelError with all that failed.
        """
        failures = []
        async with self._lock:
            for remove in (self._netfilter.remove, self._tc.restore):
                try:
                    await remove()
                except KernelError as error:
                    failures.append(str(error))
        if failures:
            raise KernelError("; ".join(failures))

    async def _apply_once(self) -> None:
        classes, entries = self.planner.classes, self.planner.entries
        # Deletions of entries first: they make room in a full set, and nothing depends on them.
        while entries.deletes:
            gone = list(entries.deletes)[:_BATCH]
            await self._netfilter.delete_entries(gone)
            entries.deleted(gone)
            self.counters.entries_deleted += len(gone)
            await asyncio.sleep(0)
        if classes.upserts:
            upserts = dict(classes.upserts)
            await self._tc.upsert_classes(upserts.values())
            classes.upserted(upserts)
            self.counters.classes_upserted += len(upserts)
        while entries.upserts:
            batch = dict(list(entries.upserts.items())[:_BATCH])
            if classes.upserts.keys() & {target.minor for target in batch.values()}:
                return  # a class came to be wanted meanwhile: it has to be there first
            await self._netfilter.upsert_entries(batch)
            entries.upserted(batch)
            self.counters.entries_upserted += len(batch)
            await asyncio.sleep(0)
            if entries.deletes:
                return  # by the next round
        if classes.deletes and entries.settled:
            gone_classes = list(classes.deletes)
            await self._tc.delete_classes(gone_classes)
            classes.deleted(gone_classes)
            self.counters.classes_deleted += len(gone_classes)

    async def _prepare_and_read_back(self) -> None:
        await self._tc.prepare()
        await self._netfilter.prepare()
        self.planner.adopt(await self._tc.read_classes(), await self._netfilter.read_entries())

    async def _start_over(self) -> None:
        """After a refusal: what our changes stand on may be gone, and a failed batch may have been done in part."""
        async with self._lock:
            try:
                await self._prepare_and_read_back()
            except KernelError as error:
                log.error("%s", error)


def _count_changes(before: Mapping[K, V], after: Mapping[K, V], same: Callable[[V, V], bool]) -> int:
    kept = before.keys() & after.keys()
    return len(before.keys() ^ after.keys()) + sum(not same(before[key], after[key]) for key in kept)
