# SPDX-License-Identifier: GPL-2.0-or-later
"""Topologies for the tests, the demo and the experiments.

::

    client ──eth0──┐                        ┌── proxy (wan0)
                   ├── core (routes, shapes) ┤
    client ─wlan0──┘                        └── origin (eth0)

An ``EmulatedPath`` has its own router, a hop, which shapes, delays and loses packets::

    client ──eth0── lan hop1 wan ── core

Path *i* (from 1; the eighth has number 10) has the client networks 10.77.i.0/24 and fd77:i::/64, by which
conf/policy.yaml distinguishes paths. The proxy is 10.77.8.2, the origin 10.77.9.2. In each network, .1 is the core or,
on an emulated path, the hop. Network 32 + i connects hop and core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..emulation.model import EmulatedPath
from .model import LAN, WAN, End, Endpoint, Hop, Link, Node, Topology

MBIT = 1_000_000
ETHERNET_RATE = 100 * MBIT
WIFI_RATE = 30 * MBIT
PATH_NETWORKS = (1, 2, 3, 4, 5, 6, 7, 10)
"""Numbers of the client's networks. Numbers 8, 9 and from 18 on belong to proxy and origin, from 33 on to hops."""
SECOND_CLIENT_NETWORKS = PATH_NETWORKS[2:4]
SECOND_PROXY, HOME = 11, 48
"""Numbers of the networks of a second proxy, and of a relay's clients."""
FORWARDING = (("net.ipv4.ip_forward", "1"), ("net.ipv6.conf.all.forwarding", "1"))


def _device(index: int) -> str:
    return ("eth0", "wlan0")[index - 1] if index <= 2 else f"path{index}"


def _addresses(number: int, host: int) -> tuple[str, str]:
    return f"10.77.{number}.{host}/24", f"fd77:{number}::{host}/64"


def _route(destination: str, network: int, host: int, more: str) -> tuple[str, str]:
    """Return the commands for the IPv4 and the IPv6 route to *destination* by *host* in *network*.

    As *destination*, ``{0}N{1}`` is network N, and ``{0}N{2}`` its host 2.
    """
    return (
        f"-4 route add {destination.format('10.77.', '.0/24', '.2')} via 10.77.{network}.{host} {more}",
        f"-6 route add {destination.format('fd77:', '::/64', '::2')} via fd77:{network}::{host} {more}",
    )


def _default(device: str, network: int) -> tuple[str, str]:
    return _route("default", network, 1, f"dev {device}")


def _add_hop(i: int, path: EmulatedPath) -> tuple[Hop, Node, tuple[Link, Link]]:
    """Return the hop of path *i*, its node, and its links to client and core."""
    hop, between, device = Hop(f"hop{i}", path, _device(i)), 32 + i, _device(i)
    links = (
        Link(End("client", device, _addresses(i, 2)), End(hop.node, LAN, _addresses(i, 1)), mtu=path.mtu),
        Link(
            End(hop.node, WAN, _addresses(between, 2)),
            End("core", f"to-{device}", _addresses(between, 1)),
            mtu=max(1500, path.mtu),
        ),
    )
    return hop, Node(hop.node, _default(WAN, between), sysctls=FORWARDING), links


def paths(
    rates: Sequence[EmulatedPath | int | None],
    *,
    proxy_interfaces: bool = False,
    name: str | None = None,
) -> Topology:
    """Return client, core, proxy and origin with one path for each of *rates*.

    A path is given by its rate in bits per second in both directions, by None if it is not shaped, or as an
    :class:`EmulatedPath`, which has a hop. The client's connections open on the first path, and the others join. With
    *proxy_interfaces*, the proxy keeps its address, but path *i* uses the *i*-th of its interfaces (wan0, wan1, …).
    """
    numbers = PATH_NETWORKS[: len(rates)]
    links: list[Link] = []
    hops: list[Hop] = []
    nodes: list[Node] = []
    routes: dict[str, list[str]] = {"client": [], "core": [], "proxy": [*_default("wan0", 8)]}
    for i, rate in zip(numbers, rates, strict=True):
        device, mtu = _device(i), ""
        if isinstance(rate, EmulatedPath):
            hop, node, hop_links = _add_hop(i, rate)
            hops.append(hop)
            nodes.append(node)
            links += hop_links
            routes["core"] += _route(f"{{0}}{i}{{1}}", 32 + i, 2, f"dev to-{device}")
            mtu = f" mtu {rate.up.mtu}" if rate.up.mtu < rate.mtu else ""
        else:
            ends = End("client", device, _addresses(i, 2)), End("core", f"to-{device}", _addresses(i, 1))
            links.append(Link(*ends, rate))
        for where in (f"metric {100 * i}", f"table {100 + i}"):
            routes["client"] += _route("default", i, 1, f"dev {device} {where}{mtu}")
        routes["client"] += [
            f"-4 rule add from 10.77.{i}.2 table {100 + i}",
            f"-6 rule add from fd77:{i}::2 table {100 + i}",
        ]
    links.append(Link(End("proxy", "wan0", _addresses(8, 2)), End("core", "to-proxy", _addresses(8, 1))))
    links.append(Link(End("origin", "eth0", _addresses(9, 2)), End("core", "to-origin", _addresses(9, 1))))
    for i in numbers[1:] if proxy_interfaces else ():
        # Network 16 + i is for the i-th interface. The service address stays on wan0.
        network, to_proxy, wan, table = 16 + i, f"to-proxy{i - 1}", f"wan{i - 1}", 100 + i
        ends = End("proxy", wan, _addresses(network, 2)), End("core", to_proxy, _addresses(network, 1))
        links.append(Link(*ends))
        routes["proxy"] += _route(f"{{0}}{i}{{1}}", network, 1, f"dev {wan}")
        routes["core"] += _route("{0}8{2}", network, 2, f"dev {to_proxy} table {table}")
        routes["core"] += [f"-{version} rule add iif to-{_device(i)} table {table}" for version in (4, 6)]
    # Add an endpoint for the first path, too: a connection that opens over another path can then join over it.
    endpoints = [
        Endpoint(address.partition("/")[0], _device(i), id=2 * i + offset)
        for i in numbers
        for offset, address in enumerate(_addresses(i, 2))
    ]
    return Topology(
        name or f"{len(rates)}-paths",
        (
            Node("client", tuple(routes["client"]), tuple(endpoints)),
            Node("core", tuple(routes["core"]), sysctls=FORWARDING),
            *nodes,
            Node("proxy", tuple(routes["proxy"])),
            Node("origin", _default("eth0", 9)),
        ),
        tuple(links),
        hops=tuple(hops),
    )


