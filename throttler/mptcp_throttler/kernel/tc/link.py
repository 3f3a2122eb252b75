"""An interface as the kernel describes it: index, kind, and the largest GSO segments that it builds. linux/if_link.h.

Read by name in one question, not by a dump: a netlink socket carries one dump at a time, and two of our tasks that ask
at the same moment would meet as EBUSY. pyroute2 does not know the GSO limit for IPv4. Setting ``gso_max_size`` to a
small value sets that for IPv4 as well; both in one message are taken as they are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from socket import NETLINK_ROUTE

from mptcp_throttler.kernel.netlink import NLA_TYPE_MASK, NetlinkSocket, attribute, attributes

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFINFOMSG = struct.Struct("=BxHiII")
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_INFO_KIND = 3, 18, 1
_GSO_LIMITS = {"gso_max_size": 41, "gso_ipv4_max_size": 63}
LARGEST = 65536
"""Bytes: what a kernel allows that does not say."""


@dataclass(frozen=True, slots=True)
class Link:
    """An interface that is there."""

    name: str
    index: int
    gso: dict[str, int] = field(default_factory=dict)
    """The limits on GSO segments in bytes, by name; older kernels have gso_max_size only."""
    kind: str = ""
    """Of a virtual interface, as in ``ip link add … type KIND``."""
    up: bool = True


def find(name: str) -> Link | None:
    """Return the interface *name* of this network namespace; None where there is none. Raises KernelError."""
    question = _IFINFOMSG.pack(0, 0, 0, 0, 0) + attribute(_IFLA_IFNAME, name.encode() + b"\0")
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        answer = netlink.ask_if_there(_RTM_GETLINK, question, f"look up interface {name}")
    if answer is None:
        return None
    _family, _type, index, flags, _change = _IFINFOMSG.unpack_from(answer)
    fields = dict(attributes(answer, _IFINFOMSG.size))
    gso = {
        limit: int.from_bytes(fields[number][:4], "little") for limit, number in _GSO_LIMITS.items() if number in fields
    }
    about = dict(attributes(fields.get(_IFLA_LINKINFO & NLA_TYPE_MASK, b"")))
    kind = about.get(_IFLA_INFO_KIND, b"").rstrip(b"\0").decode()
    return Link(name, index, gso or {"gso_max_size": LARGEST}, kind, bool(flags & _IFF_UP))


def set_gso(link: Link, sizes: dict[str, int]) -> None:
    """Set the limits on GSO segments, in bytes, by name. Raises KernelError."""
    payload = _IFINFOMSG.pack(0, 0, link.index, 0, 0)
    payload += b"".join(attribute(_GSO_LIMITS[name], struct.pack("=I", size)) for name, size in sizes.items())
    what = ", ".join(f"{name} {size}" for name, size in sizes.items())
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        netlink.request(_RTM_NEWLINK, 0, payload, f"set {what} of {link.name}")
