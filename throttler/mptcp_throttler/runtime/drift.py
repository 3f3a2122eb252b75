# SPDX-License-Identifier: GPL-2.0-or-later
"""Drift: detects and repairs changes that other programs make to the throttler's objects.

The components compare and repair soon after the kernel reports a change of traffic control, interfaces or nftables
(``kernel.notices``). Changes of ipset, legacy iptables, sysctls, BPF and files are not reported: these are compared
every ``verify_interval``. If another program keeps changing an object, that object waits for the periodic comparison.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.notices import NoticeSource
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.event_loop import wait_at_most

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # pause after a failed comparison
GROUPING_SECONDS = 0.1  # pause between a notice and the comparison, because changes occur in groups
PAUSE_RATIO = 10  # pause after a comparison, as a multiple of how long it took
MAX_PROMPT_REPAIRS, REPAIR_WINDOW_SECONDS = 5, 60.0  # maximum number of prompt repairs of one object in this time
MAX_NAMED = 8  # maximum number of changes that are named in the log at the next comparison


@dataclass(slots=True)
class ChangeCounters:
    noticed: int = 0  # changes by other programs, reported by the kernel, of our objects or their dependencies
    comparisons: int = 0  # number of comparisons that notices caused
    repaired: int = 0  # comparisons, also periodic, that repaired an object


class DriftMonitor:
    """Compares and repairs the objects of *components*. Must be created inside a running event loop."""

    def __init__(self, components: Sequence[Component], interval: float) -> None:
        self.counters = ChangeCounters()
        self._components = components
        self._interval = interval
        self._recent_repairs = Counter[str]()  # repairs by changed object, since ``_recent_since``
        self._recent_since = 0.0  # monotonic seconds
        self._sources: list[NoticeSource] = []
        self._changes: dict[str, str] = {}  # objects changed since the last comparison, with the program's name
        self._next_comparison = math.inf  # time of the comparison for these changes, monotonic seconds
        self._noticed = asyncio.Event()
        self._refused: dict[Component, str] = {}  # why the last comparison could not repair a component; logged once
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def open(self, sources: Iterable[Callable[[], NoticeSource]]) -> None:
        """Listen to *sources*. If one cannot be opened, only periodic comparisons detect its changes."""
        for open_source in sources:
            try:
                source = open_source()
            except KernelError as error:
                log.warning("%s; changes are found within %g s", error, self._interval)
                continue
            self._sources.append(source)
            self._loop.add_reader(source.fileno(), self._read, source)

    def close(self) -> None:
        for source in list(self._sources):
            self._close(source)

    async def verify(self) -> bool:
        """Compare and repair all components; return whether all succeeded. A failed repair does not stop the others."""
        async with self._lock:
            for component in self._components:
                try:
                    await component.verify()
                except KernelError as error:
                    if self._refused.get(component) != str(error):
                        log.error("verify: %s", error)
                    self._refused[component] = str(error)
                else:
                    self._refused.pop(component, None)
            return not self._refused

    async def run(self) -> None:
        """Compare forever; retry failed repairs soon."""
        periodic, paused_until = time.monotonic() + self._interval, 0.0
        while True:
            now = time.monotonic()
            next_time = min(periodic, max(self._next_comparison, paused_until))
            if now < next_time:
                self._noticed.clear()
                await wait_at_most(self._noticed, next_time - now)
                continue
            succeeded = await self._compare()
            ended = time.monotonic()
            pause = PAUSE_RATIO * (ended - now)
            paused_until = ended + min(self._interval, pause)
            if periodic <= now:
                periodic = ended + max(self._interval, pause)
            if not succeeded:
                periodic = min(periodic, max(paused_until, ended + RETRY_SECONDS))

    async def _compare(self) -> bool:
        changes, self._changes, self._next_comparison = self._changes, {}, math.inf
        self.counters.comparisons += bool(changes)
        before = self._count_repairs()
        succeeded = await self.verify()
        if self._count_repairs() != before:
            self.counters.repaired += 1
            self._recent_repairs.update(changes.keys())
            # Other objects may have been changed and repaired, too; the kernel has now reported these changes.
            for source in list(self._sources):
                self._read(source)
            words = ", ".join(f"{author}: {subject}" for subject, author in (changes | self._changes).items())
            log.warning("changed by %s", words or "another program; the kernel does not report which")
        return succeeded

    def _count_repairs(self) -> int:
        return sum(component.repairs for component in self._components)

    def _read(self, source: NoticeSource) -> None:
        try:
            for change in source.read():
                self.counters.noticed += 1
                self._record_change(change.description, change.author)
        except OSError as error:
            log.warning("kernel notices: %s; changes are found within %g s", error.strerror, self._interval)
            self._close(source)

    def _record_change(self, subject: str, author: str) -> None:
        if subject in self._changes or len(self._changes) == MAX_NAMED:
            return
        now, pause = time.monotonic(), GROUPING_SECONDS
        if now - self._recent_since > REPAIR_WINDOW_SECONDS:
            self._recent_repairs.clear()
            self._recent_since = now
        if self._recent_repairs[subject] >= MAX_PROMPT_REPAIRS:
            pause = self._interval
            log.warning("another program keeps changing %s; the next check is in %g s", subject, pause)
        self._changes[subject] = author
        self._next_comparison = min(self._next_comparison, now + pause)
        self._noticed.set()

    def _close(self, source: NoticeSource) -> None:
        self._loop.remove_reader(source.fileno())
        source.close()
        self._sources.remove(source)
