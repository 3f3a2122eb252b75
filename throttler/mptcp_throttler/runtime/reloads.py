"""Reloads the policy, as a whole or not at all, and remembers a refusal until a reload succeeds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from mptcp_common.kernel_error import KernelError
from mptcp_common.problems import DocumentError
from mptcp_common.service_manager import READY, reloading, status
from mptcp_common.units import counted
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime import garbage
from mptcp_throttler.runtime.component import Component, prepare_all
from mptcp_throttler.runtime.engine import Engine
from mptcp_throttler.runtime.logs import TOLD, tell
from mptcp_throttler.views.answers import RefusedReload, ReloadCounts

log = logging.getLogger(__name__)


class PolicyReloads:
    """The reloads of one daemon."""

    def __init__(
        self,
        components: Sequence[Component],
        engine: Engine,
        read_policy: Callable[[], Policy],
        read_settings: Callable[[], Sequence[str]],
        summary: Callable[[], str],
    ) -> None:
        """*read_settings* returns changes of the settings, *summary* the status line for the service manager."""
        self.last_refused: RefusedReload | None = None
        self.since: float | None = None
        """When the policy in force was taken, monotonic seconds; None for the first one."""
        self._accepted = self._refused = 0
        self._components = components
        self._engine = engine
        self._read_policy, self._read_settings, self._summary = read_policy, read_settings, summary
        self._settings: Sequence[str] = ()

    async def reload(self) -> None:
        """Read the policy file again; refuse a bad one and keep the policy in force."""
        tell(*reloading())
        try:
            await self._reload()
        finally:
            tell(READY, status(self._summary()))

    async def _reload(self) -> None:
        self._settings = await asyncio.to_thread(self._read_settings)
        for line in self._settings:
            log.warning("%s", line)
        try:
            async with garbage.cycles():
                policy = await asyncio.to_thread(self._read_policy)
            await prepare_all(self._components, policy, self._engine.decisions.policy)
        except (DocumentError, KernelError) as error:
            lines = str(error).splitlines()
            for line in lines:
                log.error("%s", line, extra=TOLD)
            log.error("policy not reloaded: the one in force stays", extra=TOLD)
            self._engine.events.reload(time.monotonic(), f"policy not reloaded: {lines[0]}")
            self._refused += 1
            self.last_refused = {"time": time.time(), "errors": lines}
            return
        await self._engine.take_policy(policy)
        for component in self._components:
            try:
                await component.commit(policy)
            except KernelError as error:
                log.error("%s", error)
        self._accepted += 1
        self.since = time.monotonic()
        self.last_refused = None
        text = f"policy reloaded: {counted(len(policy.rules), 'rule')}"
        log.info("%s", text)
        self._engine.events.reload(time.monotonic(), text)

    def as_json(self) -> ReloadCounts:
        """Return the figures on reloads for the status."""
        return {
            "accepted": self._accepted,
            "refused": self._refused,
            "last_refused": self.last_refused,
            "settings": list(self._settings),
        }
