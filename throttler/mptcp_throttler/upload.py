"""The other direction: what clients send. A planner and a reconciler of its own, on the IFB device.

It is in the kernel only while the policy has rules for uploads, so that nobody else pays for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from .kernel import netfilter_nftables
from .kernel.ifb import IfbTrafficControl
from .kernel.ports import KernelError
from .mptcp.model import FourTuple, KernelSubflow
from .policy.model import Direction, Policy
from .reconcile import Reconciler
from .settings import Settings
from .shaping.plan import Planner
from .shaping.words import NftTable
from .upload_landing import UploadLander

log = logging.getLogger(__name__)


class UploadLane:
    """What one throttler does to uploads. Use it within :meth:`opened`."""

    def __init__(self, settings: Settings, look: Callable[[FourTuple], KernelSubflow | None]) -> None:
        """*look* finds a subflow's socket."""
        self.planner = Planner(settings.ownership, Direction.UP)
        self._lander = UploadLander(self.planner, look, self.wake)
        self.reconciler: Reconciler | None = None
        """None where this host has no nftables."""
        self.in_force = False
        """Our device and our table are there."""
        self._table = NftTable.upload(settings.ownership, settings.interfaces)
        self._tc = IfbTrafficControl(settings.ownership)
        self._missing = netfilter_nftables.available()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[UploadLane]:
        """Hold what is needed to talk to the kernel. Nothing changes in it, and on leaving nothing of ours is left."""
        if self._missing is not None:
            yield self
            return
        async with self._tc.opened():
            netfilter = netfilter_nftables.NftablesNetfilter(self._table)
            self.reconciler = Reconciler(self.planner, self._tc, netfilter)
            try:
                yield self
            finally:
                try:
                    if self.in_force:
                        await self._remove()
                finally:
                    netfilter.close()

    async def prepare(self, policy: Policy) -> None:
        """Put into the kernel what *policy* needs for uploads, before it comes into force.

        Raises KernelError where it cannot be: then nothing has changed.
        """
        if self.in_force or not policy.acts_on_upload or policy.dry_run:
            return
        if self.reconciler is None:
            raise KernelError(f"a rule is for uploads, which needs nftables: {self._missing}")
        try:
            await self.reconciler.prepare()
        except KernelError:
            await self._forget()
            raise
        self.in_force = True

    async def leave(self, policy: Policy) -> None:
        """Take out of the kernel what *policy*, in force now, does not need, or what a killed daemon left there."""
        if not policy.acts_on_upload or policy.dry_run:
            await self._forget()

    async def verify(self) -> None:
        """Read the kernel back and mend what differs."""
        if self.in_force and self.reconciler is not None:
            await self.reconciler.verify()

    def wake(self) -> None:
        """Say that the plan may have changed."""
        if self.in_force and self.reconciler is not None:
            self._lander.wake()
            self.reconciler.wake()

    async def run(self) -> None:
        """Apply whenever woken, forever."""
        if self.reconciler is not None:
            await asyncio.gather(self.reconciler.run(), self._lander.run())

    async def _forget(self) -> None:
        try:
            await self._remove()
        except KernelError as error:
            # A kernel without the family netdev or IFB has nothing of ours either.
            log.log(logging.ERROR if self.in_force else logging.DEBUG, "%s", error)
        self.in_force = False

    async def _remove(self) -> None:
        if self.reconciler is not None:
            await self.reconciler.close()
            self.planner.adopt({}, {})
