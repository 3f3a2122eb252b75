# SPDX-License-Identifier: GPL-2.0-or-later
"""A topology as data: nodes, the links between them, and each node's routes and MPTCP settings.

This module does not touch the kernel: ``plan`` turns a topology into commands, and ``build`` runs them. Rates are
integers in bits per second, as the kernel's shapers count: IP packet plus 14 bytes of Ethernet header.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_interface

from ..emulation.model import Direction, EmulatedPath

MAX_DEVICE_NAME = 15
"""Most characters of a device name: IFNAMSIZ - 1, linux/if.h."""
MAX_PM_LIMIT = 8
"""Highest limit of the in-kernel path manager: MPTCP_PM_ADDR_MAX, net/mptcp/pm_netlink.c."""


class TopologyError(ValueError):
    """A topology cannot be built. The text names the wrong node, link or address."""


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
    """A veth pair. Each direction is shaped at the sending end. With rate None it is not shaped."""

    a: End
    b: End
    rate: int | None = None
    queue_ms: int = 50
    """Longest time in milliseconds that a packet may wait in the shaper's drop-tail queue."""
    offloads: bool = False
    """Whether segmentation and receive offloads stay on. By default they are off, because with them MPTCP over veth is
    erratic."""
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
    """MTU for packets on this route, if it is less than the device's."""

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
    """Limits of a node's connections (``ip mptcp limits``): most subflows, most accepted announced addresses."""

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
    """sysctls that are set only in the namespace, before its devices are made."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The router of an emulated path between client and core. It treats packets as *path* describes."""

    node: str
    path: EmulatedPath
    client_device: str
    """The device of the node ``client`` at which the path begins."""
    down: str = "lan"
    """The hop's device towards the client; :attr:`up` is the one towards the core."""
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
    """Nodes and links, which are checked when the topology is made, so that mistakes are found before it is built."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    congestion_control: str | None = "cubic"
    """The congestion control of every namespace, if the kernel has it; otherwise, or with None, it is not changed."""
    hops: tuple[Hop, ...] = ()

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        for name in names:
            if names.count(name) > 1:
                raise TopologyError(f"topology {self.name}: two nodes are called {name!r}")
            if not name.isalnum():
                raise TopologyError(f"topology {self.name}: node name {name!r}: letters and digits only")
        seen: set[tuple[str, str]] = set()
        for end in (end for link in self.links for end in (link.a, link.b)):
            where = f"topology {self.name}, {end.node}:{end.device}"
            if end.node not in names:
                raise TopologyError(f"{where}: no such node; there are {', '.join(names)}")
            if (end.node, end.device) in seen:
                raise TopologyError(f"{where}: two links end in this device")
            if not 0 < len(end.device) <= MAX_DEVICE_NAME:
                raise TopologyError(f"{where}: a device name has 1 to {MAX_DEVICE_NAME} characters")
            seen.add((end.node, end.device))
        for node in self.nodes:
            self._check_node(node, seen)
        for hop in self.hops:
            for device in (("client", hop.client_device), (hop.node, hop.down), (hop.node, hop.up)):
                if device not in seen:
                    raise TopologyError(f"topology {self.name}, path {hop.path.name}: no device {':'.join(device)}")
            if [h.path.name for h in self.hops].count(hop.path.name) > 1:
                raise TopologyError(f"topology {self.name}: two paths are called {hop.path.name!r}")
        for link in self.links:
            if link.rate is not None and link.rate < 8_000:
                raise TopologyError(
                    f"topology {self.name}, link {link.a.node}:{link.a.device}-"
                    f"{link.b.node}:{link.b.device}: rate {link.rate} bit/s: at least 8000 is needed"
                )

    def _check_node(self, node: Node, devices: set[tuple[str, str]]) -> None:
        used = {r.device for r in node.routes} | {e.device for e in node.endpoints}
        used |= {r.incoming for r in node.rules if r.incoming is not None}
        for device in sorted(used):
            if (node.name, device) not in devices:
                raise TopologyError(f"topology {self.name}: node {node.name} has no device {device!r}")
        where = f"topology {self.name}, node {node.name}"
        for value in (node.limits.subflows, node.limits.add_addr_accepted):
            if not 0 <= value <= MAX_PM_LIMIT:
                raise TopologyError(f"{where}: MPTCP limit {value}: 0 to {MAX_PM_LIMIT} is allowed")

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
