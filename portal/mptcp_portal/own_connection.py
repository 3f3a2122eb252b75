"""The client's own connection in the kernel: is it Multipath TCP, and with how many subflows?"""

from __future__ import annotations

from mptcp_portal.check_report import KernelView
from mptcp_portal.netlink import Address, mptcp_connections


def kernel_view(remote: tuple[Address, int]) -> KernelView | None:
    """Return what the kernel has of the connection that came from *remote*; None where it cannot be asked."""
    try:
        found = mptcp_connections(remote)
    except OSError:
        return None
    alive = [each for each in found if not each.fell_back]
    return KernelView(True, alive[0].subflows, alive[0].token) if alive else KernelView(False)
