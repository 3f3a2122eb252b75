"""What our HTB classes passed and dropped, as the kernel counts it. Read where somebody asks, in a child."""

from __future__ import annotations

from collections.abc import Iterable
from socket import NETLINK_ROUTE

from mptcp_throttler.kernel.netlink import NetlinkSocket
from mptcp_throttler.kernel.tc import htb_wire, root_qdisc
from mptcp_throttler.kernel.tc.link import find
from mptcp_throttler.shaping.model import ClassCounters


def read_class_counters(interfaces: Iterable[str], major: int) -> dict[int, ClassCounters]:
    """Return the counters of our classes by minor number, those of all *interfaces* added up. Raises KernelError."""
    found: dict[int, ClassCounters] = {}
    for name in interfaces:
        link = find(name)
        if link is None:
            continue
        with NetlinkSocket(NETLINK_ROUTE) as netlink:
            question = htb_wire.TCMSG.pack(0, link.index, 0, 0, 0)
            for body in netlink.dump(root_qdisc.RTM_GETTCLASS, question, f"list the classes of {name}"):
                each = htb_wire.class_counters(body, link.index)
                if each is None or each[0] >> 16 != major:
                    continue
                minor = each[0] & 0xFFFF
                before = found.get(minor, ClassCounters(0, 0, 0))
                found[minor] = ClassCounters(*(one + more for one, more in zip(before, each[1:], strict=True)))
    return found
