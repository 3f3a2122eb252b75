"""Removes what a killed daemon left in the kernel. Works from names alone: no memory of the daemon is needed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from mptcp_throttler.config.settings import Settings
from mptcp_throttler.kernel.access import REAL
from mptcp_throttler.kernel.netfilter.backends import remove_backends
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.state_lock import locked
from mptcp_throttler.runtime.directions import Uploads
from mptcp_throttler.runtime.path_manager import end_keeper


async def cleanup(settings: Settings) -> list[str]:
    """Remove sets, rules and tables of every backend, then put back root qdiscs; return what was done, for people.

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
        direction = Uploads(settings, REAL)
        try:
            return "uploads: nothing of ours is left" if await direction.remove_what_was_left() else ""
        finally:
            await direction.close()

    async def path_manager() -> str:
        ended = await end_keeper(settings.state_directory)
        return "path manager: the kernel's; connections from before get no further subflows" if ended else ""

    async def root_qdiscs() -> str:
        async with REAL.traffic_control(settings) as traffic_control:
            await traffic_control.restore()
        return f"{', '.join(settings.interfaces)}: root qdisc as before"

    with locked(settings.state_directory):
        for backend, error in (await remove_backends(settings.ownership)).items():
            if error is None:
                done.append(f"{backend}: nothing of ours is left")
            else:
                failures.append(str(error))
        for remove in (uploads, path_manager, root_qdiscs):
            await attempt(remove)
    if failures:
        raise KernelError("; ".join([*done, *failures]))
    return done
