"""Compares everything of ours with what is there: every ``verify_interval``, and soon after somebody else changed it.

The kernel tells of changes to traffic control, interfaces and nftables (``kernel.notices``). What it tells nobody of,
ipset, legacy iptables, sysctls, BPF and files, is glanced at every second, which costs next to nothing. A comparison
itself takes a tenth of a second with ten thousand entries: after it comes a rest ten times as long. Where two programs
want different things of the same object, each repair makes the next one wait longer, up to the interval, so that they
do not fight for ever.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mptcp_throttler.kernel.access import NoticeSource
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.runtime.component import Owner, verify_all
from mptcp_throttler.runtime.waiting import wait_at_most

log = logging.getLogger(__name__)

GLANCE_SECONDS = 1.0
AGAIN_SECONDS = 1.0
"""After a comparison that failed."""
TOGETHER_SECONDS = 0.1
"""Changes come in groups: this long after the first of them is looked."""
REST = 10
"""A comparison that took a second is followed by so many seconds without."""
FREE_REPAIRS, FORGET_SECONDS = 5, 60.0
"""So many repairs of one thing within that time are made at once; each further one waits twice as long as the last."""
MOST_NAMED = 8
"""Changes that are kept until the next comparison. A line names these, and those that were heard during it."""


@dataclass(slots=True)
class ChangeCounters:
    noticed: int = 0
    """Changes by others of what is ours, or of what it stands on."""
    comparisons: int = 0
    """Made because of them."""
    repaired: int = 0
    """Of these, how many found something to put right."""


class Patience:
    """How long to wait before what others changed is looked at. Pure: times are arguments, in seconds."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        # Longer than the pauses themselves take, or these would end by themselves in the midst of a fight.
        self._remembered = max(FORGET_SECONDS, (FREE_REPAIRS + 2) * longest)
        self._looks: dict[str, list[float]] = {}

    def looked(self, things: Iterable[str], now: float) -> None:
        """Say that *things* were put right, or looked at in vain."""
        for thing in things:
            self._looks.setdefault(thing, []).append(now)

    def pause(self, thing: str, now: float) -> float:
        """Return the seconds from the change of *thing* to the comparison."""
        self._looks = {
            key: kept
            for key, looks in self._looks.items()
            if (kept := [each for each in looks if now - each < self._remembered])
        }
        excess = len(self._looks.get(thing, ())) - FREE_REPAIRS
        return TOGETHER_SECONDS if excess < 0 else min(self._longest, max(TOGETHER_SECONDS, float(2**excess)))


class Comparison:
    """Of one daemon. Must be made inside a running event loop."""

    def __init__(
        self,
        owners: Sequence[Owner],
        glances: Mapping[str, Callable[[], bool]],
        interval: float,
    ) -> None:
        """*glances* are at what the kernel tells nobody of, by its name; each tells whether it looks changed."""
        self.counters = ChangeCounters()
        self._owners = owners
        self._glances = glances
        self._interval = interval
        self._patience = Patience(interval)
        self._sources: list[NoticeSource] = []
        self._heard: dict[str, str] = {}
        """What was changed since the last comparison, and by whom, in words."""
        self._due = math.inf
        """When to compare because of that, time.monotonic(); infinite where nothing was changed."""
        self._noticed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def open(self, sources: Iterable[Callable[[], NoticeSource]]) -> None:
        """Listen to *sources*; without one, changes are found by the periodic comparison."""
        for opened in sources:
            try:
                source = opened()
            except KernelError as error:
                log.warning("%s; they are found within %g s", error, self._interval)
                continue
            self._sources.append(source)
            self._loop.add_reader(source.fileno(), self._read, source)

    def close(self) -> None:
        for source in self._sources:
            self._loop.remove_reader(source.fileno())
            source.close()
        self._sources.clear()

    async def verify(self) -> bool:
        """Compare everything and put it right; return whether that could be done."""
        async with self._turn:
            return await verify_all(self._owners)

    async def run(self, afterwards: Callable[[], Awaitable[None]]) -> None:
        """Compare for ever; *afterwards* is done after each periodic comparison.

        What could not be put right is tried again soon.
        """
        periodic = time.monotonic() + self._interval
        rest_until = glance_at = 0.0
        while True:
            now = time.monotonic()
            due = max(self._due, rest_until)
            if due <= now:
                if not await self._after_a_change():
                    periodic = min(periodic, time.monotonic() + AGAIN_SECONDS)
                ended = time.monotonic()
                rest_until = ended + min(self._interval, REST * (ended - now))
            elif periodic <= now:
                done = await self.verify()
                periodic = time.monotonic() + (self._interval if done else min(self._interval, AGAIN_SECONDS))
                await afterwards()
            else:
                self._noticed.clear()
                await wait_at_most(self._noticed, min(GLANCE_SECONDS, due - now, periodic - now))
                if time.monotonic() >= glance_at:
                    self._glance()
                    glance_at = time.monotonic() + GLANCE_SECONDS / 2

    def _repairs(self) -> int:
        return sum(owner.repairs for owner in self._owners)

    async def _after_a_change(self) -> bool:
        heard, self._heard, self._due = self._heard, {}, math.inf
        before = self._repairs()
        self.counters.comparisons += 1
        done = await self.verify()
        repaired = self._repairs() != before
        # A glance that is wrong must not have us compare every second.
        self._patience.looked(heard if repaired else heard.keys() & self._glances.keys(), time.monotonic())
        if repaired:
            self.counters.repaired += 1
            # Upon one change another may be put right that was made meanwhile; by whom, the kernel has said by now.
            for source in list(self._sources):
                self._read(source)
            log.warning("it was changed by %s", _in_words(heard | self._heard))
        return done

    def _hear(self, what: str, who: str) -> None:
        """Note a change, and when to look."""
        if what in self._heard or len(self._heard) == MOST_NAMED:
            return
        now = time.monotonic()
        pause = self._patience.pause(what, now)
        if pause > TOGETHER_SECONDS:
            log.warning("somebody else changes %s again and again; looking in %g s", what, pause)
        self._heard[what] = who
        self._due = min(self._due, now + pause)
        self._noticed.set()

    def _glance(self) -> None:
        """Look at what nobody has been heard to change."""
        for what, looks_changed in self._glances.items():
            if what in self._heard:
                continue
            try:
                changed = looks_changed()
            except (KernelError, OSError):
                changed = True  # what cannot be looked at is perhaps not there
            if changed:
                self._hear(what, "")

    def _read(self, source: NoticeSource) -> None:
        try:
            for change in source.read():
                self.counters.noticed += 1
                self._hear(change.what, change.who)
        except OSError as error:
            log.warning("hear of what others change: %s; it is found within %g s", error.strerror, self._interval)
            self._loop.remove_reader(source.fileno())
            source.close()
            self._sources.remove(source)


def _in_words(heard: Mapping[str, str]) -> str:
    words = [f"{who}: {what}" for what, who in heard.items() if who]
    unnamed = [what for what, who in heard.items() if not who]
    if unnamed:
        words.append(f"somebody else: {', '.join(unnamed)}; the kernel does not tell who")
    return ", ".join(words)
