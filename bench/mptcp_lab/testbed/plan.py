# SPDX-License-Identifier: GPL-2.0-or-later
"""Turn a topology into the commands that build it. Pure, so that the commands can be printed and compared.

Each step is one command of iproute2, ethtool or sysctl inside one node's namespace. The order is: sysctls (which apply
to devices that are created later), links, addresses, devices up, qdiscs, routes, MPTCP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .model import End, Hop, Link, Node, Topology

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
ETHERNET_HEADER = 14
ETHERNET_FRAME = 1500 + ETHERNET_HEADER
FIRST_INDEX = 1001


@dataclass(frozen=True, slots=True)
class Step:
    """One command inside the namespace of *node*."""

    node: str
    argv: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{self.node}] {' '.join(self.argv)}"


def tbf(rate: int, queue_ms: int, frame: int = ETHERNET_FRAME) -> tuple[str, ...]:
    """Return arguments of tc-tbf(8) for a drop-tail queue. Packets above *frame* bytes may never fit its bucket."""
    burst = max(2 * frame, rate * 2 // 8_000)
    queue = max(10 * frame, rate * queue_ms // 8_000)
    return ("tbf", "rate", f"{rate}bit", "burst", str(burst), "limit", str(queue + burst))


def _link_steps(link: Link, number: int, namespace: str) -> Iterator[Step]:
    a, b = link.a, link.b
    # Set the index. If both ends had the same index by chance, the kernel would take them for a device without a lower
    # link, and would notify IPv6 of the carrier up to a second late (net/core/link_watch.c, linkwatch_urgent_event).
    index = ("index", str(FIRST_INDEX + number))
    pair = ("ip", "link", "add", a.device, *index, "mtu", str(link.mtu), "type", "veth")
    yield Step(a.node, (*pair, "peer", "name", b.device, "mtu", str(link.mtu), "netns", namespace))
    for end in (a, b):
        yield from _end_steps(end, link)


def _end_steps(end: End, link: Link) -> Iterator[Step]:
    if not link.offloads:
        yield Step(end.node, ("ethtool", "-K", end.device, "tso", "off", "gso", "off", "gro", "off"))
    for address in end.addresses:
        nodad = ("nodad",) if ":" in address else ()
        yield Step(end.node, ("ip", "address", "add", address, "dev", end.device, *nodad))
    yield Step(end.node, ("ip", "link", "set", end.device, "up"))
    if link.rate is not None:
        shaper = tbf(link.rate, link.queue_ms)
        yield Step(end.node, ("tc", "qdisc", "add", "dev", end.device, "root", *shaper))


def node_steps(node: Node) -> Iterator[Step]:
    for route in node.routes:
        table = ("table", str(route.table)) if route.table is not None else ()
        metric = ("metric", str(route.metric)) if route.metric is not None else ()
        mtu = ("mtu", str(route.mtu)) if route.mtu is not None else ()
        where = (route.destination, "via", route.via, "dev", route.device, *table, *metric, *mtu)
        yield Step(node.name, ("ip", f"-{route.family}", "route", "add", *where))
    for rule in node.rules:
        source = ("from", rule.source) if rule.source is not None else ()
        incoming = ("iif", rule.incoming) if rule.incoming is not None else ()
        match = (*source, *incoming, "table", str(rule.table))
        yield Step(node.name, ("ip", f"-{rule.family}", "rule", "add", *match))
    limits = ("subflow", str(node.limits.subflows), "add_addr_accepted", str(node.limits.add_addr_accepted))
    yield Step(node.name, ("ip", "mptcp", "limits", "set", *limits))
    for endpoint in node.endpoints:
        what = (endpoint.address, "dev", endpoint.device, "id", str(endpoint.id), *endpoint.flags)
        yield Step(node.name, ("ip", "mptcp", "endpoint", "add", *what))


def hop_steps(hop: Hop) -> Iterator[Step]:
    """Yield the steps for a path's rates. The emulator causes delay and loss (``hops``)."""
    for _, device, direction in hop.directions:
        if direction.rate is not None:
            shaper = tbf(direction.rate, direction.queue_ms, direction.mtu + ETHERNET_HEADER)
            yield Step(hop.node, ("tc", "qdisc", "add", "dev", device, "root", *shaper))


def steps(topology: Topology, namespaces: dict[str, str]) -> tuple[Step, ...]:
    """Return all steps in order. *namespaces* has the name of the namespace of each node."""
    result: list[Step] = []
    for node in topology.nodes:
        settings = (*COMMON_SYSCTLS, *node.sysctls)
        result.append(Step(node.name, ("sysctl", "-qw", *(f"{key}={value}" for key, value in settings))))
        result.append(Step(node.name, ("ip", "link", "set", "lo", "up")))
    for number, link in enumerate(topology.links):
        result.extend(_link_steps(link, number, namespaces[link.b.node]))
    for hop in topology.hops:
        result.extend(hop_steps(hop))
    for node in topology.nodes:
        result.extend(node_steps(node))
    return tuple(result)
