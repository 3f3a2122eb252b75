"""The host's interfaces as the kernel describes them, and by which one it sends to a client. rtnetlink(7), if_link.h.

Read by name in one question, not by a dump: a netlink socket carries one dump at a time, and two of our tasks that ask
at the same moment would meet as EBUSY. pyroute2 does not know the GSO limit for IPv4. Setting ``gso_max_size`` to a
small value sets that for IPv4 as well; both in one message are taken as they are.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from socket import NETLINK_ROUTE

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.netlink import NLA_TYPE_MASK, NetlinkSocket, attribute, attributes
from mptcp_throttler.mptcp.model import FourTuple

_RTM_NEWLINK, _RTM_GETLINK = 16, 18
_IFINFOMSG = struct.Struct("=BxHiII")
_IFF_UP = 1
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_LINK_NETNSID = 3, 5, 10, 18, 37
_IFLA_INFO_KIND = 1
_UNCHANGED = frozenset(["ipvlan", "ipvtap", "macvlan", "macvtap", "vlan"])
"""Kinds whose packets are those of the interface below, which sees them, too. What tunnels carry is wrapped there, and
the interface that a veth(4) names is its other end."""
_RTM_GETADDR = 22
_IFADDRMSG = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_GSO_LIMITS = {"gso_max_size": 41, "gso_ipv4_max_size": 63}
_RTM_GETROUTE = 26
_ROUTE = struct.Struct("=BBB5xI")
"""struct rtmsg: family, bits of destination and of source, …, flags."""
_RTA_DST, _RTA_SRC, _RTA_OIF = 1, 2, 4
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
    below: int = 0
    """Index of the interface on which this one stands, in this network namespace; 0 where it stands on none."""
    master: int = 0
    """Index of the bridge, bond or the like of which this one is a port; 0 where there is none."""


def find(which: str | int) -> Link | None:
    """Return the interface of this name, or index, in this network namespace; None where there is none.

    By another of its names (altname) it is found under that. Raises KernelError.
    """
    question = _IFINFOMSG.pack(0, 0, which if isinstance(which, int) else 0, 0, 0)
    if isinstance(which, str):
        question += attribute(_IFLA_IFNAME, which.encode() + b"\0")
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        answer = netlink.ask_if_there(_RTM_GETLINK, question, f"look up interface {which}")
    if answer is None:
        return None
    return replace(_link(answer), name=which) if isinstance(which, str) else _link(answer)


def stands_on() -> dict[str, set[str]]:
    """Return for each interface of this network namespace those on which it stands. Raises KernelError."""
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        return below(_link(each) for each in netlink.dump(_RTM_GETLINK, _IFINFOMSG.pack(0, 0, 0, 0, 0), "list links"))


def networks() -> list[IPv4Network | IPv6Network]:
    """Return the networks on which this network namespace has addresses, without those of loopback and of the link
    only. Raises KernelError."""
    found: list[IPv4Network | IPv6Network] = []
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        for each in netlink.dump(_RTM_GETADDR, _IFADDRMSG.pack(0, 0, 0, 0, 0), "list addresses"):
            _family, bits, _flags, _scope, _index = _IFADDRMSG.unpack_from(each)
            fields = dict(attributes(each, _IFADDRMSG.size))
            # Of a point-to-point link IFA_ADDRESS is the other end's.
            address = ip_address(fields.get(_IFA_ADDRESS) or fields[_IFA_LOCAL])
            if not address.is_loopback and not address.is_link_local:
                found.append(ip_network((address, bits), strict=False))
    return found


def below(links: Iterable[Link]) -> dict[str, set[str]]:
    """Return for each of *links* those that pass its packets on as they are: what is below it, or its ports."""
    there = {link.index: link for link in links}
    found: dict[str, set[str]] = {link.name: set() for link in there.values()}
    for link in there.values():
        if link.kind in _UNCHANGED and link.below in there:
            found[link.name].add(there[link.below].name)
        if link.master in there:
            found[there[link.master].name].add(link.name)
    return found


def _link(answer: bytes) -> Link:
    _family, _type, index, flags, _change = _IFINFOMSG.unpack_from(answer)
    fields = dict(attributes(answer, _IFINFOMSG.size))
    gso = {limit: _number(fields[number]) for limit, number in _GSO_LIMITS.items() if number in fields}
    about = dict(attributes(fields.get(_IFLA_LINKINFO & NLA_TYPE_MASK, b"")))
    return Link(
        _text(fields.get(_IFLA_IFNAME, b"")),
        index,
        gso or {"gso_max_size": LARGEST},
        _text(about.get(_IFLA_INFO_KIND, b"")),
        bool(flags & _IFF_UP),
        # An index of another network namespace says nothing here.
        0 if _IFLA_LINK_NETNSID in fields else _number(fields.get(_IFLA_LINK, b"")),
        _number(fields.get(_IFLA_MASTER, b"")),
    )


def _number(value: bytes) -> int:
    return int.from_bytes(value[:4], "little")


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")


def set_gso(link: Link, sizes: dict[str, int]) -> None:
    """Set the limits on GSO segments, in bytes, by name. Raises KernelError."""
    payload = _IFINFOMSG.pack(0, 0, link.index, 0, 0)
    payload += b"".join(attribute(_GSO_LIMITS[name], struct.pack("=I", size)) for name, size in sizes.items())
    what = ", ".join(f"{name} {size}" for name, size in sizes.items())
    with NetlinkSocket(NETLINK_ROUTE) as netlink:
        netlink.request(_RTM_NEWLINK, 0, payload, f"set {what} of {link.name}")


class Routes:
    """By which of *interfaces* packets leave, in the namespace that this is made in. A question costs some 20 µs.

    For subflows whose packets did not show it: those older than the daemon, and those of which nothing was captured.
    The local address does not tell, for a host may use one address on several interfaces.
    """

    def __init__(self, interfaces: tuple[str, ...]) -> None:
        self._interfaces = interfaces
        self._netlink = NetlinkSocket(NETLINK_ROUTE)

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
