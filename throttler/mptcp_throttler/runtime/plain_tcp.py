"""Plain TCP in the classes of rules with ``plain_tcp: cap``: one nftables table, whatever the backend is.

The throttler knows no plain TCP connections; the table matches them by addresses, interface and the lack of an MPTCP
option. It is made again, in one transaction, with each policy.
"""

from __future__ import annotations

import asyncio
import logging

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import KernelAccess
from mptcp_throttler.kernel.netfilter.nftables import LibNftables
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.shaping.commands import plain_tcp_table
from mptcp_throttler.shaping.model import PLAIN_TCP_TABLE
from mptcp_throttler.shaping.plan import Planner, plain_tcp_caps

log = logging.getLogger(__name__)
_TABLE = f"inet {PLAIN_TCP_TABLE}"
_REMOVE = f"add table {_TABLE}\ndelete table {_TABLE}\n"


class PlainTcp(Component):
    """The table of one daemon."""

    def __init__(self, settings: Settings, kernel: KernelAccess, planner: Planner) -> None:
        """*planner* is that of downloads."""
        self._settings, self._kernel, self._planner = settings, kernel, planner
        self._nft: LibNftables | None = None
        self._wanted = ""
        self._made: str | None = ""
        """The table as nftables lists it, empty without one; None while that is not known."""
        self._repairs = 0
        self._changing = asyncio.Lock()

    async def prepare(self, policy: Policy) -> None:
        if policy.enforced.caps_plain_tcp:
            missing = self._kernel.upload_missing()
            if missing is not None:
                raise KernelError(f"a rule caps plain TCP, which needs nftables: {missing}")

    async def commit(self, policy: Policy) -> None:
        caps = list(plain_tcp_caps(policy.enforced, self._planner))
        async with self._changing:
            self._wanted = "\n".join(plain_tcp_table(caps, self._settings.ownership))
            await self._make()

    async def verify(self) -> None:
        async with self._changing:
            if self._made is None:  # what was to be made, or removed, was refused
                await self._make()
            elif self._wanted and await self._listed() != self._made:
                log.warning("nftables table %s is not as it was made: made anew", PLAIN_TCP_TABLE)
                self._repairs += 1
                await self._make()

    @property
    def repairs(self) -> int:
        return self._repairs

    async def close(self) -> None:
        try:
            async with self._changing:
                self._wanted = ""
                await self._make()
        finally:
            if self._nft is not None:
                self._nft.close()

    async def remove_what_was_left(self) -> bool:
        """Remove what a killed daemon left; return whether there was anything. Raises KernelError."""
        if self._kernel.upload_missing() is not None or not await self._listed():
            return False
        self._made = None
        await self._make()
        return True

    async def _make(self) -> None:
        """Make the table, or remove it. Refused or interrupted, it is tried again by :meth:`verify` and the end."""
        if self._wanted or self._made != "":
            self._made = None
            await self._run(_REMOVE + self._wanted, "make" if self._wanted else "remove")
            self._made = await self._listed() if self._wanted else ""

    async def _listed(self) -> str:
        try:
            return await self._run(f"list table {_TABLE}", "list")
        except KernelError:
            return ""

    async def _run(self, commands: str, verb: str) -> str:
        self._nft = self._nft or self._kernel.nftables()
        return await asyncio.to_thread(self._nft.run, commands, f"{verb} the nftables table {PLAIN_TCP_TABLE}")
