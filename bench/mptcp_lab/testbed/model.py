# SPDX-License-Identifier: GPL-2.0-or-later
"""A topology as data: nodes, the links between them, and each node's routes and MPTCP settings.

This module does not touch the kernel: ``plan`` turns a topology into commands, and ``build`` runs them. Rates are
integers in bits per second, as the kernel's shapers count: IP packet plus 14 bytes of Ethernet header.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_interface

from ..emulation.model import Direction, EmulatedPath

MAX_PM_LIMIT = 8
"""Highest limit of the in-kernel path manager: MPTCP_PM_ADDR_MAX, net/mptcp/pm_netlink.c."""


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
    """A veth pair. Each direction is shaped at the sending end. A direction with rate None is not shaped."""

    a: End
    b: End
    rate: int | None = None
    queue_ms: int = 50
    """Maximum time in milliseconds that a packet may wait in the shaper's drop-tail queue."""
    offloads: bool = False
    """Whether segmentation and receive offloads stay on. By default they are off, because MPTCP over veth is erratic
    with offloads."""
    mtu: int = 1500


@dataclass(frozen=True, slots=True)
class Route:
    """A route, as ``ip route`` adds it. ``default`` takes its family from *via*."""

    destination: str
    via: str
    device: str
    table: int | None = None
    metric: int | None = None
    mtu: int | None = None
    """MTU for packets on this route, if it is lower than the MTU of the device."""

    @property
    def family(self) -> int:
        return ip_interface(self.via).version


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A rule, as ``ip rule`` adds it: packets from *source*, or received on *incoming*, use *table*."""

    table: int
    family: int
    source: str | None = None
    incoming: str | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint, as ``ip mptcp endpoint`` adds it; see ip-mptcp(8)."""

    address: str
    device: str
    id: int
    flags: tuple[str, ...] = ("subflow",)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a node's connections (``ip mptcp limits``): maximum subflows, maximum accepted announced addresses."""

    subflows: int = MAX_PM_LIMIT
    add_addr_accepted: int = MAX_PM_LIMIT


@dataclass(frozen=True, slots=True)
class Node:
    """One host, which is a network namespace."""

    name: str
    routes: tuple[Route, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    limits: Limits = Limits()
    sysctls: tuple[tuple[str, str], ...] = ()
    """sysctls that are set only in the namespace, before its devices are created."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The router of an emulated path between client and core. It treats packets as *path* describes."""

    node: str
    path: EmulatedPath
    client_device: str
    """The device of the node ``client`` at which the path begins."""
    down: str = "lan"
    """The hop's device towards the client; :attr:`up` is the device towards the core."""
    up: str = "wan"

    @property
    def directions(self) -> tuple[tuple[str, str, Direction], ...]:
        """Name, sending device and treatment of packets of each direction."""
        return (("down", self.down, self.path.down), ("up", self.up, self.path.up))

    @property
    def impaired(self) -> bool:
        return self.path.down.impaired or self.path.up.impaired


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes and the links between them."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    hops: tuple[Hop, ...] = ()

    def node(self, name: str) -> Node:
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(f"topology {self.name} has no node {name!r}; {', '.join(n.name for n in self.nodes)}")

    def end(self, node: str, device: str) -> End:
        for link in self.links:
            for end in (link.a, link.b):
                if (end.node, end.device) == (node, device):
                    return end
        raise KeyError(f"topology {self.name} has no device {device!r} on node {node!r}")

    def devices(self, node: str) -> tuple[str, ...]:
        ends = (end for link in self.links for end in (link.a, link.b))
        return tuple(end.device for end in ends if end.node == node)
