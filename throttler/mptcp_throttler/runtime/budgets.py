"""The component of budgets: gives the stage the calendar and closed sockets, and writes what it counted to the ledger.

The ledger belongs to one thread, which alone opens, reads and writes it: the disk never stops the event loop. What was
fetched from the stage and could not be written goes back there, and is written with what came since. A ``quota reset``
of another process is noticed by the number that SQLite gives each state of a database; only then it is read.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.scheduling import prefer_worker
from mptcp_throttler.mptcp.model import End
from mptcp_throttler.policy.budget import period
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.stages.budget import BudgetStage
from mptcp_throttler.storage.budget_ledger import BOOT_ID, Ledger, LedgerError

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MAX_WRITE_SECONDS = 5.0
"""Between two writes while all sockets are there: the kernel keeps their counters."""
COUNTERS_PER_SECOND = 4000
"""So many counters of sockets are written in a second at the most: some 0.5 % of a processor."""
PRUNE_SECONDS = 86_400.0
"""Between two prunings."""
SURE_SECONDS = 6 * 3600.0
"""Before a pruning: so long the wall clock must have gone on as the monotonic one. A daemon that is started anew every
day still prunes."""
KEPT_SECONDS = 400 * 86_400
"""How long what was used is kept: longer than a year of months."""

T = TypeVar("T")


class Budgets(Component):
    """One daemon's budgets. *changed* hears whose verdicts are to be made anew; *listed* returns the cookies of all
    sockets that the last sweep found, None where that ended before its argument, monotonic seconds."""

    def __init__(
        self,
        path: Path,
        stage: BudgetStage,
        changed: Callable[[Collection[int]], None],
        listed: Callable[[float], Set[int] | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._clock = clock
        self._stage = stage
        self._changed = changed
        self._listed = listed
        self._thread = ThreadPoolExecutor(1, "ledger", initializer=prefer_worker)
        """Begins with the first call."""
        self._ledger: Ledger | None = None
        """Used in that thread alone; None until a policy has a budget."""
        self._boot = ""
        self._read: Collection[tuple[str, int]] = ()
        """The periods of which accounts were read last."""
        self._writing = asyncio.Lock()
        self._written_at = -math.inf
        self._ahead = math.inf
        """How many seconds the wall clock was ahead of the monotonic one at the last tick."""
        self._prunes_at = math.inf
        """When to prune next, monotonic seconds."""
        self.trouble: str | None = None
        """Why what budgets count cannot be written just now."""

    async def prepare(self, policy: Policy) -> None:
        """Open what *policy* needs, before it comes into force. Raises KernelError where the ledger cannot be used."""
        if not policy.budgets:
            return
        now = self._clock()
        # First, for a period that turns has the stage forget what was read of budgets that it does not have yet.
        self._pass_on(self._stage.advance(now, time.monotonic()))
        periods = [(name, period(each, policy.time_zone, now)[0]) for name, each in policy.budgets.items()]
        try:
            if self._ledger is None:
                opened = await self._call(self._open)
                self._ledger, self._stage.sockets.counters = opened
            await self._write(self._ledger)
            await self._read_accounts(self._ledger, periods)
        except LedgerError as error:
            raise KernelError(str(error)) from error

    async def run(self) -> None:
        """Follow the calendar and write, until cancelled."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            await self.tick(time.monotonic())

    async def tick(self, now: float) -> None:
        """Do what is due at *now*, monotonic seconds."""
        ledger = self._ledger
        if ledger is None:
            return
        wall, sockets = self._clock(), self._stage.sockets
        before, self._ahead = self._ahead, wall - now
        if abs(self._ahead - before) > 1.0:
            # The clock was set: one that is years ahead until the network sets it must not have the ledger pruned.
            self._prunes_at = now + SURE_SECONDS
        self._pass_on(self._stage.advance(wall, now))
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
        except LedgerError as error:
            if self.trouble is None:
                log.error("%s; what budgets count is written later", error)
            self.trouble = str(error)

    async def close(self) -> None:
        """Write for the last time."""
        if self._ledger is None:
            return
        try:
            await self._write(self._ledger)
        except LedgerError as error:
            raise KernelError(f"{error}; what budgets counted last is lost") from error
        finally:
            await self._call(self._ledger.close)
            self._ledger = None
            self._thread.shutdown(wait=False)

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count what a socket has carried in its life; of nobody where no policy has had a budget."""
        if self._ledger is not None:
            self._stage.socket_closed(cookie, end, acked, received)

    async def _write(self, ledger: Ledger) -> None:
        """Write what there is to write. Raises LedgerError; then it is kept."""
        # A write that has begun is not given up with the task that wanted it: whether it succeeded must be known.
        await asyncio.shield(asyncio.ensure_future(self._write_whole(ledger)))

    async def _write_whole(self, ledger: Ledger) -> None:
        async with self._writing:
            usage = self._stage.take_pending()
            if not any(usage):
                return
            try:
                await self._call(ledger.write, self._boot, usage)
            except LedgerError:
                self._stage.put_back(usage)
                raise

    async def _read_changes(self, ledger: Ledger) -> None:
        """Read accounts where somebody else has changed them or a period began. Raises LedgerError."""
        periods = self._stage.periods()
        if await self._call(ledger.changed_by_others):
            self._read = ()
        if periods != self._read:
            await self._read_accounts(ledger, periods)
            self._read = periods

    async def _read_accounts(self, ledger: Ledger, periods: Collection[tuple[str, int]]) -> None:
        async with self._writing:  # what is being written would be missing from it
            self._pass_on(self._stage.set_used(periods, await self._call(ledger.used, periods)))

    def _pass_on(self, tokens: Collection[int]) -> None:
        if tokens:
            self._changed(tokens)

    async def _call(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _open(self) -> tuple[Ledger, dict[int, tuple[int, int]]]:
        """Open the ledger, and return what it knows of sockets. In the thread."""
        ledger = Ledger(self._path)
        try:
            self._boot = BOOT_ID.read_text().strip()
            counters = ledger.counters(self._boot)
            ledger.changed_by_others()
        except LedgerError:
            ledger.close()
            raise
        return ledger, counters
