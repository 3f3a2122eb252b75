"""What the operator changes while the daemon runs: the policy, as a whole or not at all, and the file of grants."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from mptcp_common.kernel_error import KernelError
from mptcp_common.problems import DocumentError
from mptcp_common.service_manager import READY, reloading, status
from mptcp_common.units import counted
from mptcp_throttler.policy.grants import Grant
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime import event_loop
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.engine import Engine
from mptcp_throttler.runtime.logs import TOLD, about, tell
from mptcp_throttler.storage import grants
from mptcp_throttler.views.answers import RefusedReload, ReloadCounts

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""Between two looks at the file of grants."""


class PolicyReloads:
    """The reloads of one daemon. A refusal is remembered until a reload succeeds."""

    def __init__(
        self,
        components: Sequence[Component],
        engine: Engine,
        read_policy: Callable[[], Policy],
        read_settings: Callable[[], Sequence[str]],
        summary: Callable[[], str],
    ) -> None:
        """*read_settings* returns changes of the settings, *summary* the status line for the service manager."""
        self.since: float | None = None
        """When the policy in force was taken, monotonic seconds; None for the first one."""
        self.counts: ReloadCounts = {"accepted": 0, "refused": 0, "last_refused": None, "settings": []}
        self._components = components
        self._engine = engine
        self._read_policy, self._read_settings, self._summary = read_policy, read_settings, summary

    @property
    def last_refused(self) -> RefusedReload | None:
        return self.counts["last_refused"]

    async def reload(self) -> None:
        """Read the policy file again; refuse a bad one and keep the policy in force."""
        tell(*reloading())
        try:
            await self._reload()
        finally:
            tell(READY, status(self._summary()))

    async def _reload(self) -> None:
        engine, counts = self._engine, self.counts
        counts["settings"] = list(await asyncio.to_thread(self._read_settings))
        for line in counts["settings"]:
            log.warning("%s", line)
        try:
            async with event_loop.cycles():
                policy = await asyncio.to_thread(self._read_policy)
            await self._prepare(policy)
        except (DocumentError, KernelError) as error:
            lines = str(error).splitlines()
            for line in lines:
                log.error("%s", line, extra=TOLD)
            log.error("policy not reloaded: the one in force stays", extra=TOLD)
            engine.events.reload(time.monotonic(), f"policy not reloaded: {lines[0]}")
            counts["refused"] += 1
            counts["last_refused"] = {"time": time.time(), "errors": lines}
            return
        await engine.take_policy(policy)
        for component in self._components:
            try:
                await component.commit(policy)
            except KernelError as error:
                log.error("%s", error)
        counts["accepted"] += 1
        counts["last_refused"] = None
        self.since = time.monotonic()
        text = f"policy reloaded: {counted(len(policy.rules), 'rule')}"
        log.info("%s", text)
        engine.events.reload(time.monotonic(), text)

    async def _prepare(self, policy: Policy) -> None:
        """Prepare all components for *policy*. If one refuses, roll all back and raise KernelError."""
        try:
            for component in self._components:
                await component.prepare(policy)
        except KernelError:
            for component in reversed(self._components):
                try:
                    await component.roll_back(self._engine.decisions.policy)
                except KernelError as error:
                    log.error("%s", error)
            raise


class Grants(Component):
    """The grants of one daemon: a new one comes into force within a second, and ends by itself."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self._stage = engine, engine.grants
        self._path = engine.settings.ledger.with_name(grants.NAME)
        self._file: tuple[int, ...] | None = None
        """Inode, mtime and size of the file as last read; empty without one, None before the first time."""
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
            file = ()  # missing or unreadable; reading will say which
        if file == self._file:
            return
        is_first, self._file = self._file is None, file
        try:
            fresh = await asyncio.to_thread(grants.read, self._path)
        except grants.GrantsError as error:
            log.error("%s", error)
            return
        if is_first:  # no news; what is in force at the start is decided with all else
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
            if not self._stage.covers(each.network):  # a longer one, or one for more clients, may go on
                self._tell(each, "caps again")
        await self._engine.follow_grants(tokens)

    def _tell(self, grant: Grant, text: str) -> None:
        log.info("grant to %s: %s", grant.client or "all", text, extra=TOLD | about(client=grant.client or None))
        self._engine.events.grant(time.monotonic(), grant.client, text)
