# SPDX-License-Identifier: GPL-2.0-or-later
"""A topology as data: nodes, the links between them, and each node's routes and MPTCP settings. Pure.

Rates are integers in bits per second, as the kernel's shapers count: IP packet plus 14 bytes of Ethernet header.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_interface

from ..emulation.model import Direction, EmulatedPath

MAX_PM_LIMIT = 8
"""Highest limit of the in-kernel path manager: MPTCP_PM_ADDR_MAX, net/mptcp/pm_netlink.c."""
LAN, WAN = "lan", "wan"
"""A hop's devices towards the client and towards the core."""


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: a device in a node's namespace."""

    node: str
    device: str
    addresses: tuple[str, ...] = ()
    """The device's addresses with prefix length, such as ``10.77.1.2/24``."""

    def address(self, family: int) -> str | None:
        """Return the first address of *family* (4 or 6) without prefix length."""
        for text in self.addresses:
            interface = ip_interface(text)
            if interface.version == family:
                return str(interface.ip)
        return None


@dataclass(frozen=True, slots=True)
class Link:
    """A veth pair. Each direction is shaped to *rate* at the sending end; None for no shaping."""

    a: End
    b: End
    rate: int | None = None
    mtu: int = 1500


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint, as ``ip mptcp endpoint`` adds it; see ip-mptcp(8)."""

    address: str
    device: str
    id: int


@dataclass(frozen=True, slots=True)
class Node:
    """One host, which is a network namespace."""

    name: str
    routes: tuple[str, ...] = ()
    """Commands of ip(8), without ``ip``, that add routes and rules."""
    endpoints: tuple[Endpoint, ...] = ()
    max_subflows: int = MAX_PM_LIMIT
    max_add_addr: int = MAX_PM_LIMIT
    """Limits for each MPTCP connection of the node: additional subflows, and accepted addresses of the peer."""
    sysctls: tuple[tuple[str, str], ...] = ()
    """sysctls that are set only in the namespace, before its devices are created."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The router of an emulated path between client and core. It treats packets as *path* describes."""

    node: str
    path: EmulatedPath
    client_device: str
    """The device of the node ``client`` at which the path begins."""

    @property
    def directions(self) -> tuple[tuple[str, str, Direction], ...]:
        """Name, sending device and treatment of packets of each direction."""
        return (("down", LAN, self.path.down), ("up", WAN, self.path.up))


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes and the links between them."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    hops: tuple[Hop, ...] = ()

    def node(self, name: str) -> Node:
        return {node.name: node for node in self.nodes}[name]

    def end(self, node: str, device: str) -> End:
        return self._ends(node)[device]

    def devices(self, node: str) -> tuple[str, ...]:
        return tuple(self._ends(node))

    def _ends(self, node: str) -> dict[str, End]:
        """Return the ends of links at *node* by device."""
        return {end.device: end for link in self.links for end in (link.a, link.b) if end.node == node}
