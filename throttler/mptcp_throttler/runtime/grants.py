# SPDX-License-Identifier: GPL-2.0-or-later
"""Follows the file of grants."""

from __future__ import annotations

import asyncio
import logging
import time

from mptcp_throttler.policy.budget import Grant
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.engine import Engine
from mptcp_throttler.runtime.logs import TOLD, about
from mptcp_throttler.storage import GRANTS, GrantsError, read_grants

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0


class Grants(Component):
    """The grants of one daemon: a new one comes into force within a second, and ends by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stage = engine, engine.grants
        self._path = engine.settings.ledger.with_name(GRANTS)
        self._file: tuple[int, ...] | None = None
        """Inode, mtime and size of the file when last read; empty if there is no file, None before the first read."""
        self._grants: tuple[Grant, ...] = ()

    async def prepare(self, policy: Policy) -> None:
        if self._file is None:
            await self._read()

    async def run(self) -> None:
        """Read the file when it changes, and end expired grants, forever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._read()
            if time.time() >= self._stage.next_change:
                await self._take(self._grants)

    async def _read(self) -> None:
        try:
            found = self._path.stat()
            file: tuple[int, ...] = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            file = ()  # missing or unreadable; reading it reports which
        if file == self._file:
            return
        is_first, self._file = self._file is None, file
        try:
            fresh = await asyncio.to_thread(read_grants, self._path)
        except GrantsError as error:
            log.error("%s", error)
            return
        if is_first:  # not logged as new; at the start, the grants in force are decided together with the policy
            self._grants = fresh
            self._stage.set_grants(fresh, time.time(), self._engine.tracker.connections)
            return
        for each in set(fresh) - set(self._grants):
            self._tell(each, each.words())
        await self._take(fresh)

    async def _take(self, fresh: tuple[Grant, ...]) -> None:
        before, self._grants = self._stage.in_force, fresh
        tokens = self._stage.set_grants(fresh, time.time(), self._engine.tracker.connections)
        if before == self._stage.in_force:
            return
        for each in set(before) - set(self._stage.in_force):
            if not self._stage.covers(each.network):  # a longer grant, or one for a larger network, may still hold
                self._tell(each, "caps again")
        await self._engine.follow_grants(tokens)

    def _tell(self, grant: Grant, text: str) -> None:
        log.info("grant to %s: %s", grant.client or "all", text, extra=TOLD | about(client=grant.client or None))
        self._engine.events.grant(time.monotonic(), grant.client, text)
