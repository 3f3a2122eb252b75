# SPDX-License-Identifier: GPL-2.0-or-later
"""Removes the objects that a killed daemon left in the kernel. They are found by their names, without any state of the
daemon. Settings of sockets have no name, so they are reset on all subflows of the listening ports.
"""

from __future__ import annotations

import errno
from contextlib import closing

from mptcp_common.kernel_error import KernelError
from mptcp_common.single_daemon import single_daemon
from mptcp_common.units import counted
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import REAL
from mptcp_throttler.kernel.bpf import SocketPacing
from mptcp_throttler.kernel.mptcp_pm.family import FlagsNote
from mptcp_throttler.kernel.mptcp_pm.keeper_client import find_keeper, remove_socket
from mptcp_throttler.kernel.netfilter.backends import remove_backends
from mptcp_throttler.kernel.sysctl import OwnedSysctls
from mptcp_throttler.runtime.directions import PlainTcpCaps, Uploads
from mptcp_throttler.runtime.pacing import lift_all
from mptcp_throttler.shaping.plan import Planner

LIFT_TIMEOUT = 3.0  # how long to wait for sockets whose limits cannot be reset immediately


async def cleanup(settings: Settings) -> list[str]:
    """Remove sets, rules and tables of every backend, and restore root qdiscs; return a line for each result. After a
    failure, the other steps still run. Raises KernelError with all failures, AlreadyRunning while a daemon runs."""
    results: list[str] = []
    failures: list[str] = []
    with single_daemon("mptcp-throttler", settings.state_directory):
        for backend, error in (await remove_backends(settings.ownership)).items():
            if error is None:
                results.append(f"{backend}: no objects of the throttler are left")
            else:
                failures.append(str(error))
        steps = _tunnels, _uploads, _plain_tcp, _backup_flags, _path_manager, _root_qdiscs, _limits, _status_socket
        for remove in steps:
            try:
                results += filter(None, [await remove(settings)])
            except KernelError as error:
                failures.append(str(error))
    if failures:
        raise KernelError("; ".join([*results, *failures]))
    return results


# Each of these functions returns a line about its work, or "" if there was nothing to do, and raises KernelError.


async def _tunnels(settings: Settings) -> str:
    if not settings.ownership.tunnel_ports:
        return ""
    try:
        await REAL.query_tunnels(settings.tunnel_socket, {"classes": {}})
    except (FileNotFoundError, ConnectionRefusedError):
        return ""  # a restarted daemon has no classes
    except OSError as error:
        raise KernelError(f"tunnels: {settings.tunnel_socket}: {error.strerror or 'no answer'}") from error
    return "tunnels: no path is in a class of the throttler"


async def _uploads(settings: Settings) -> str:
    return await _remove(Uploads(settings, REAL, {}), "uploads")


async def _plain_tcp(settings: Settings) -> str:
    return await _remove(PlainTcpCaps(settings, REAL, Planner(settings.ownership)), "plain TCP")


async def _remove(component: Uploads | PlainTcpCaps, subject: str) -> str:
    try:
        return f"{subject}: no objects of the throttler are left" if await component.remove_leftovers() else ""
    finally:
        await component.close()


async def _backup_flags(settings: Settings) -> str:
    """Make the backup subflows regular again, if the note of a killed daemon shows that it made them backup."""
    note = FlagsNote(settings.state_directory)
    note.find()
    if not note.take_over():
        return ""
    cleared = 0
    with closing(REAL.sockets(settings)) as sockets:
        backup = [each for batch in sockets.batches() for each in batch if each.made_backup]
    with closing(REAL.subflow_commands()) as commands:
        for each in backup:
            try:
                commands.set_backup(each.token, each.four_tuple, False)
                cleared += 1
            except KernelError as error:
                # EINVAL: the subflow has ended, or the kernel's path manager has its connection and set the flag.
                if error.errno != errno.EINVAL:
                    raise
    note.remove()
    return f"sockets: the backup flag of {counted(cleared, 'subflow')} cleared" if cleared else ""


async def _path_manager(settings: Settings) -> str:
    """End the keeper process that a killed daemon left; restore the sysctls."""
    keeper = await find_keeper(settings.state_directory)
    try:
        if keeper is not None:
            await keeper.end()
        else:
            remove_socket(settings.state_directory)
    finally:
        OwnedSysctls(settings.state_directory).restore()
    return "" if keeper is None else "path manager: restored; existing connections get no further subflows"


async def _root_qdiscs(settings: Settings) -> str:
    await REAL.traffic_control(settings).restore()
    return f"{', '.join(settings.interfaces)}: root qdisc restored"


async def _limits(settings: Settings) -> str:
    with closing(REAL.sockets(settings)) as sockets:
        subflows = [each for batch in sockets.batches() for each in batch]
        if not subflows:
            return ""
        try:
            pacing = SocketPacing(settings.ownership, for_accepted=False)
        except KernelError:
            if any(each.tcp.max_pacing_rate is not None for each in subflows):
                raise
            return ""  # the killed daemon could not pace either
        with closing(pacing):
            lifted, limited = await lift_all(pacing, sockets, LIFT_TIMEOUT)
    if limited:
        message = "connection {0.token:08x}: {0.four_tuple} keeps its pacing limit until it closes"
        raise KernelError("; ".join(map(message.format, limited)))
    return f"sockets: the pacing limit of {counted(lifted, 'subflow')} lifted" if lifted else ""


async def _status_socket(settings: Settings) -> str:
    try:
        if settings.status_socket.is_socket():
            settings.status_socket.unlink()
    except OSError as error:
        raise KernelError(f"remove status socket {settings.status_socket}: {error.strerror}") from error
    return ""
