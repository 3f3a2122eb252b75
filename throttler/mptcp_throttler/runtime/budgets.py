# SPDX-License-Identifier: GPL-2.0-or-later
"""Three components: ``Budgets`` keeps the budgets, ``ClosedSockets`` counts the bytes of closed sockets, and ``Grants``
reads the grants file.

``Budgets`` passes the time and the closed sockets to the budget stage. It writes the stage's byte counts to the ledger
in a separate thread, so that a slow disk never blocks the event loop. Counts that could not be written are written with
later counts. The ledger is read again if SQLite's data version shows that another process changed it (``quota reset``).
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
from mptcp_throttler.runtime.logs import ALREADY_AN_EVENT, log_fields
from mptcp_throttler.storage import BOOT_ID, GRANTS, Ledger, read_grants
from mptcp_throttler.telemetry import events as kinds
from mptcp_throttler.telemetry.traffic import Traffic

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
CLOSED_BATCH = 256  # closed sockets counted before yielding to the event loop: about a millisecond
MAX_WRITE_SECONDS = 5.0  # maximum pause between writes while all sockets stay open: the kernel keeps their counters
COUNTERS_PER_SECOND = 4000  # maximum rate of writing socket counters: about 0.5 % of a processor
PRUNE_SECONDS = 86_400.0
CLOCK_STABLE_SECONDS = 6 * 3600.0  # the ledger is pruned only if the clock was not set for this long
RETENTION_SECONDS = 400 * 86_400  # how long usage is kept: more than a year

T = TypeVar("T")


class Budgets(Component):
    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock, self._stage = engine.settings.ledger, clock, engine.budget_stage
        self._decide, self._listed_cookies = engine.decisions.decide, engine.sampler.cookies
        self._thread = ThreadPoolExecutor(1, "ledger", initializer=prefer_worker)
        self._ledger: Ledger | None = None  # used only in the ledger thread; None until a policy has a budget
        self._boot_id = ""
        self._read_periods: Collection[tuple[str, int]] = ()  # periods whose accounts were read
        self._write_lock = asyncio.Lock()
        self._last_write = -math.inf
        self._clock_offset = math.inf  # wall clock minus monotonic clock at the last tick, seconds
        self._next_prune = math.inf  # time of the next pruning of the ledger, monotonic seconds
        self.write_error: str | None = None  # why counts cannot be written now

    async def prepare(self, policy: Policy) -> None:
        """Open the ledger if *policy* needs it, before it comes into force. Raises KernelError if that fails."""
        if not policy.budgets:
            return
        now = self._clock()
        # Advance before reading: when a period begins, the stage drops accounts of budgets that it does not know yet.
        self._decide(self._stage.advance(now, time.monotonic()))
        periods = [(name, period(each, policy.time_zone, now)[0]) for name, each in policy.budgets.items()]
        if self._ledger is None:
            opened = await self._run_in_thread(self._open)
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
        wall_time, sockets = self._clock(), self._stage.sockets
        before, self._clock_offset = self._clock_offset, wall_time - now
        if abs(self._clock_offset - before) > 1.0:
            # The clock was set. A clock that is years ahead until NTP corrects it must not cause pruning.
            self._next_prune = now + CLOCK_STABLE_SECONDS
        self._decide(self._stage.advance(wall_time, now))
        sockets.forget_unlisted(now, self._listed_cookies)
        pause = min(len(sockets.dirty) / COUNTERS_PER_SECOND, MAX_WRITE_SECONDS) - TICK_SECONDS / 2
        if now - self._last_write < pause and not sockets.closed:
            return
        try:
            await self._write(ledger)
            self._last_write = now
            if now >= self._next_prune:
                await self._run_in_thread(ledger.prune, int(wall_time - RETENTION_SECONDS))
                self._next_prune = now + PRUNE_SECONDS
            await self._read_changes(ledger)
            if self.write_error is not None:
                log.info("ledger %s: writing budget usage works again", self._path)
            self.write_error = None
        except KernelError as error:
            if self.write_error is None:
                log.error("%s; budget usage will be written later", error)
            self.write_error = str(error)

    async def close(self) -> None:
        if self._ledger is None:
            return
        try:
            await self._write(self._ledger)
        except KernelError as error:
            raise KernelError(f"{error}; the last budget usage is lost") from error
        finally:
            await self._run_in_thread(self._ledger.close)
            self._ledger = None
            self._thread.shutdown(wait=False)

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count all bytes of a closed socket. Does nothing until a policy has had a budget."""
        if self._ledger is not None:
            self._stage.sockets.socket_closed(cookie, end, acked, received)

    async def _write(self, ledger: Ledger) -> None:
        # If the task is cancelled, the write still finishes, so that its success is known.
        await asyncio.shield(self._write_pending(ledger))

    async def _write_pending(self, ledger: Ledger) -> None:
        """Write pending counts. Raises KernelError; the counts are then kept for a later write."""
        async with self._write_lock:
            usage = self._stage.sockets.take_pending()
            if not any(usage):
                return
            try:
                await self._run_in_thread(ledger.write, self._boot_id, usage)
            except KernelError:
                self._stage.sockets.restore_pending(usage)
                raise

    async def _read_changes(self, ledger: Ledger) -> None:
        """Read accounts again if another process changed them or a period began. Raises KernelError."""
        periods = self._stage.accounts.periods
        if await self._run_in_thread(ledger.changed_by_others):
            self._read_periods = ()
        if periods != self._read_periods:
            await self._read_accounts(ledger, periods)
            self._read_periods = periods

    async def _read_accounts(self, ledger: Ledger, periods: Collection[tuple[str, int]]) -> None:
        async with self._write_lock:  # otherwise counts that are being written would be missing
            self._decide(self._stage.accounts.set_used(periods, await self._run_in_thread(ledger.read_usage, periods)))

    async def _run_in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _open(self) -> tuple[Ledger, dict[int, tuple[int, int]]]:
        """Open the ledger; return the socket counters stored in it. Runs in the ledger thread."""
        ledger = Ledger(self._path)
        try:
            self._boot_id = BOOT_ID.read_text().strip()
            counters = ledger.counters(self._boot_id)
            ledger.changed_by_others()
        except KernelError:
            ledger.close()
            raise
        return ledger, counters


