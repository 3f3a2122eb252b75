"""The addresses that the kernel announces to clients: ``ip mptcp endpoint`` (ip-mptcp(8))."""

from __future__ import annotations

from pyroute2 import MPTCP
from pyroute2.netlink.exceptions import NetlinkError

_SIGNAL = 1 << 0
"""MPTCP_PM_ADDR_FLAG_SIGNAL of linux/mptcp.h."""


def announced_ports() -> tuple[int, ...]:
    """Return the ports of the addresses that are announced with one (RFC 8684, 3.4.1): clients join there, too.

    Nothing where the kernel does not say. Not to be called while an event loop runs.
    """
    try:
        with MPTCP() as manager:
            found = [each.get_nested("MPTCP_PM_ATTR_ADDR") for each in manager.endpoint("show")]
    except (NetlinkError, OSError):
        return ()
    signalled = (each for each in found if each and (each.get_attr("MPTCP_PM_ADDR_ATTR_FLAGS") or 0) & _SIGNAL)
    return tuple(sorted({each.get_attr("MPTCP_PM_ADDR_ATTR_PORT") or 0 for each in signalled} - {0}))
