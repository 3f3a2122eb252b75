"""The client's own connection in the kernel: is it Multipath TCP, and with how many subflows?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mptcp_portal.check_report import KernelView
from mptcp_portal.netlink import Ends, mptcp_connections, tcp_inodes

KernelQuestion = Callable[[Ends], KernelView | None]
LOOKS, INTERVAL = 11, 0.1
"""How often at the most, and seconds between: a join takes a round trip and an acknowledgement, which may be late."""
MOST_WAITING = 8
"""At a time. Others are told what there is at once: each look goes through the kernel's list of connections."""


def kernel_view(ends: Ends) -> KernelView | None:
    """Return what the kernel has of the connection with these *ends*; None where it cannot be asked.

    An MPTCP connection keeps the ends of its first subflow when that has gone, and they may be another client's by now:
    its TCP socket has them, or its MPTCP connection has them, too. Then nobody knows which of both asks, and nothing is
    said of either. The same holds of link-local clients in two networks.
    """
    try:
        found = mptcp_connections(ends)
        inodes = tcp_inodes(ends) if found else set()
    except OSError:
        return None
    if len(found) != 1 or inodes - {found[0].inode}:
        return KernelView(False)
    return KernelView(not found[0].fell_back, found[0].subflows, found[0].token)


class NewConnections:
    """Looks at connections by which one request comes, and no second one that would find more subflows.

    A relay's are such: docs/relay.md says why.
    """

    def __init__(self, look: KernelQuestion) -> None:
        self._look = look
        self._waiting = 0

    async def view(self, ends: Ends) -> KernelView | None:
        """As :func:`kernel_view`; a second subflow is waited for."""
        found = self._look(ends)
        if self._waiting >= MOST_WAITING:
            return found
        self._waiting += 1
        try:
            for _ in range(LOOKS - 1):
                if found is None or not found.multipath or found.subflows > 1:
                    break
                await asyncio.sleep(INTERVAL)
                found = self._look(ends)
        finally:
            self._waiting -= 1
        return found
