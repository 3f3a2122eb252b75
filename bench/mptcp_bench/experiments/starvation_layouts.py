# SPDX-License-Identifier: GPL-2.0-or-later
"""The layouts of the experiment ``starvation``: topologies in which some paths have low caps, as data. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import paths
from mptcp_lab.testbed.model import End, Endpoint, Topology
from mptcp_lab.testbed.topologies import PATH_NETWORKS, SECOND_CLIENT_NETWORKS, with_second_client

MBIT = 1_000_000
OTHERS = "others"
SECOND_ADDRESS = "10.77.1.130"
SECOND_PROXY_ADDRESS = "10.77.8.3"
NAMES = "abcdefgh"


@dataclass(frozen=True, slots=True)
class PathLoad:
    """One path of a layout, with its rates in bits/s."""

    name: str
    address: str
    """The client's address on this path, which distinguishes the path's packets."""
    link: int
    cap: int | None = None

    @property
    def due(self) -> int:
        """The rate that the path must carry."""
        return self.link if self.cap is None else min(self.link, self.cap)


@dataclass(frozen=True, slots=True)
class Layout:
    """A topology, what each of its paths must carry, and how many other clients vanish."""

    name: str
    loads: tuple[PathLoad, ...]
    build: Callable[[Sequence[int]], Topology]
    """Function that makes the topology from the rate of each path's link in bits/s."""
    networks: tuple[tuple[str, ...], ...]
    """The clients' networks of each path, by which the policy distinguishes the paths."""
    vanishing: int = 0
    """Number of other clients that share the paths and their caps, and then are cut off."""
    mapped: bool = False
    """Whether the client connects to the proxy's IPv4 address from an IPv6 socket."""
    one_link: bool = False
    """Whether all paths share one link, with their total rate. Such a layout has no variant with slow links."""

    def load(self, path: str) -> PathLoad:
        return next(load for load in self.loads if load.name == path)

    def topology(self, physical: bool) -> Topology:
        """Return the topology. If *physical*, its links are as slow as the caps."""
        return self.build([load.due if physical else load.link for load in self.loads])

    def policy(self) -> str:
        """Return the text of the policy with the caps."""
        named = zip(self.loads, self.networks, strict=True)
        lines = ["version: 1", "paths:"]
        lines += [f"  {load.name}: {{clients: [{', '.join(networks)}]}}" for load, networks in named]
        if self.vanishing:
            # Without this, the guard would lift the caps two seconds after the clients vanish.
            lines.append("guard: {enabled: false}")
        lines.append("rules:")
        for load in self.loads:
            if load.cap is not None:
                lines.append(f"- {{name: {load.name}, paths: [{load.name}], throttle: {{rate: {load.cap} bit/s}}}}")
        return "\n".join(lines) + "\n"


def _loads(rates: Sequence[float], caps: Sequence[float | None]) -> tuple[PathLoad, ...]:
    return tuple(
        PathLoad(name, f"10.77.{network}.2", round(rate * MBIT), None if cap is None else round(cap * MBIT))
        for name, network, rate, cap in zip(NAMES, PATH_NETWORKS, rates, caps, strict=False)
    )


def _networks(count: int) -> tuple[tuple[str, ...], ...]:
    return tuple((f"10.77.{network}.0/24",) for network in PATH_NETWORKS[:count])


def _emulated(rates: Sequence[int], rtts: Sequence[int]) -> list[EmulatedPath]:
    """Return paths with *rates* in bits/s and *rtts* in milliseconds."""
    return [
        EmulatedPath(name, *[Direction(rate, rtt * 500) for _ in ("down", "up")])
        for name, rate, rtt in zip(NAMES, rates, rtts, strict=False)
    ]


def _with_endpoints(topology: Topology, node: str, *endpoints: Endpoint) -> Topology:
    nodes = tuple(replace(each, endpoints=endpoints) if each.name == node else each for each in topology.nodes)
    return replace(topology, nodes=nodes)


def _with_address(topology: Topology, node: str, device: str, address: str) -> Topology:
    def more(end: End) -> End:
        return replace(end, addresses=(*end.addresses, address)) if (end.node, end.device) == (node, device) else end

    links = tuple(replace(link, a=more(link.a), b=more(link.b)) for link in topology.links)
    return replace(topology, links=links)


