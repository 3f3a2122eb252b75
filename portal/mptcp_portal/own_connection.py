"""The client's own connection in the kernel: is it Multipath TCP, and with how many subflows?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mptcp_portal.check_report import KernelView
from mptcp_portal.netlink import Address, mptcp_connections

KernelQuestion = Callable[[tuple[Address, int]], KernelView | None]
LOOKS, INTERVAL = 11, 0.1
"""How often at the most, and seconds between: a join takes a round trip and an acknowledgement, which may be late."""
MOST_WAITING = 8
"""At a time. Others are told what there is at once: each look goes through the kernel's list of connections."""


def kernel_view(remote: tuple[Address, int]) -> KernelView | None:
    """Return what the kernel has of the connection that came from *remote*; None where it cannot be asked."""
    try:
        found = mptcp_connections(remote)
    except OSError:
        return None
    alive = [each for each in found if not each.fell_back]
    return KernelView(True, alive[0].subflows, alive[0].token) if alive else KernelView(False)


class NewConnections:
    """Looks at connections by which one request comes, and no second one that would find more subflows.

    A relay's are such: docs/relay.md says why.
    """

    def __init__(self, look: KernelQuestion) -> None:
        self._look = look
        self._waiting = 0

    async def view(self, remote: tuple[Address, int]) -> KernelView | None:
        """As :func:`kernel_view`; a second subflow is waited for."""
        found = self._look(remote)
        if self._waiting >= MOST_WAITING:
            return found
        self._waiting += 1
        try:
            for _ in range(LOOKS - 1):
                if found is None or not found.multipath or found.subflows > 1:
                    break
                await asyncio.sleep(INTERVAL)
                found = self._look(remote)
        finally:
            self._waiting -= 1
        return found
