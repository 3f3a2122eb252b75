# SPDX-License-Identifier: GPL-2.0-or-later
"""Turn a topology into the commands that build it. Pure.

The order is: sysctls (which apply to devices that are created later), links with addresses and qdiscs, routes, MPTCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .model import Link, Node, Topology

COMMON_SYSCTLS = (
    # With two paths and policy routing, the route back to a packet's source may use another device.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    # Do not wait for duplicate address detection, and accept no addresses or routes that are not declared.
    ("net.ipv6.conf.default.accept_dad", "0"),
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    # Let a device that is down for some time keep its IPv6 addresses, as it keeps its IPv4 addresses.
    ("net.ipv6.conf.default.keep_addr_on_down", "1"),
    # Let each run start without metrics of earlier connections.
    ("net.ipv4.tcp_no_metrics_save", "1"),
    ("net.mptcp.enabled", "1"),
)
MTU, ETHERNET_HEADER = 1500, 14
FIRST_INDEX = 1001
QUEUE_MS = 50
"""Maximum milliseconds that a packet may wait in the queue of a link or path with a rate."""


@dataclass(frozen=True, slots=True)
class Step:
    """One command inside the namespace of *node*."""

    node: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{self.node}] {' '.join(self.argv)}"


def tbf(rate: int, queue_ms: int, frame: int = MTU + ETHERNET_HEADER) -> tuple[str, ...]:
    """Return arguments of tc-tbf(8) for a drop-tail queue. Its bucket fits packets of up to *frame* bytes."""
    burst = max(2 * frame, rate * 2 // 8_000)
    queue = max(10 * frame, rate * queue_ms // 8_000)
    return ("tbf", "rate", f"{rate}bit", "burst", str(burst), "limit", str(queue + burst))


def _shape(node: str, device: str, rate: int | None, mtu: int) -> Iterator[Step]:
    """Yield the step that limits *device* to *rate*, if there is a rate."""
    if rate is not None:
        shaper = tbf(rate, QUEUE_MS, mtu + ETHERNET_HEADER)
        yield Step(node, ("tc", "qdisc", "add", "dev", device, "root", *shaper))


def _link_steps(link: Link, index: int, namespace: str) -> Iterator[Step]:
    # Set the index. If both ends had the same index by chance, the kernel would take them for a device without a lower
    # link, and would notify IPv6 of the carrier up to a second late (net/core/link_watch.c, linkwatch_urgent_event).
    mtu, peer = f"mtu {link.mtu}", f"name {link.b.device} mtu {link.mtu} netns {namespace}"
    pair = f"ip link add {link.a.device} index {index} {mtu} type veth peer {peer}"
    yield Step(link.a.node, tuple(pair.split()))
    for end in (link.a, link.b):
        # With offloads, MPTCP over veth is erratic.
        yield Step(end.node, ("ethtool", "-K", end.device, "tso", "off", "gso", "off", "gro", "off"))
        for address in end.addresses:
            nodad = ("nodad",) if ":" in address else ()
            yield Step(end.node, ("ip", "address", "add", address, "dev", end.device, *nodad))
        yield Step(end.node, ("ip", "link", "set", end.device, "up"))
        yield from _shape(end.node, end.device, link.rate, MTU)


def node_steps(node: Node) -> Iterator[Step]:
    for route in node.routes:
        yield Step(node.name, ("ip", *route.split()))
    limits = f"ip mptcp limits set subflow {node.max_subflows} add_addr_accepted {node.max_add_addr}"
    yield Step(node.name, tuple(limits.split()))
    for end in node.endpoints:
        words = (end.address, "dev", end.device, "id", str(end.id), "subflow")
        yield Step(node.name, ("ip", "mptcp", "endpoint", "add", *words))


def steps(topology: Topology, namespaces: dict[str, str]) -> tuple[Step, ...]:
    """Return all steps in order. *namespaces* has the name of the namespace of each node."""
    result: list[Step] = []
    for node in topology.nodes:
        settings = (*COMMON_SYSCTLS, *node.sysctls)
        result.append(Step(node.name, ("sysctl", "-qw", *(f"{key}={value}" for key, value in settings))))
        result.append(Step(node.name, ("ip", "link", "set", "lo", "up")))
    for index, link in enumerate(topology.links, FIRST_INDEX):
        result.extend(_link_steps(link, index, namespaces[link.b.node]))
    # The emulator causes the delay and the loss of a path (``hops``).
    for hop in topology.hops:
        for _, device, direction in hop.directions:
            result.extend(_shape(hop.node, device, direction.rate, direction.mtu))
    for node in topology.nodes:
        result.extend(node_steps(node))
    return tuple(result)
