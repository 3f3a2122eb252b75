# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads gateways and local addresses from the kernel. rtnetlink(7).

pyroute2 is not used, because it takes milliseconds per query, and a thousand relays may connect at once, each from two
or three addresses.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.netlink import NetlinkSocket, attribute, attributes
from mptcp_tunnel.kernel.network import index_of
from mptcp_tunnel.model import Address

_GET_ADDRESS: Final = 22  # RTM_GETADDR of linux/rtnetlink.h
_GET_ROUTE: Final = 26  # RTM_GETROUTE
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_INTERFACE_ADDRESS: Final = struct.Struct("=BBBBI")
_DESTINATION, _SOURCE, _INTERFACE, _GATEWAY, _VIA = 1, 2, 4, 5, 18
_ADDRESS, _LOCAL = 1, 2


class Routes:
    """Queries to the kernel of one network namespace."""

    def __init__(self) -> None:
        """Raises KernelError."""
        self._netlink = NetlinkSocket(socket.NETLINK_ROUTE, timeout=1.0)

    def close(self) -> None:
        self._netlink.close()

    def next_hop(self, to: Address, source: Address, interface: int) -> Address:
        """Return the gateway from *source* to *to* through an interface, or *to* itself if it is on the link. Raises
        KernelError."""
        family = socket.AF_INET if to.version == 4 else socket.AF_INET6
        bits = to.max_prefixlen
        request = _ROUTE.pack(family, bits, bits, 0, 0, 0, 0, 0, 0)
        request += attribute(_DESTINATION, to.packed) + attribute(_SOURCE, source.packed)
        request += attribute(_INTERFACE, struct.pack("=I", interface))
        answer = self._netlink.ask(_GET_ROUTE, request, f"find a route to {to} from {source}")
        found = dict(attributes(answer, _ROUTE.size))
        gateway = found.get(_GATEWAY) or found.get(_VIA, b"")[2:]  # RFC 5549: the address follows its family
        return ip_address(gateway) if gateway else to

    def addresses(self) -> dict[int, list[Address]]:
        """Return the addresses of each interface, by its index. Raises KernelError."""
        found: dict[int, list[Address]] = {}
        request = _INTERFACE_ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        for each in self._netlink.dump(_GET_ADDRESS, request, "list the addresses"):
            *_, interface = _INTERFACE_ADDRESS.unpack_from(each)
            values = dict(attributes(each, _INTERFACE_ADDRESS.size))
            packed = values.get(_LOCAL) or values.get(_ADDRESS)
            if packed:
                found.setdefault(interface, []).append(ip_address(packed))
        return found

    def route(self, to: Address, interface: str, addresses: Mapping[int, Sequence[Address]]) -> tuple[Address, Address]:
        """Return the next hop as :meth:`next_hop` does, and the source address. *addresses*: the result of
        :meth:`addresses`. Raises KernelError."""
        index = index_of(interface)
        usable = [each for each in addresses.get(index, ()) if each.version == to.version and not each.is_link_local]
        if not usable:
            raise KernelError(f"{interface} has no IPv{to.version} address")
        return self.next_hop(to, usable[0], index), usable[0]
