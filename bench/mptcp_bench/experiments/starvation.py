# SPDX-License-Identifier: GPL-2.0-or-later
"""Whether a path or client starves beside a low cap: what each path carries, also when other clients have vanished.

A download runs under a policy that gives some of its paths low caps. The experiment shows the rate of each path in the
steady state, as a share of its link or cap. Rates are on the wire, as links and caps count. In the layouts
``vanished-N``, N other downloads share the cap, and then their client is cut off on both paths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, TestbedError, paths
from mptcp_lab.testbed.model import Endpoint, Topology
from mptcp_lab.testbed.recorder import Recorder, Sample, mean_rate
from mptcp_lab.testbed.services import (
    PROXY_PORT,
    mptcp_command,
    start_origin,
    start_proxy,
    start_throttler,
    wait_until,
    write_throttler_config,
)
from mptcp_lab.testbed.topologies import PATH_NETWORKS, SECOND_CLIENT_NETWORKS, with_second_client

from .columns import RUNS, Column, Row, Table, Turn
from .parameters import choices, parameter, whole
from .scenario import Scenario
from .setup import FILE_SIZE
from .two_paths import client_ends, dropping

MBIT = 1_000_000
OTHERS = "others"
NAMES = "abcdefgh"
FREE, CAPPED = 0.95, 0.97
"""Minimum rate of an uncapped path, as a share of its link, and of a capped path, as a share of its cap."""
RESTS = 16
"""A capped path may be idle if the uncapped paths carry at least this multiple of its cap."""
MOST = 1.05
"""Maximum rate of any path, as a share of its link or cap. A link with a higher rate was not emulated."""
INTERVAL = 0.25
SILENT = f'iifname "to-{OTHERS}*" drop; oifname "to-{OTHERS}*" drop'
"""Rules for nft(8) that drop all packets from and to the other clients."""
WARM, MEASURED = 4.0, 8.0
"""Seconds from the start of a download to the measurement, and length of the measurement in seconds."""
GIVEN_UP = 2.0
"""Seconds from the vanishing of the other clients to the measurement."""


@dataclass(frozen=True, slots=True)
class PathLoad:
    """One path of a layout, with its rates in bits/s."""

    name: str
    address: str
    """The client's address on this path."""
    networks: tuple[str, ...]
    """The clients' networks of the path in the policy."""
    link: int
    cap: int | None

    @property
    def due(self) -> int:
        """The rate that the path must carry."""
        return self.link if self.cap is None else min(self.link, self.cap)


@dataclass(frozen=True, slots=True)
class Layout:
    """A topology, what each of its paths must carry, and how many other clients vanish."""

    name: str
    loads: tuple[PathLoad, ...]
    topology: Topology
    vanishing: int = 0
    """Number of other clients that share the paths and their caps, and are then cut off."""
    mapped: bool = False
    """Whether the client connects to the proxy's IPv4 address from an IPv6 socket."""

    def __str__(self) -> str:
        return self.name

    def load(self, path: str) -> PathLoad:
        return next(load for load in self.loads if load.name == path)

    def policy(self) -> str:
        """Return the text of the policy with the caps."""
        lines = ["version: 1", "paths:"]
        lines += [f"  {load.name}: {{clients: [{', '.join(load.networks)}]}}" for load in self.loads]
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
        PathLoad(
            name, f"10.77.{network}.2", (f"10.77.{network}.0/24",), round(rate * MBIT),
            None if cap is None else round(cap * MBIT),
        )
        for name, network, rate, cap in zip(NAMES, PATH_NETWORKS, rates, caps, strict=False)
    )  # fmt: skip


def _emulated(loads: Sequence[PathLoad], rtts: Sequence[int]) -> Topology:
    """Return a topology with the links of *loads* and *rtts* in milliseconds."""
    return paths([
        EmulatedPath(load.name, *[Direction(load.link, rtt * 500)] * 2) for load, rtt in zip(loads, rtts, strict=True)
    ])  # fmt: skip


def _with_endpoints(topology: Topology, node: str, *endpoints: Endpoint) -> Topology:
    nodes = tuple(replace(each, endpoints=endpoints) if each.name == node else each for each in topology.nodes)
    return replace(topology, nodes=nodes)


def eight() -> Layout:
    """Return the layout that a tester used: eight paths, three with low caps."""
    loads = _loads((10, 10, 10, 10, 6, 6, 6, 6), (7.3, 1, None, None, 0.7, None, None, None))
    topology = paths([load.link for load in loads], name="eight-paths")
    joins = list(zip(loads, topology.devices("client"), strict=True))[1:]
    # The kernel allows eight endpoints. The first path needs no endpoint, because connections open on it.
    ends = [Endpoint(load.address, device, number) for number, (load, device) in enumerate(joins, 2)]
    return Layout("eight", loads, _with_endpoints(topology, "client", *ends))


def three() -> Layout:
    """Return three paths of different delay, with a cap on the one with the middle delay."""
    loads = _loads((20, 20, 20), (None, 1, None))
    return Layout("three", loads, _emulated(loads, (10, 40, 60)))


def low(cap: float) -> Layout:
    """Return DSL and LTE, which has a cap of *cap* Mbit/s, as after the data volume is used up."""
    loads = _loads((50, 20), (None, cap))
    return Layout(f"low-{cap * 1000:g}k", loads, _emulated(loads, (20, 60)))


