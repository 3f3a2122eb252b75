# SPDX-License-Identifier: GPL-2.0-or-later
"""Components that shape one direction each: a planner, and a reconciler that applies the plan to the kernel.

*Downloads*: HTB on the interfaces, netfilter on egress. *Uploads*, only while the policy has rules for them: HTB on an
IFB device, nftables at ingress. *Plain TCP*: an nftables table that puts packets into the classes of downloads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, closing

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import KernelAccess
from mptcp_throttler.kernel.netfilter.nftables import LibNftables
from mptcp_throttler.kernel.ports import Netfilter
from mptcp_throttler.kernel.tc.egress import HtbTrafficControl
from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.reconcile import Reconciler
from mptcp_throttler.runtime.tunnels import Tunnels
from mptcp_throttler.shaping.commands import plain_tcp_table
from mptcp_throttler.shaping.model import PLAIN_TCP_TABLE, gso_limit
from mptcp_throttler.shaping.onset.uploads import MEASURE_SECONDS, STEP_SECONDS, UploadOnsets
from mptcp_throttler.shaping.plan import Planner, plain_tcp_caps
from mptcp_throttler.stages.stage import Consumer, Samples

log = logging.getLogger(__name__)

_PLAIN_TCP = f"inet {PLAIN_TCP_TABLE}"
_REMOVE_PLAIN_TCP = f"add table {_PLAIN_TCP}\ndelete table {_PLAIN_TCP}\n"


class Downloads(Component):
    """Shapes traffic to the clients."""

    def __init__(self, settings: Settings, kernel: KernelAccess, tunnels: Tunnels) -> None:
        self.planner = Planner(settings.ownership)
        self._tunnels = tunnels
        tunnels.classes = self.planner.classes.desired
        self.backend: str
        self._netfilter: Netfilter
        self.reconciler: Reconciler
        self._settings = settings
        self._kernel = kernel
        self._tc: HtbTrafficControl | None = None

    async def prepare(self, policy: Policy) -> None:
        """Install the qdiscs on the interfaces, or adopt those that a killed daemon left there."""
        if self._tc is not None:
            return
        tc = self._kernel.traffic_control(self._settings)
        self.backend, self._netfilter = self._kernel.netfilter(self._settings)
        self.reconciler = Reconciler(self.planner, tc, self._tunnels.wrap_netfilter(self._netfilter))
        self._tc = tc
        await self.reconciler.prepare()

    async def commit(self, policy: Policy) -> None:
        """Limit the GSO size of the interfaces, as the tightest cap of *policy* needs."""
        assert self._tc is not None
        self._tc.set_gso_limit(self._gso_limit(policy))
        self.reconciler.wake()

    async def verify(self) -> None:
        try:
            await self.reconciler.verify()
        finally:
            self.repairs = self.reconciler.counters.repairs

    @property
    def left_out(self) -> Collection[str]:
        """Interfaces that are not shaped, because they have a foreign root qdisc that could not be restored."""
        return () if self._tc is None else self._tc.left_out

    async def run(self) -> None:
        await self.reconciler.run()

    async def close(self) -> None:
        if self._tc is None:
            return
        with closing(self._netfilter):
            if self._tc.prepared:  # otherwise no interface was changed, and the caps of a killed daemon stay
                await self.reconciler.close()

    def _gso_limit(self, policy: Policy) -> Callable[[int], int]:
        setting = self._settings.gso_max_size
        if setting == "keep" or not policy.rules:
            return lambda before: before
        if setting == "auto":
            return lambda before: gso_limit(policy, before)
        return lambda before: min(int(setting), before)


class Uploads(Component, Consumer):
    """Shapes traffic from the clients. Also a consumer of samples."""

    by_request = True
    interval, period = MEASURE_SECONDS, float("inf")

    def __init__(self, settings: Settings, kernel: KernelAccess, connections: Mapping[int, Connection]) -> None:
        self.planner = Planner(settings.ownership, Direction.UP)
        self.reconciler: Reconciler | None = None
        self.is_installed = False  # whether the throttler's IFB device and nftables table exist
        self._removal_failed = False  # whether device and table still exist, because the kernel refused to remove them
        self._may_have_leftovers = False  # whether a preparation failed, and the removal of its objects failed as well
        self._settings = settings
        self._kernel = kernel
        self._connections = connections
        self._onsets = UploadOnsets(self.planner, self._subflows)
        self._stack = AsyncExitStack()
        self._wake = asyncio.Event()

    async def prepare(self, policy: Policy) -> None:
        if self.is_installed or not policy.acts_on_upload:
            return
        reconciler = await self._open()
        # Clear the flags: otherwise :meth:`verify` would remove the device and table that are being created.
        removal_failed, self._removal_failed, self._may_have_leftovers = self._removal_failed, False, False
        try:
            await reconciler.prepare()
        except BaseException:  # also a cancellation: a stop must remove everything as well
            self._removal_failed, self._may_have_leftovers = removal_failed, True
            await self._remove()
            raise
        self.is_installed = True

    async def commit(self, policy: Policy) -> None:
        if not policy.acts_on_upload:
            await self._remove()

    roll_back = commit

    async def remove_leftovers(self) -> bool:
        """Remove a killed daemon's device and table if no rule needs them; return whether this host supports them."""
        if self.is_installed or self._kernel.upload_missing() is not None:
            return False
        await self._open()
        await self._remove()
        return True

    async def verify(self) -> None:
        if self.is_installed and self.reconciler is not None:
            try:
                await self.reconciler.verify()
            finally:
                self.repairs = self.reconciler.counters.repairs
        elif self._removal_failed:
            await self._remove_all()
        elif self._may_have_leftovers:
            await self._remove()

    def wake(self) -> None:
        if self.is_installed and self.reconciler is not None:
            self._wake.set()
            self.reconciler.wake()

    async def run(self) -> None:
        await self._wake.wait()
        assert self.reconciler is not None, "woken before any policy for uploads"
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reconciler.run())
            while True:
                self._wake.clear()
                for plan_changed in self._onsets.step(time.monotonic()):
                    if plan_changed:
                        self.reconciler.wake()
                    await asyncio.sleep(0)
                await asyncio.sleep(STEP_SECONDS)
                if not self._onsets.busy:
                    await self._wake.wait()

    async def close(self) -> None:
        async with self._stack:
            if self.is_installed or self._removal_failed:
                await self._remove_all()
                self.is_installed = False
            elif self._may_have_leftovers:
                await self._remove()

    # Consumer of samples. If a subflow cannot be sampled, ``step`` caps it after some seconds.

    def urgent(self) -> Collection[FourTuple]:
        return self._onsets.urgent()

    def observe(self, samples: Samples) -> Iterator[None]:
        self._onsets.observe(samples.requested, samples.sockets, samples.time)
        yield

    def _subflows(self, token: int) -> list[FourTuple]:
        connection = self._connections.get(token)
        return [] if connection is None else [each.four_tuple for each in connection.subflows]

    async def _open(self) -> Reconciler:
        if self.reconciler is None:
            missing = self._kernel.upload_missing()
            if missing is not None:
                raise KernelError(f"a rule is for uploads, which needs nftables: {missing}")
            tc = self._kernel.upload_traffic_control(self._settings)
            netfilter = self._kernel.upload_netfilter(self._settings)
            self._stack.callback(netfilter.close)
            self.reconciler = Reconciler(self.planner, tc, netfilter)
        return self.reconciler

    async def _remove(self) -> None:
        try:
            await self._remove_all()
        except KernelError as error:
            # A kernel without the netdev family or IFB cannot have these objects; otherwise verify() tries again.
            self._removal_failed = self._removal_failed or self.is_installed
            log.log(logging.ERROR if self._removal_failed else logging.DEBUG, "%s", error)
        self.is_installed = False

    async def _remove_all(self) -> None:
        if self.reconciler is not None:
            await self.reconciler.close()
            self.planner.adopt({}, {})
        self._removal_failed = self._may_have_leftovers = False


