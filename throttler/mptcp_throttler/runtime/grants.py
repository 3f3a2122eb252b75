"""Follows the file of grants: a new grant comes into force within a second, and ends by itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path

from mptcp_throttler.mptcp.model import Connection
from mptcp_throttler.policy.grants import Grant
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.logs import TOLD, about
from mptcp_throttler.stages.grants import GrantStage
from mptcp_throttler.storage import GrantsError, read_grants
from mptcp_throttler.telemetry.events import EventRecorder

log = logging.getLogger(__name__)
LOOK_SECONDS = 1.0


class Grants(Component):
    """The grants of one daemon."""

    def __init__(
        self,
        path: Path,
        stage: GrantStage,
        connections: Mapping[int, Connection],
        events: EventRecorder,
        changed: Callable[[Collection[int]], Awaitable[None]],
    ) -> None:
        """*connections* is the tracker's live view by token; *changed* takes the tokens to decide again."""
        self._path, self._stage, self._connections = path, stage, connections
        self._events, self._changed = events, changed
        self._file: tuple[int, ...] = ()
        """Inode, mtime and size of the file as last read; empty without one."""
        self._grants: tuple[Grant, ...] = ()
        self._known = False
        """The file was read once: its first content is not news."""

    async def prepare(self, policy: object) -> None:
        if not self._known:
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
            file = ()  # missing or unreadable; reading will say which
        if file == self._file and self._known:
            return
        self._file = file
        try:
            fresh = await asyncio.to_thread(read_grants, self._path)
        except GrantsError as error:
            self._known = True
            log.error("%s", error)
            return
        if not self._known:  # at the start; what is in force then is decided with all else
            self._known, self._grants = True, fresh
            self._stage.set_grants(fresh, time.time(), self._connections)
            return
        for each in set(fresh) - set(self._grants):
            self._tell(each, each.words())
        await self._take(fresh)

    async def _take(self, fresh: tuple[Grant, ...]) -> None:
        before, self._grants = self._stage.in_force, fresh
        tokens = self._stage.set_grants(fresh, time.time(), self._connections)
        if before == self._stage.in_force:
            return
        for each in set(before) - set(self._stage.in_force):
            if not self._stage.covers(each.network):  # a longer one, or one for more clients, may go on
                self._tell(each, "caps again")
        await self._changed(tokens)

    def _tell(self, grant: Grant, text: str) -> None:
        log.info("grant to %s: %s", grant.client or "all", text, extra=TOLD | about(client=grant.client or None))
        self._events.grant(time.monotonic(), grant.client, text)
