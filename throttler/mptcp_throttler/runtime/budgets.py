# SPDX-License-Identifier: GPL-2.0-or-later
"""The components of budgets and grants: one meters sockets until they close, one keeps the budgets, and one follows the
file of grants.

The component of budgets gives the budget stage the calendar and the closed sockets, and writes the stage's counts to
the ledger, in one thread, so the disk never stops the event loop. Counts that could not be written are written with
later counts. The ledger is read again if SQLite's number of its state shows that another process changed it (``quota
reset``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.bpf import SocketMeter
from mptcp_throttler.kernel.scheduling import prefer_worker
from mptcp_throttler.mptcp.model import End
from mptcp_throttler.policy.budget import Grant, period
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.engine import Engine
from mptcp_throttler.runtime.logs import ALREADY_AN_EVENT, about
from mptcp_throttler.storage import BOOT_ID, GRANTS, Ledger, read_grants
from mptcp_throttler.telemetry import events as kinds
from mptcp_throttler.telemetry.traffic import Traffic

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
CLOSED_AT_ONCE = 256  # closed sockets counted before yielding to the event loop: about a millisecond
MAX_WRITE_SECONDS = 5.0  # maximum pause between two writes while no socket has closed: the kernel keeps their counters
COUNTERS_PER_SECOND = 4000  # maximum rate of writing socket counters: about 0.5 % of a processor
PRUNE_SECONDS = 86_400.0
SURE_SECONDS = 6 * 3600.0  # how long the wall clock must not have been set before the ledger is pruned; below a day
KEPT_SECONDS = 400 * 86_400  # how long usage is kept: more than a year of months

T = TypeVar("T")


class Budgets(Component):
    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock, self._stage = engine.settings.ledger, clock, engine.budget_stage
        self._changed, self._listed = engine.decisions.decide, engine.sampler.cookies
        self._thread = ThreadPoolExecutor(1, "ledger", initializer=prefer_worker)
        self._ledger: Ledger | None = None  # used only in the ledger thread; None until a policy has a budget
        self._boot = ""
        self._read: Collection[tuple[str, int]] = ()
        self._writing = asyncio.Lock()
        self._written_at = -math.inf
        self._ahead = math.inf  # how many seconds the wall clock was ahead of the monotonic one at the last tick
        self._prunes_at = math.inf  # when the ledger is pruned next, monotonic seconds
        self.trouble: str | None = None  # why counts cannot be written at present

    async def prepare(self, policy: Policy) -> None:
        """Open what *policy* needs, before it comes into force. Raises KernelError if the ledger cannot be used."""
        if not policy.budgets:
            return
        now = self._clock()
        # First: when a period begins, the stage forgets accounts that were read for budgets that it does not have yet.
        self._changed(self._stage.advance(now, time.monotonic()))
        periods = [(name, period(each, policy.time_zone, now)[0]) for name, each in policy.budgets.items()]
        if self._ledger is None:
            opened = await self._call(self._open)
            self._ledger, self._stage.sockets.counters = opened
        await self._write(self._ledger)
        await self._read_accounts(self._ledger, periods)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tick(time.monotonic())

    async def tick(self, now: float) -> None:
        ledger = self._ledger
        if ledger is None:
            return
        wall, sockets = self._clock(), self._stage.sockets
        before, self._ahead = self._ahead, wall - now
        if abs(self._ahead - before) > 1.0:
            # The clock was set. A clock that is years ahead until NTP corrects it must not cause pruning.
            self._prunes_at = now + SURE_SECONDS
        self._changed(self._stage.advance(wall, now))
        sockets.forget_unlisted(now, self._listed)
        pause = min(len(sockets.dirty) / COUNTERS_PER_SECOND, MAX_WRITE_SECONDS) - TICK_SECONDS / 2
        if now - self._written_at < pause and not sockets.closed:
            return
        try:
            await self._write(ledger)
            self._written_at = now
            if now >= self._prunes_at:
                await self._call(ledger.prune, int(wall - KEPT_SECONDS))
                self._prunes_at = now + PRUNE_SECONDS
            await self._read_changes(ledger)
            if self.trouble is not None:
                log.info("ledger %s: what budgets count is written again", self._path)
            self.trouble = None
        except KernelError as error:
            if self.trouble is None:
                log.error("%s; what budgets count is written later", error)
            self.trouble = str(error)

    async def close(self) -> None:
        if self._ledger is None:
            return
        try:
            await self._write(self._ledger)
        except KernelError as error:
            raise KernelError(f"{error}; what budgets counted last is lost") from error
        finally:
            await self._call(self._ledger.close)
            self._ledger = None
            self._thread.shutdown(wait=False)

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count the bytes that a socket carried in its life. Does nothing until a policy has had a budget."""
        if self._ledger is not None:
            self._stage.sockets.socket_closed(cookie, end, acked, received)

    async def _write(self, ledger: Ledger) -> None:
        # If the task is cancelled, the write still finishes, so that its success is known.
        await asyncio.shield(self._write_whole(ledger))

    async def _write_whole(self, ledger: Ledger) -> None:
        """Write pending counts. Raises KernelError; the counts are then kept for a later write."""
        async with self._writing:
            usage = self._stage.sockets.take_pending()
            if not any(usage):
                return
            try:
                await self._call(ledger.write, self._boot, usage)
            except KernelError:
                self._stage.sockets.put_back(usage)
                raise

    async def _read_changes(self, ledger: Ledger) -> None:
        """Read accounts again if another process changed them or a period began. Raises KernelError."""
        periods = self._stage.accounts.periods
        if await self._call(ledger.changed_by_others):
            self._read = ()
        if periods != self._read:
            await self._read_accounts(ledger, periods)
            self._read = periods

    async def _read_accounts(self, ledger: Ledger, periods: Collection[tuple[str, int]]) -> None:
        async with self._writing:  # otherwise counts that are being written would be missing
            self._changed(self._stage.accounts.set_used(periods, await self._call(ledger.read_usage, periods)))

    async def _call(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _open(self) -> tuple[Ledger, dict[int, tuple[int, int]]]:
        """Open the ledger; return the socket counters stored in it. Runs in the ledger thread."""
        ledger = Ledger(self._path)
        try:
            self._boot = BOOT_ID.read_text().strip()
            counters = ledger.counters(self._boot)
            ledger.changed_by_others()
        except KernelError:
            ledger.close()
            raise
        return ledger, counters


class ClosedSockets(Component):
    """Reports the bytes that each socket carried in its life to *budgets* and *traffic*: samples lack the bytes after
    the last sample, and those of a subflow that lives shorter than a sampling interval."""

    def __init__(self, open_meter: Callable[[], SocketMeter | None], budgets: Budgets, traffic: Traffic) -> None:
        self._open_meter, self._budgets, self._traffic = open_meter, budgets, traffic
        self._meter: SocketMeter | None = None

    @property
    def are_counted(self) -> bool:
        return self._meter is not None

    async def prepare(self, policy: Policy) -> None:
        """Meter sockets that are accepted from now on, under any *policy*."""
        if self._meter is None:
            self._meter = self._open_meter()

    async def verify(self) -> None:
        for problem in self._meter.check() if self._meter is not None else ():
            self.repairs += 1
            log.warning("%s; putting it right", problem)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tell()

    async def tell(self) -> None:
        try:
            for number, each in enumerate(() if self._meter is None else self._meter.closed(), start=1):
                self._budgets.socket_closed(*each)
                self._traffic.socket_closed(*each)
                if number % CLOSED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        except KernelError as error:
            log.error("%s; what sockets carried last is counted later", error)
        self._traffic.closed_told()

    async def close(self) -> None:
        if self._meter is not None:
            await self.tell()
            self._meter.close()
            self._meter = None


class Grants(Component):
    """The grants of one daemon: a new grant comes into force within a second, and ends by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stage = engine, engine.grants
        self._path = engine.settings.ledger.with_name(GRANTS)
        self._file: tuple[int, ...] | None = None  # inode, mtime and size when last read; empty without a file
        self._grants: tuple[Grant, ...] = ()

    async def prepare(self, policy: Policy) -> None:
        if self._file is None and await self._read():
            # These are not logged as new, and decided together with the policy.
            self._stage.set_grants(self._grants, time.time(), self._engine.tracker.connections)

    async def run(self) -> None:
        """Read the file when it changes, and end expired grants, forever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            before = self._grants
            if await self._read() or time.time() >= self._stage.next_change:
                for each in set(self._grants).difference(before):
                    self._tell(each, each.text())
                await self._take()

    async def _read(self) -> bool:
        """Read the file if it changed; return whether the grants are new."""
        try:
            found = self._path.stat()
            file: tuple[int, ...] = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            file = ()  # the file is missing or unreadable; reading it reports which
        if file == self._file:
            return False
        self._file = file
        try:
            self._grants = await asyncio.to_thread(read_grants, self._path)
        except KernelError as error:
            log.error("%s", error)
            return False
        return True

    async def _take(self) -> None:
        before = self._stage.in_force
        tokens = self._stage.set_grants(self._grants, time.time(), self._engine.tracker.connections)
        for each in set(before) - set(self._stage.in_force):
            if not self._stage.covers(each.network):  # a longer grant, or one for a larger network, may still hold
                self._tell(each, "caps again")
        if before != self._stage.in_force:
            await self._engine.follow_grants(tokens)

    def _tell(self, grant: Grant, text: str) -> None:
        log.info(
            "grant to %s: %s", grant.client or "all", text, extra=ALREADY_AN_EVENT | about(client=grant.client or None)
        )
        self._engine.events.about(time.monotonic(), kinds.GRANT, text, grant.client)