def with_second_client(topology: Topology, name: str, rates: Sequence[int | None] = (None, None)) -> Topology:
    """Return *topology* with another client *name*, which has its own two IPv4 paths of *rates* to the same proxy:
    10.77.3.0/24 and 10.77.4.0/24, which *topology* must not use.
    """
    routes, endpoints, links = list[str](), list[Endpoint](), list[Link]()
    for number, (network, rate) in enumerate(zip(SECOND_CLIENT_NETWORKS, rates, strict=True), 1):
        device, address, gateway, table = _device(number), f"10.77.{network}.2", f"10.77.{network}.1", 100 + number
        default = f"-4 route add default via {gateway} dev {device}"
        routes += [
            f"{default} metric {100 * number}",
            f"{default} table {table}",
            f"-4 rule add from {address} table {table}",
        ]
        endpoints.append(Endpoint(address, device, id=number))
        ends = End(name, device, (f"{address}/24",)), End("core", f"to-{name}{number}", (f"{gateway}/24",))
        links.append(Link(*ends, rate))
    node = Node(name, tuple(routes), tuple(endpoints))
    return replace(topology, nodes=(*topology.nodes, node), links=(*topology.links, *links))


def behind_relay(topology: Topology) -> Topology:
    """Return *topology* with a relay in place of the client, and a client that reaches only the relay, by one path.

    ::

        client ──eth0── lan0 relay ──eth0──┐
                                   ──wlan0─┴── core …

    The relay does not forward packets. Network 48 connects relay and client.
    """
    relay_end = End("relay", "lan0", _addresses(HOME, 1))
    relay_links = tuple(
        replace(link, a=replace(link.a, node="relay")) if link.a.node == "client" else link for link in topology.links
    )
    nodes = tuple(replace(node, name="relay") if node.name == "client" else node for node in topology.nodes)
    client = Node("client", routes=_default("eth0", HOME))
    lan = Link(End("client", "eth0", _addresses(HOME, 2)), relay_end)
    return replace(topology, name=f"{topology.name}-relay", nodes=(client, *nodes), links=(lan, *relay_links))


def with_second_proxy(topology: Topology) -> Topology:
    """Return *topology* with another proxy, the node ``proxy2``: 10.77.11.2 and fd77:11::2."""
    link = Link(
        End("proxy2", "wan0", _addresses(SECOND_PROXY, 2)), End("core", "to-proxy2", _addresses(SECOND_PROXY, 1))
    )
    node = Node("proxy2", routes=_default("wan0", SECOND_PROXY))
    return replace(topology, nodes=(*topology.nodes, node), links=(*topology.links, link))


TWO_PATHS = paths((ETHERNET_RATE, WIFI_RATE), name="two-paths")
"""Ethernet with 100 Mbit/s and Wi-Fi with 30 Mbit/s, and a proxy with one interface."""
TWO_PATHS_TWO_INTERFACES = paths((ETHERNET_RATE, WIFI_RATE), proxy_interfaces=True, name="two-paths-two-interfaces")
"""The same two paths, but the proxy has an interface for each path."""
RELAY = with_second_proxy(behind_relay(paths((40 * MBIT, 20 * MBIT))))
"""A client behind a relay with two uplinks, and two proxies that can be its parents."""
UNSHAPED = paths((None, None), name="unshaped")
"""Two paths that only the machine limits, to measure the datapath's cost."""
