"""The largest GSO segments that an interface builds. linux/if_link.h; pyroute2 does not know the one for IPv4.

Setting ``gso_max_size`` to a small value sets that for IPv4 as well; both in one message are taken as they are.
"""

from __future__ import annotations

import struct

from .netlink import NetlinkSocket, attribute, attributes

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFINFOMSG = struct.Struct("=BxHiII")
_NUMBERS = {"gso_max_size": 41, "gso_ipv4_max_size": 63}
LARGEST = 65536
"""Bytes: what a kernel allows that does not say."""


def read(netlink: NetlinkSocket, index: int) -> dict[str, int]:
    """Return the sizes in bytes, by name; older kernels have ``gso_max_size`` only."""
    answer = netlink.ask(_RTM_GETLINK, _IFINFOMSG.pack(0, 0, index, 0, 0), f"look at interface {index}")
    fields = dict(attributes(answer, _IFINFOMSG.size))
    sizes = {
        name: int.from_bytes(fields[number][:4], "little") for name, number in _NUMBERS.items() if number in fields
    }
    return sizes or {"gso_max_size": LARGEST}


def write(netlink: NetlinkSocket, index: int, sizes: dict[str, int], interface: str) -> None:
    """Set *sizes*, in bytes, by name. Raises KernelError."""
    payload = _IFINFOMSG.pack(0, 0, index, 0, 0)
    payload += b"".join(attribute(_NUMBERS[name], struct.pack("=I", size)) for name, size in sizes.items())
    what = ", ".join(f"{name} {size}" for name, size in sizes.items())
    netlink.request(_RTM_NEWLINK, 0, payload, f"set {what} of {interface}")