def families() -> Layout:
    """Return a capped IPv6 subflow that joins an IPv4 connection. The proxy announces its IPv6 address."""
    first, join = _loads((30, 20), (None, 3))
    join = replace(join, address="fd77:2::2", networks=('"fd77:2::/64"',))
    topology = _emulated((first, join), (20, 20))
    topology = _with_endpoints(topology, "client", Endpoint("fd77:2::2", "wlan0", 4, ("subflow", "fullmesh")))
    topology = _with_endpoints(topology, "proxy", Endpoint("fd77:8::2", "wan0", 2, ("signal",)))
    return Layout("families", (first, join), topology, mapped=True)


def vanished(count: int) -> Layout:
    """Return a layout in which *count* other downloads share the cap, and then are cut off."""
    loads = tuple(
        replace(load, networks=(*load.networks, f"10.77.{other}.0/24"))
        for load, other in zip(_loads((50, 20), (5, None)), SECOND_CLIENT_NETWORKS, strict=False)
    )
    topology = with_second_client(_emulated(loads, (20, 20)), OTHERS, [load.link for load in loads])
    return Layout(f"vanished-{count}", loads, topology, vanishing=count)


LAYOUTS = {
    layout.name: layout
    for layout in (
        eight(), three(), *(low(cap) for cap in (2, 0.512, 0.128, 0.064)), families(), *map(vanished, (4, 9))
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``."""

    layout: tuple[str, ...] = choices("which", LAYOUTS)
    runs: int = parameter("of each", "3", whole(), quick="1")


@dataclass(frozen=True, slots=True)
class Carried:
    """The rate of one path."""

    share: float
    """Rate of the path as a share of its link or cap."""


@dataclass(frozen=True, slots=True)
class Site:
    """The testbed of one layout, with its programs."""

    testbed: Testbed
    layout: Layout
    download: Sequence[str]

    def check_emulation(self) -> None:
        self.testbed.check_emulation()

    @contextmanager
    def others(self) -> Iterator[None]:
        """Let the other clients download."""
        with ExitStack() as stack:
            for _ in range(self.layout.vanishing):
                stack.enter_context(self.testbed[OTHERS].running(self.download, name="other"))
            time.sleep(WARM if self.layout.vanishing else 0)
            yield

    def subflows(self) -> set[str]:
        return set(client_ends(self.testbed["proxy"], [load.address for load in self.layout.loads]))


@contextmanager
def built(chosen: Settings, cells: Sequence[Layout], seed: int) -> Iterator[Site]:
    [layout] = cells
    with Testbed(layout.topology, seed=seed) as testbed:
        host = testbed["proxy"]
        start_throttler(host, write_throttler_config(host, host.write("policy.yaml", layout.policy())))
        proxy, origin = start_proxy(host, control="bbr"), start_origin(testbed["origin"], {"big": FILE_SIZE})
        # Use the proxy's IPv4 address in IPv6 form: Linux joins by IPv6 only if the connection was opened on an IPv6
        # socket.
        through = f"http://[::ffff:{host.service_address()}]:{PROXY_PORT}" if layout.mapped else proxy.url()
        download = ["curl", "-s", "-m", "90", "-o", "/dev/null", "-x", through, origin.url("big")]
        yield Site(testbed, layout, mptcp_command(download))


def measure(site: Site, turn: Turn[Layout]) -> Mapping[str, Carried]:
    """Run one download. Return each path's rate by its name. Raises TestbedError if a subflow is missing."""
    client, layout = site.testbed["client"], site.layout
    wait_until(lambda: not site.subflows(), "the last download's subflows are gone", timeout=30)
    devices = layout.topology.devices("client")
    with site.others(), Recorder(client, devices, interval=INTERVAL) as recorder, client.running(site.download):
        recorder.wait(WARM)
        subflows = site.subflows()
        if any(load.address not in subflows for load in layout.loads):
            raise TestbedError(f"{layout.name}: there are subflows from {', '.join(subflows)} alone")
        with dropping(site.testbed["core"], SILENT) if layout.vanishing else nullcontext():
            begin = recorder.now + (GIVEN_UP if layout.vanishing else 0)
            recorder.wait(begin + MEASURED + 0.5)
    return judge(recorder.samples, layout, begin)


def judge(samples: Sequence[Sample], layout: Layout, begin: float) -> dict[str, Carried]:
    """Return the rate of each path from *begin* on. Raises ValueError if there are too few samples."""
    return {
        load.name: Carried(mean_rate(samples, device, begin, begin + MEASURED) / load.due)
        for load, device in zip(layout.loads, layout.topology.devices("client"), strict=True)
    }


def least(row: Row[Layout, Carried]) -> float:
    """Return the minimum rate of the row's path, as a share of its link or cap."""
    load = row.cell.load(row.part)
    if load.cap is None:
        return FREE
    others = sum(each.due for each in row.cell.loads if each.cap is None)
    return 0.0 if others >= RESTS * load.cap else CAPPED


def what(row: Row[Layout, Carried]) -> str:
    """Return a text with the row's path and the link or cap with which its rate is compared."""
    return f"{row.part}, of its {'link' if row.cell.load(row.part).cap is None else 'cap'}"


CARRIED: Column[Layout, Carried] = Column("carried", "share", aim=what, digits=3, least=least, most=MOST)
LABELS: Sequence[tuple[str, Callable[[Row[Layout, Carried]], str]]] = (
    ("layout", lambda row: str(row.cell)),
    ("path", what),
)
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "nftables", "apache2", "squid", "curl", "mptcpize"),
    cells=lambda chosen: [LAYOUTS[name] for name in chosen.layout],
    parts=lambda layout: [load.name for load in layout.loads],
    bed=built,
    measure=measure,
    tables=(Table("Who starves beside a low cap", (RUNS, CARRIED), LABELS),),
    name=lambda row: str(row.cell),
    counted=lambda row: "runs",
)