class PlainTcpCaps(Component):
    """Puts plain TCP into the classes of rules with ``plain_tcp: cap``, by one nftables table, whatever the backend is.

    The table matches packets by addresses, interface and the lack of an MPTCP option. It is recreated, in one
    transaction, with each policy.
    """

    def __init__(self, settings: Settings, kernel: KernelAccess, planner: Planner) -> None:
        """*planner* is the planner of downloads."""
        self._settings, self._kernel, self._planner = settings, kernel, planner
        self._nft: LibNftables | None = None
        self._commands = ""  # nft(8) commands that create the table; empty if the policy needs none
        self._table: str | None = ""  # the table as nftables lists it; empty if there is none, None if unknown
        self._lock = asyncio.Lock()

    async def prepare(self, policy: Policy) -> None:
        if policy.caps_plain_tcp:
            missing = self._kernel.upload_missing()
            if missing is not None:
                raise KernelError(f"a rule caps plain TCP, which needs nftables: {missing}")

    async def commit(self, policy: Policy) -> None:
        caps = list(plain_tcp_caps(policy, self._planner))
        async with self._lock:
            self._commands = "\n".join(plain_tcp_table(caps, self._settings.ownership))
            await self._apply()

    async def verify(self) -> None:
        async with self._lock:
            if self._table is None:  # the kernel refused the last change of the table
                await self._apply()
            elif self._commands and await self._list() != self._table:
                log.warning("nftables table %s was changed; restoring it", PLAIN_TCP_TABLE)
                self.repairs += 1
                await self._apply()

    async def close(self) -> None:
        try:
            async with self._lock:
                self._commands = ""
                await self._apply()
        finally:
            if self._nft is not None:
                self._nft.close()

    async def remove_leftovers(self) -> bool:
        """Remove the table of a killed daemon; return whether there was one. Raises KernelError."""
        if self._kernel.upload_missing() is not None or not await self._list():
            return False
        self._table = None
        await self._apply()
        return True

    async def _apply(self) -> None:
        """Create or remove the table. After a refusal or interruption, :meth:`verify` and :meth:`close` retry."""
        if self._commands or self._table != "":
            self._table = None
            await self._run(_REMOVE_PLAIN_TCP + self._commands, "create" if self._commands else "remove")
            self._table = await self._list() if self._commands else ""

    async def _list(self) -> str:
        try:
            return await self._run(f"list table {_PLAIN_TCP}", "list")
        except KernelError:
            return ""

    async def _run(self, commands: str, verb: str) -> str:
        self._nft = self._nft or self._kernel.nftables()
        return await asyncio.to_thread(self._nft.run, commands, f"{verb} the nftables table {PLAIN_TCP_TABLE}")
