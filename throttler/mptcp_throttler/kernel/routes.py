"""By which interface this host sends to a client: what the routing of the kernel says. rtnetlink(7), RTM_GETROUTE.

For subflows whose packets did not show it: those older than the daemon, and those of which nothing was captured. The
local address does not tell, for a host may use one address on several interfaces. One question costs some 20 µs.
"""

from __future__ import annotations

import socket
import struct

from mptcp_throttler.kernel.netlink import NetlinkSocket, attribute, attributes
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.mptcp.model import FourTuple

_NETLINK_ROUTE, _RTM_GETROUTE = 0, 26
_ROUTE = struct.Struct("=BBB5xI")
"""struct rtmsg: family, bits of destination and of source, …, flags."""
_RTA_DST, _RTA_SRC, _RTA_OIF = 1, 2, 4


class Routes:
    """Routes of the namespace it is made in, to *interfaces*."""

    def __init__(self, interfaces: tuple[str, ...]) -> None:
        self._interfaces = interfaces
        self._netlink = NetlinkSocket(_NETLINK_ROUTE)

    def close(self) -> None:
        self._netlink.close()

    def interface(self, four_tuple: FourTuple) -> str | None:
        """Return the interface by which the subflow's packets leave; None where that is none of ours.

        Where there is but one, all are taken to leave by it.
        """
        if len(self._interfaces) == 1:
            return self._interfaces[0]
        bits = 8 * len(four_tuple.remote)
        request = _ROUTE.pack(socket.AF_INET6 if four_tuple.is_ipv6 else socket.AF_INET, bits, bits, 0)
        request += attribute(_RTA_DST, four_tuple.remote) + attribute(_RTA_SRC, four_tuple.local)
        try:
            answer = self._netlink.ask(_RTM_GETROUTE, request, f"look up the route of {four_tuple}")
            index = dict(attributes(answer, _ROUTE.size)).get(_RTA_OIF, b"")
            name = socket.if_indextoname(int.from_bytes(index, "little"))
        except (KernelError, OSError):
            return None
        return name if name in self._interfaces else None
