# SPDX-License-Identifier: GPL-2.0-or-later
"""The client's own connection in the kernel: whether it is Multipath TCP, and with how many subflows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mptcp_common.kernel_error import KernelError
from mptcp_portal.check_report import KernelView
from mptcp_portal.netlink import Ends, mptcp_connections, tcp_inodes

KernelLookup = Callable[[Ends], KernelView | None]
MAX_LOOKUPS, LOOKUP_INTERVAL = 11, 0.1
"""Maximum number of look-ups, and seconds between two look-ups: a join takes a round trip and an acknowledgement, which
may be late."""
MAX_WAITING = 8
"""Maximum number of concurrent waits. Further requests get the result of their first look-up, because each look-up
scans the kernel's list of connections."""


def kernel_view(ends: Ends) -> KernelView | None:
    """Return the kernel's view of the connection with these *ends*; None if the kernel does not answer.

    An MPTCP connection keeps the ends of its first subflow after that subflow has ended, and another client's TCP or
    MPTCP connection may have these ends now. Then it is unknown which client sends the request, and both get no
    details. The same is true for link-local clients in two networks.
    """
    try:
        found = mptcp_connections(ends)
        inodes = tcp_inodes(ends) if found else set()
    except KernelError:
        return None
    if len(found) != 1 or inodes - {found[0].inode}:
        return KernelView(False)
    return KernelView(not found[0].fell_back, found[0].subflows, found[0].token)


class SingleRequestConnections:
    """Looks up connections that carry only one request, such as a relay's (docs/relay.md). Because no further request
    can show later subflows, it waits for a second subflow."""

    def __init__(self, look_up: KernelLookup) -> None:
        self._look_up = look_up
        self._waiting = 0

    async def view(self, ends: Ends) -> KernelView | None:
        """Like :func:`kernel_view`, but wait for a second subflow."""
        found = self._look_up(ends)
        if self._waiting >= MAX_WAITING:
            return found
        self._waiting += 1
        try:
            for _ in range(MAX_LOOKUPS - 1):
                if found is None or not found.multipath or found.subflows > 1:
                    break
                await asyncio.sleep(LOOKUP_INTERVAL)
                found = self._look_up(ends)
        finally:
            self._waiting -= 1
        return found
