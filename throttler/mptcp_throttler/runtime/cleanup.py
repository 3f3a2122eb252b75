"""Removes what a killed daemon left in the kernel. Works from names alone: no memory of the daemon is needed.

What it set on sockets has no name; it is taken back from all subflows of the listening ports.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection

from mptcp_common.units import counted
from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import REAL
from mptcp_throttler.kernel.netfilter.backends import remove_backends
from mptcp_throttler.kernel.ports import KernelError, Sockets
from mptcp_throttler.kernel.sockets.pacing import BpfSocketPacing
from mptcp_throttler.kernel.state_file import locked
from mptcp_throttler.mptcp.model import KernelSubflow
from mptcp_throttler.runtime.directions import Uploads
from mptcp_throttler.runtime.pacing import lift_all
from mptcp_throttler.runtime.path_manager import end_keeper, take_flags_back
from mptcp_throttler.shaping.model import Ownership

log = logging.getLogger(__name__)

LIFT_SECONDS = 3.0
"""How long sockets are waited for that cannot be told at once."""


async def cleanup(settings: Settings) -> list[str]:
    """Remove sets, rules and tables of every backend, put back root qdiscs; return what was done, for people.

    Raises AlreadyRunning while a daemon is at work, KernelError with all that failed, which keeps nothing else
    from being removed.
    """
    done: list[str] = []
    failures: list[str] = []

    async def attempt(remove: Callable[[], Awaitable[str]]) -> None:
        try:
            done.extend(filter(None, [await remove()]))
        except KernelError as error:
            failures.append(str(error))

    async def uploads() -> str:
        direction = Uploads(settings, REAL, {})
        try:
            return "uploads: nothing of ours is left" if await direction.remove_what_was_left() else ""
        finally:
            await direction.close()

    async def backup_flags() -> str:
        diagnostics = REAL.sockets(settings)
        try:
            regular = take_flags_back(settings.state_directory, diagnostics)
        finally:
            diagnostics.close()
        return f"sockets: the backup flag of {counted(regular, 'subflow')} taken back" if regular else ""

    async def path_manager() -> str:
        ended = await end_keeper(settings.state_directory)
        return "path manager: the kernel's; connections from before get no further subflows" if ended else ""

    async def root_qdiscs() -> str:
        async with REAL.traffic_control(settings) as traffic_control:
            await traffic_control.restore()
        return f"{', '.join(settings.interfaces)}: root qdisc as before"

    async def sockets() -> str:
        diagnostics = REAL.sockets(settings)
        try:
            limited, kept = await _lift(settings.ownership, diagnostics)
        finally:
            diagnostics.close()
        if kept:
            raise KernelError("; ".join(_keeps(each) for each in kept))
        return f"sockets: the pacing limit of {counted(limited, 'subflow')} lifted" if limited else ""

    async def status_socket() -> str:
        try:
            if settings.status_socket.is_socket():
                settings.status_socket.unlink()
        except OSError as error:
            raise KernelError(f"remove status socket {settings.status_socket}: {error.strerror}") from error
        return ""

    with locked(settings.state_directory):
        for backend, error in (await remove_backends(settings.ownership)).items():
            if error is None:
                done.append(f"{backend}: nothing of ours is left")
            else:
                failures.append(str(error))
        for remove in (uploads, backup_flags, path_manager, root_qdiscs, sockets, status_socket):
            await attempt(remove)
    if failures:
        raise KernelError("; ".join([*done, *failures]))
    return done


async def _lift(ownership: Ownership, sockets: Sockets) -> tuple[int, Collection[KernelSubflow]]:
    """Return from how many subflows a pacing limit was to be lifted, and those that keep it. Raises KernelError."""
    if not any(sockets.pieces()):
        return 0, ()
    try:
        pacing = BpfSocketPacing(ownership, for_accepted=False)
    except KernelError as error:
        limited = [each for piece in sockets.pieces() for each in piece if _limited(each)]
        if limited:
            log.error("%s", error)
        return len(limited), limited
    try:
        return await lift_all(pacing, sockets, LIFT_SECONDS)
    finally:
        pacing.close()


def _limited(subflow: KernelSubflow) -> bool:
    return subflow.tcp is not None and subflow.tcp.max_pacing_rate is not None


def _keeps(subflow: KernelSubflow) -> str:
    assert subflow.tcp is not None
    rate = (subflow.tcp.max_pacing_rate or 0) / 1e6
    return f"connection {subflow.token:08x}: {subflow.four_tuple} keeps its limit of {rate:g} Mbit/s until it closes"
