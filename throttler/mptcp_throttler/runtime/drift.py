# SPDX-License-Identifier: GPL-2.0-or-later
"""Drift: detects and repairs changes that other programs make to the throttler's objects.

The components compare and repair shortly after the kernel reports a change (``kernel.notices``: traffic control,
interfaces, nftables), and every ``verify_interval`` for changes that it does not report: ipset, legacy iptables,
sysctls, BPF, files. If another program keeps changing an object back, that object waits for the periodic comparison.
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
TOGETHER_SECONDS = 0.1  # pause between a notice and the comparison, because changes come in groups
REST = 10  # pause after a comparison, as a multiple of how long it took
FREE_REPAIRS, FORGET_SECONDS = 5, 60.0  # number of prompt repairs of one object in this time
MAX_NAMED = 8  # maximum number of changes that are named in the log at the next comparison


@dataclass(slots=True)
class ChangeCounters:
    noticed: int = 0  # changes by others, reported by the kernel, of our objects or of what they depend on
    comparisons: int = 0  # number of comparisons that notices caused
    repaired: int = 0  # comparisons, including periodic ones, that found something to repair


class DriftMonitor:
    """Compares and repairs for one daemon. Must be created inside a running event loop."""

    def __init__(self, owners: Sequence[Component], interval: float) -> None:
        self.counters = ChangeCounters()
        self._owners = owners
        self._interval = interval
        self._recent = Counter[str]()  # repairs by changed object, since the time below
        self._recent_since = 0.0  # monotonic seconds
        self._sources: list[NoticeSource] = []
        self._heard: dict[str, str] = {}  # since the last comparison: by changed object, who changed it, in words
        self._due = math.inf  # when to compare because of these changes, monotonic seconds; infinite if there are none
        self._noticed = asyncio.Event()
        self._refused: dict[Component, str] = {}  # why the last comparison could not repair a component; logged once
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def open(self, sources: Iterable[Callable[[], NoticeSource]]) -> None:
        """Listen to *sources*. If one cannot be opened, only periodic comparisons detect its changes."""
        for opened in sources:
            try:
                source = opened()
            except KernelError as error:
                log.warning("%s; they are found within %g s", error, self._interval)
                continue
            self._sources.append(source)
            self._loop.add_reader(source.fileno(), self._read, source)

    def close(self) -> None:
        for source in list(self._sources):
            self._close(source)

    async def verify(self) -> bool:
        """Compare and repair all components; return whether all succeeded. A failed repair does not stop the others."""
        async with self._turn:
            for owner in self._owners:
                try:
                    await owner.verify()
                except KernelError as error:
                    if self._refused.get(owner) != str(error):
                        log.error("verify: %s", error)
                    self._refused[owner] = str(error)
                else:
                    self._refused.pop(owner, None)
            return not self._refused

    async def run(self) -> None:
        """Compare forever; retry failed repairs soon."""
        periodic, rest_until = time.monotonic() + self._interval, 0.0
        while True:
            now = time.monotonic()
            due = min(periodic, max(self._due, rest_until))
            if now < due:
                self._noticed.clear()
                await wait_at_most(self._noticed, due - now)
                continue
            done = await self._compare()
            ended = time.monotonic()
            rest = REST * (ended - now)
            rest_until = ended + min(self._interval, rest)
            if periodic <= now:
                periodic = ended + max(self._interval, rest)
            if not done:
                periodic = min(periodic, max(rest_until, ended + RETRY_SECONDS))

    async def _compare(self) -> bool:
        heard, self._heard, self._due = self._heard, {}, math.inf
        self.counters.comparisons += bool(heard)
        before = self._repairs()
        done = await self.verify()
        if self._repairs() != before:
            self.counters.repaired += 1
            self._recent.update(heard.keys())
            # Other objects may have been changed and repaired, too; the kernel has now reported these changes.
            for source in list(self._sources):
                self._read(source)
            words = ", ".join(f"{who}: {what}" for what, who in (heard | self._heard).items())
            log.warning("it was changed by %s", words or "somebody else; the kernel does not tell who")
        return done

    def _repairs(self) -> int:
        return sum(owner.repairs for owner in self._owners)

    def _read(self, source: NoticeSource) -> None:
        try:
            for change in source.read():
                self.counters.noticed += 1
                self._hear(change.description, change.author)
        except OSError as error:
            log.warning("hear of what others change: %s; it is found within %g s", error.strerror, self._interval)
            self._close(source)

    def _hear(self, what: str, who: str) -> None:
        if what in self._heard or len(self._heard) == MAX_NAMED:
            return
        now, pause = time.monotonic(), TOGETHER_SECONDS
        if now - self._recent_since > FORGET_SECONDS:
            self._recent.clear()
            self._recent_since = now
        if self._recent[what] >= FREE_REPAIRS:
            pause = self._interval
            log.warning("somebody else changes %s again and again; looking in %g s", what, pause)
        self._heard[what] = who
        self._due = min(self._due, now + pause)
        self._noticed.set()

    def _close(self, source: NoticeSource) -> None:
        self._loop.remove_reader(source.fileno())
        source.close()
        self._sources.remove(source)