def eight() -> Layout:
    """Return the layout of a tester: eight paths, three with low caps."""
    loads = _loads((10, 10, 10, 10, 6, 6, 6, 6), (7.3, 1, None, None, 0.7, None, None, None))

    def build(rates: Sequence[int]) -> Topology:
        topology = paths(list(rates), name="eight-paths")
        joins = list(zip(loads, topology.devices("client"), strict=True))[1:]
        # The kernel allows eight endpoints. The first path needs none, because connections open on it.
        ends = [Endpoint(load.address, device, number) for number, (load, device) in enumerate(joins, 2)]
        return _with_endpoints(topology, "client", *ends)

    return Layout("eight", loads, build, _networks(8))


def three() -> Layout:
    """Return three paths of different delay, with a cap on the one with the middle delay."""
    loads = _loads((20, 20, 20), (None, 1, None))
    return Layout("three", loads, lambda rates: paths(_emulated(rates, (10, 40, 60))), _networks(3))


def low(cap: float) -> Layout:
    """Return DSL beside LTE, which has a cap in Mbit/s, as when a data volume is used up."""
    loads = _loads((50, 20), (None, cap))
    return Layout(f"low-{cap * 1000:g}k", loads, lambda rates: paths(_emulated(rates, (20, 60))), _networks(2))


def families() -> Layout:
    """Return a capped IPv6 subflow that joins beside IPv4. The proxy announces its IPv6 address."""
    first, join = _loads((30, 20), (None, 3))
    join = replace(join, address="fd77:2::2")

    def build(rates: Sequence[int]) -> Topology:
        topology = paths(_emulated(rates, (20, 20)))
        topology = _with_endpoints(topology, "client", Endpoint("fd77:2::2", "wlan0", 4, ("subflow", "fullmesh")))
        return _with_endpoints(topology, "proxy", Endpoint("fd77:8::2", "wan0", 2, ("signal",)))

    return Layout("families", (first, join), build, (("10.77.1.0/24",), ('"fd77:2::/64"',)), mapped=True)


def fullmesh() -> Layout:
    """Return two client addresses and two proxy addresses, which make four subflows. Two of these share a cap."""
    loads = _loads((30, 20), (None, 3))

    def build(rates: Sequence[int]) -> Topology:
        topology = paths(_emulated(rates, (20, 20)))
        mesh = ("subflow", "fullmesh")
        topology = _with_endpoints(
            topology, "client", Endpoint("10.77.1.2", "eth0", 2, mesh), Endpoint("10.77.2.2", "wlan0", 4, mesh)
        )
        topology = _with_address(topology, "proxy", "wan0", f"{SECOND_PROXY_ADDRESS}/24")
        return _with_endpoints(topology, "proxy", Endpoint(SECOND_PROXY_ADDRESS, "wan0", 2, ("signal",)))

    return Layout("fullmesh", loads, build, _networks(2))


def prefixes() -> Layout:
    """Return one link on which the client has two addresses. One of these is capped."""
    first, second = _loads((19.3, 0.7), (None, 0.7))
    second = replace(second, address=SECOND_ADDRESS)

    def build(rates: Sequence[int]) -> Topology:
        topology = paths(_emulated([sum(rates)], (20,)))
        topology = _with_address(topology, "client", "eth0", f"{SECOND_ADDRESS}/24")
        return _with_endpoints(topology, "client", Endpoint(SECOND_ADDRESS, "eth0", 2))

    networks = (("10.77.1.0/25",), ("10.77.1.128/25",))
    return Layout("prefixes", (first, second), build, networks, one_link=True)


def vanished(count: int) -> Layout:
    """Return a layout in which *count* other downloads share the cap, and then are cut off."""
    loads = _loads((50, 20), (5, None))

    def build(rates: Sequence[int]) -> Topology:
        topology = paths(_emulated(rates, (20, 20)))
        return with_second_client(topology, OTHERS, rates) if count else topology

    # The policy's paths contain the networks of both clients.
    pairs = zip(PATH_NETWORKS, SECOND_CLIENT_NETWORKS, strict=False)
    networks = tuple((f"10.77.{own}.0/24", f"10.77.{other}.0/24") for own, other in pairs)
    return Layout(f"vanished-{count}", loads, build, networks, vanishing=count)


LAYOUTS = {
    layout.name: layout
    for layout in (
        eight(), three(), *(low(cap) for cap in (2, 0.512, 0.128, 0.064)), families(), fullmesh(), prefixes(),
        *(vanished(count) for count in (0, 4, 9, 1000)),
    )
}  # fmt: skip