class ClosedSockets(Component):
    """Reports the bytes of each closed socket to *budgets* and *traffic*: samples lack the bytes after the last sample,
    and those of a subflow that exists for less than a sampling interval."""

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
            log.warning("%s; repairing it", problem)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.report()

    async def report(self) -> None:
        try:
            for number, each in enumerate(() if self._meter is None else self._meter.closed(), start=1):
                self._budgets.socket_closed(*each)
                self._traffic.socket_closed(*each)
                if number % CLOSED_BATCH == 0:
                    await asyncio.sleep(0)
        except KernelError as error:
            log.error("%s; the last bytes of closed sockets are counted later", error)
        self._traffic.note_all_reported()

    async def close(self) -> None:
        if self._meter is not None:
            await self.report()
            self._meter.close()
            self._meter = None


class Grants(Component):
    """The grants of one daemon: a new grant comes into force within a second, and ends when it expires."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stage = engine, engine.grants
        self._path = engine.settings.ledger.with_name(GRANTS)
        self._file_state: tuple[int, ...] | None = None  # inode, mtime and size when last read; empty without a file
        self._grants: tuple[Grant, ...] = ()

    async def prepare(self, policy: Policy) -> None:
        if self._file_state is None and await self._read():
            # Existing grants are not logged as new, and take effect together with the policy.
            self._stage.set_grants(self._grants, time.time(), self._engine.tracker.connections)

    async def run(self) -> None:
        """Read the file when it changes, and end expired grants, forever."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            before = self._grants
            if await self._read() or time.time() >= self._stage.next_change:
                for each in set(self._grants).difference(before):
                    self._report(each, each.text())
                await self._apply()

    async def _read(self) -> bool:
        """Read the file if it changed; return whether the grants are new."""
        try:
            status = self._path.stat()
            file_state: tuple[int, ...] = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            file_state = ()  # the file is missing or unreadable; reading it reports the reason
        if file_state == self._file_state:
            return False
        self._file_state = file_state
        try:
            self._grants = await asyncio.to_thread(read_grants, self._path)
        except KernelError as error:
            log.error("%s", error)
            return False
        return True

    async def _apply(self) -> None:
        before = self._stage.in_force
        tokens = self._stage.set_grants(self._grants, time.time(), self._engine.tracker.connections)
        for each in set(before) - set(self._stage.in_force):
            if not self._stage.covers(each.network):  # a longer grant, or one for a larger network, may remain
                self._report(each, "caps apply again")
        if before != self._stage.in_force:
            await self._engine.apply_grants(tokens)

    def _report(self, grant: Grant, text: str) -> None:
        extra = ALREADY_AN_EVENT | log_fields(client=grant.client or None)
        log.info("grant to %s: %s", grant.client or "all", text, extra=extra)
        self._engine.events.record(time.monotonic(), kinds.GRANT, text, grant.client)
