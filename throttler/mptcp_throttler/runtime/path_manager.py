# SPDX-License-Identifier: GPL-2.0-or-later
"""Activates the user-space path manager while the policy steers by order, so that no connection loses a path.

Only the user-space path manager can make one subflow backup among several that share the proxy's address. At
``net.mptcp.pm_type`` 1, the kernel accepts joins only while a process listens to the path manager's events. This
applies to each connection accepted at that setting, as long as it lives. So a keeper process
(``kernel.mptcp_pm.keeper``) also listens, from before the sysctl is set until the last such connection has ended.
Until then, ``net.mptcp.stale_loss_cnt`` is 3 instead of 4: the kernel then leaves a dead path one timeout earlier.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.access import KernelAccess
from mptcp_throttler.kernel.mptcp_pm.family import FlagsNote, SubflowCommands
from mptcp_throttler.kernel.mptcp_pm.keeper_client import KeeperConnection
from mptcp_throttler.kernel.sysctl import PM_TYPE, STALE_LOSS_COUNT
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component

log = logging.getLogger(__name__)

SYSCTLS = {PM_TYPE: "1", STALE_LOSS_COUNT: "3"}
"""Values that the daemon sets. Below 3, the kernel (``mptcp_pm_subflow_chk_stale``) leaves a path only for another path
whose own count of timeouts is 0. That count stays 1 for a path that had data outstanding at the first timeout and then
waits for the data that the dead path lost."""


def needs_user_space(policy: Policy) -> bool:
    """Return whether *policy* sets the backup flag of single subflows."""
    return any(rule.steer is not None and rule.steer.mode_class.sets_backup for rule in policy.rules)


class UserspacePathManager(Component):
    """The path manager of one daemon's network namespace."""

    def __init__(self, state_directory: Path, kernel: KernelAccess) -> None:
        self._state_directory = state_directory
        self._kernel = kernel
        self._sysctls = kernel.sysctls(state_directory)
        self.flags_note = FlagsNote(state_directory)
        self._keeper: KeeperConnection | None = None
        self._commands: SubflowCommands | None = None
        self.is_active = False  # whether the policy in force needs the user-space path manager
        self._lock = asyncio.Lock()  # protects the keeper: a reload must not interrupt its restart

    async def prepare(self, policy: Policy) -> None:
        """Start the keeper and then set the sysctls, if *policy* needs them. Raises KernelError."""
        self.flags_note.find()
        if needs_user_space(policy):
            async with self._lock:
                await self._activate()

    async def commit(self, policy: Policy) -> None:
        """Restore the sysctls, also those that a killed daemon set, unless *policy* needs them. Raises KernelError."""
        async with self._lock:
            self.is_active = needs_user_space(policy)
            if not self.is_active:
                await self._deactivate()

    roll_back = commit

    @property
    def commands(self) -> SubflowCommands:
        """Commands for single subflows, opened when first needed. The kernel refuses them for a connection that was
        accepted under the kernel's path manager. Raises KernelError."""
        if self._commands is None:
            self._commands = self._kernel.subflow_commands()
        return self._commands

    async def verify(self) -> None:
        """Set the sysctls again if another program changed them, and restart a killed keeper. Raises KernelError."""
        # If the daemon stops now, the restarted keeper must already have the whole state.
        await asyncio.shield(self._verify())

    async def _verify(self) -> None:
        async with self._lock:
            if self.is_active:
                problems = self._sysctls.check(SYSCTLS)
                if self._keeper is None or not self._keeper.alive:
                    problems.append("the keeper has ended, without which joins fail if the daemon is killed")
                if problems:
                    await self._activate()
                for problem in problems:
                    log.warning("%s; repaired", problem)
                self.repairs += len(problems)

    async def close(self) -> None:
        """Restore the sysctls. The keeper ends with the last connection that needs it. Raises KernelError."""
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        async with self._lock:
            self.is_active = False
            try:
                await self._deactivate()
            finally:
                self.flags_note.remove()

    async def _activate(self) -> None:
        original = self._sysctls.original_values(SYSCTLS)
        if self._keeper is None or not self._keeper.alive:
            if self._keeper is not None:
                self._keeper.close()
            self._keeper = await self._kernel.keeper(self._state_directory)
        await self._keeper.hold(original)
        self.flags_note.write()
        self._sysctls.hold(SYSCTLS)

    async def _deactivate(self) -> None:
        try:
            self._sysctls.restore()
        finally:
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                try:
                    await keeper.release()
                except KernelError as error:
                    log.warning("%s", error)
