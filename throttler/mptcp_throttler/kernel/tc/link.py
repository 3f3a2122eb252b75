# SPDX-License-Identifier: GPL-2.0-or-later
"""The host's interfaces, and the interface of the route to a client. rtnetlink(7), if_link.h.

Look-ups are by name, not by a dump: a netlink socket carries one dump at a time, so two concurrent tasks would get
EBUSY. pyroute2 does not know the GSO limit for IPv4. A small ``gso_max_size`` also changes the IPv4 limit, unless the
same message sets both.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from socket import NETLINK_ROUTE

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import NetlinkSocket, attribute, attributes, integer, string, text
from mptcp_throttler.mptcp.model import FourTuple

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFINFOMSG = struct.Struct("=BxHiII")
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_LINK_NETNSID = 3, 5, 10, 18, 37
_IFLA_INFO_KIND = 1
_PASSED_UNCHANGED = frozenset(["ipvlan", "ipvtap", "macvlan", "macvtap", "vlan"])
"""Kinds of interfaces whose packets also pass the interface below unchanged; not tunnels, and not veth(4)."""
_RTM_GETADDR = 22
_IFADDRMSG = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_GSO_LIMITS = {"gso_max_size": 41, "gso_ipv4_max_size": 63}
_RTM_GETROUTE = 26
_RTMSG = struct.Struct("=BBB5xI")  # struct rtmsg: family, prefix lengths of destination and source, …, flags
_RTA_DST, _RTA_SRC, _RTA_OIF = 1, 2, 4
MAX_GSO = 65536  # bytes: the limit of a kernel that does not report one


@dataclass(frozen=True, slots=True)
class Link:
    name: str
    index: int
    gso: dict[str, int] = field(default_factory=dict)  # GSO limits in bytes, by name; older kernels: gso_max_size only
    kind: str = ""  # kind of a virtual interface, as in ``ip link add … type KIND``
    up: bool = True
    below: int = 0  # index of the interface below in this network namespace, or 0
    master: int = 0  # Index of the bridge, bond etc. that has this interface as a port, or 0.


def find_link(key: str | int) -> Link | None:
    """Return the interface with this index, name or altname (returned as the name), or None. Raises KernelError."""
    request = _IFINFOMSG.pack(0, 0, key if isinstance(key, int) else 0, 0, 0)
    if isinstance(key, str):
        request += string(_IFLA_IFNAME, key)
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        reply = netlink.ask_if_exists(_RTM_GETLINK, request, f"look up interface {key}")
    if reply is None:
        return None
    return replace(_link(reply), name=key) if isinstance(key, str) else _link(reply)


def read_lower_interfaces() -> dict[str, set[str]]:
    """Return :func:`lower_interfaces` for all interfaces of this network namespace. Raises KernelError."""
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        return lower_interfaces(map(_link, netlink.dump(_RTM_GETLINK, _IFINFOMSG.pack(0, 0, 0, 0, 0), "list links")))


def networks() -> list[IPv4Network | IPv6Network]:
    """Return the networks of this network namespace's addresses, except loopback and link-local. Raises KernelError."""
    result: list[IPv4Network | IPv6Network] = []
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        for each in netlink.dump(_RTM_GETADDR, _IFADDRMSG.pack(0, 0, 0, 0, 0), "list addresses"):
            _family, bits, _flags, _scope, _index = _IFADDRMSG.unpack_from(each)
            fields = dict(attributes(each, _IFADDRMSG.size))
            # On a point-to-point link IFA_ADDRESS is the peer's address.
            address = ip_address(fields.get(_IFA_ADDRESS) or fields[_IFA_LOCAL])
            if not address.is_loopback and not address.is_link_local:
                result.append(ip_network((address, bits), strict=False))
    return result


def lower_interfaces(links: Iterable[Link]) -> dict[str, set[str]]:
    """Return, for each of *links*, the names of its ports and of the interface below that its packets also pass."""
    by_index = {link.index: link for link in links}
    lower: dict[str, set[str]] = {link.name: set() for link in by_index.values()}
    for link in by_index.values():
        if link.kind in _PASSED_UNCHANGED and link.below in by_index:
            lower[link.name].add(by_index[link.below].name)
        if link.master in by_index:
            lower[by_index[link.master].name].add(link.name)
    return lower


def _link(reply: bytes) -> Link:
    _family, _type, index, flags, _change = _IFINFOMSG.unpack_from(reply)
    fields = dict(attributes(reply, _IFINFOMSG.size))
    gso = {limit: integer(fields[number]) for limit, number in _GSO_LIMITS.items() if number in fields}
    gso = gso or {"gso_max_size": MAX_GSO}
    kind = text(dict(attributes(fields.get(_IFLA_LINKINFO, b""))).get(_IFLA_INFO_KIND))
    # An index from another network namespace has no meaning here.
    below = 0 if _IFLA_LINK_NETNSID in fields else integer(fields.get(_IFLA_LINK, b""))
    name, master = text(fields.get(_IFLA_IFNAME)), integer(fields.get(_IFLA_MASTER, b""))
    return Link(name, index, gso, kind, bool(flags & _IFF_UP), below, master)


def set_gso(link: Link, sizes: dict[str, int]) -> None:
    """Set GSO limits, in bytes, by name. Raises KernelError."""
    payload = _IFINFOMSG.pack(0, 0, link.index, 0, 0)
    payload += b"".join(attribute(_GSO_LIMITS[name], struct.pack("=I", size)) for name, size in sizes.items())
    limits = ", ".join(f"{name} {size}" for name, size in sizes.items())
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        netlink.request(_RTM_NEWLINK, 0, payload, f"set {limits} of {link.name}")


class Routes:
    """Looks up the egress interface of a subflow of which no packet was captured, for example because it is older than
    the daemon. Takes about 20 µs. The local address does not suffice: it may be on several interfaces."""

    def __init__(self, interfaces: Sequence[str]) -> None:
        self._interfaces = interfaces
        self._netlink = NetlinkSocket(NETLINK_ROUTE)

    def close(self) -> None:
        self._netlink.close()

    def interface(self, four_tuple: FourTuple) -> str | None:
        """Return the subflow's egress interface, None if it is not ours. A single interface needs no look-up."""
        if len(self._interfaces) == 1:
            return self._interfaces[0]
        bits = 8 * len(four_tuple.remote)
        request = _RTMSG.pack(socket.AF_INET6 if four_tuple.is_ipv6 else socket.AF_INET, bits, bits, 0)
        request += attribute(_RTA_DST, four_tuple.remote) + attribute(_RTA_SRC, four_tuple.local)
        try:
            reply = self._netlink.ask(_RTM_GETROUTE, request, f"look up the route of {four_tuple}")
            index = dict(attributes(reply, _RTMSG.size)).get(_RTA_OIF, b"")
            name = socket.if_indextoname(integer(index))
        except (KernelError, OSError):
            return None
        return name if name in self._interfaces else None
