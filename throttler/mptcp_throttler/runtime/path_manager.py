"""Keeps the path manager in user space while the policy steers by order, so that it never costs anybody a path.

Only that path manager can make one subflow backup among several that share the proxy's address. At
``net.mptcp.pm_type`` 1, the kernel accepts joins only while somebody listens to the path manager's events; this holds
for connections accepted then as long as they live. So a keeper (``kernel.mptcp_pm.keeper``) listens beside this
process, from before the sysctl is set until the last such connection has ended. Meanwhile ``net.mptcp.stale_loss_cnt``
is 3 instead of 4: a subflow whose path has died is left one timeout earlier.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_common.service_manager import is_managed
from mptcp_throttler.kernel.access import REAL, KernelAccess
from mptcp_throttler.kernel.mptcp_pm.family import FlagsNote, SubflowCommands, subscribed_socket
from mptcp_throttler.kernel.mptcp_pm.keeping import KeeperConnection, find_keeper, remove_socket
from mptcp_throttler.kernel.ports import KernelSockets
from mptcp_throttler.kernel.sysctl import PM_TYPE, STALE_LOSS_COUNT, OwnedSysctls
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.logs import tell

log = logging.getLogger(__name__)

SYSCTLS = {PM_TYPE: "1", STALE_LOSS_COUNT: "3"}
"""Below 3 the kernel (``mptcp_pm_subflow_chk_stale``) leaves a path only for one whose own count of timeouts is 0. That
count stays 1 for a path that had data outstanding at the first timeout, and then waits for what the dead path lost."""
STORE_NAME = "path-manager"
"""Of the event socket in the service manager's descriptor store, which survives the death of all our processes."""


def needs_user_space(policy: Policy) -> bool:
    """Return whether *policy* makes single subflows backup."""
    return any(rule.steer is not None and rule.steer.kind.sets_backup for rule in policy.enforced.rules)


class UserspacePathManager(Component):
    """The path manager of one daemon's network namespace."""

    repairs = 0

    def __init__(self, state_directory: Path, kernel: KernelAccess) -> None:
        self._state_directory = state_directory
        self._kernel = kernel
        self._sysctls = kernel.sysctls(state_directory)
        self._flags_note = FlagsNote(state_directory)
        self._keeper: KeeperConnection | None = None
        self._commands: SubflowCommands | None = None
        self.in_force = False
        """The policy in force needs the path manager in user space."""
        self._lock = asyncio.Lock()
        """Guards the keeper: a reload must not interrupt its restart."""

    async def prepare(self, policy: Policy) -> None:
        """Set what *policy* needs, the listener before the sysctls. Raises KernelError with nothing changed."""
        self._flags_note.find()
        if not needs_user_space(policy):
            return
        async with self._lock:
            try:
                await self._hold()
            except KernelError:
                if not self.in_force:
                    await self._drop()
                raise

    async def commit(self, policy: Policy) -> None:
        """Put back what the policy in force does not need, or a killed predecessor left. Raises KernelError."""
        async with self._lock:
            self.in_force = needs_user_space(policy)
            if not self.in_force:
                await self._drop()

    async def roll_back(self, policy: Policy) -> None:
        """Drop what a refused policy would have needed. Raises KernelError."""
        async with self._lock:
            if not self.in_force:
                await self._drop()

    def take_flags_over(self) -> bool:
        """Return whether the backup flags that are set are a killed predecessor's."""
        return self._flags_note.take_over()

    def set_backup(self, token: int, four_tuple: FourTuple, backup: bool) -> None:
        """Make one subflow backup or regular. Raises KernelError, for example if the connection was accepted under the
        kernel's path manager."""
        self._open_commands().set_backup(token, four_tuple, backup)

    def close_subflow(self, token: int, four_tuple: FourTuple) -> None:
        """Close one subflow, if it exists. Raises KernelError as :meth:`set_backup` does."""
        self._open_commands().close_subflow(token, four_tuple)

    async def verify(self) -> None:
        """Set again what somebody changed, and restart a killed keeper. Raises KernelError."""
        # A stop in between must find a keeper that knows everything.
        await asyncio.shield(self._verify())

    async def _verify(self) -> None:
        async with self._lock:
            if self.in_force:
                problems = self._sysctls.check(SYSCTLS)
                if self._keeper is None or not self._keeper.alive:
                    problems.append("the keeper of the path manager is gone, without which a kill costs joins")
                if problems:
                    await self._hold()
                for problem in problems:
                    log.warning("%s; put right", problem)
                self.repairs += len(problems)

    async def close(self) -> None:
        """Put the sysctls back, after all flags were released. The keeper ends with the last connection that needs it.
        Raises KernelError."""
        if self._commands is not None:
            self._commands.close()
            self._commands = None
        async with self._lock:
            self.in_force = False
            try:
                await self._drop()
            finally:
                self._flags_note.remove()

    def _open_commands(self) -> SubflowCommands:
        if self._commands is None:
            self._commands = self._kernel.subflow_commands()
        return self._commands

    async def _hold(self) -> None:
        put_back = self._sysctls.before(SYSCTLS)
        if self._keeper is None or not self._keeper.alive:
            await self._find_keeper()
        assert self._keeper is not None
        await self._keeper.hold(put_back)
        self._flags_note.write()
        self._sysctls.hold(SYSCTLS)

    async def _find_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
        self._keeper = await self._kernel.keeper(self._state_directory)
        if is_managed():
            with subscribed_socket(drops_all=True) as events:
                tell("FDSTOREREMOVE=1", f"FDNAME={STORE_NAME}")
                tell("FDSTORE=1", f"FDNAME={STORE_NAME}", "FDPOLL=0", descriptors=[events.fileno()])

    async def _drop(self) -> None:
        try:
            self._sysctls.restore()
        finally:
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                tell("FDSTOREREMOVE=1", f"FDNAME={STORE_NAME}")
                try:
                    await keeper.release()
                except KernelError as error:
                    log.warning("%s", error)


async def end_keeper(state_directory: Path) -> bool:
    """End the keeper that a killed daemon left; put the sysctls back. Return whether one ran. Raises KernelError."""
    keeper = await find_keeper(state_directory)
    try:
        if keeper is not None:
            await keeper.end()
        else:
            remove_socket(state_directory)
    finally:
        OwnedSysctls(state_directory).restore()
    return keeper is not None


def take_flags_back(state_directory: Path, sockets: KernelSockets) -> int:
    """Make regular the subflows that a killed daemon, by its note, made backup; return how many. Raises KernelError."""
    note = FlagsNote(state_directory)
    note.find()
    if not note.take_over():
        return 0
    backup = [each for piece in sockets.pieces() for each in piece if each.made_backup]
    commands = REAL.subflow_commands()
    try:
        # A refused subflow has ended, or its connection was accepted under the kernel's path manager: that flag is not
        # ours.
        regular = [each for each in backup if _is_made_regular(commands, each)]
    finally:
        commands.close()
    note.remove()
    return len(regular)


def _is_made_regular(commands: SubflowCommands, subflow: KernelSubflow) -> bool:
    try:
        commands.set_backup(subflow.token, subflow.four_tuple, False)
    except KernelError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True
