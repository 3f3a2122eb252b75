# SPDX-License-Identifier: GPL-2.0-or-later
"""Goodput over both paths through the proxy: the median without a policy, and the worst round under a cap.

- Without a policy (HTTP GET and CONNECT, IPv4 and IPv6), goodput is at least 95 % of the links' payload.
- With conf/policy.yaml, the capped path is within 5 % of its rate, and the other path carries at least 95 % of its
  link's rate.
- This policy does not slow down a connection with one subflow, nor a client with plain TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product

from mptcp_lab.testbed import TWO_PATHS, Testbed, TestbedError, lab_of, services
from mptcp_lab.testbed.recorder import mean_rate
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE
from mptcp_lab.testbed.transfer import Protocol, download

from .columns import CELL, RUNS, Column, Row, Table, Turn
from .devices import payload_share
from .parameters import parameter, whole
from .scenario import Scenario
from .setup import POLICY, ProxySite, ethernet_cap
from .two_paths import one_subflow

SETTLE_SECONDS = 5.0
"""Seconds from the start of a capped download to its steady state."""
FILES = {"both": 120_000_000, "capped": 60_000_000, "one": 75_000_000}
"""Bytes of each file: for two paths, for two of which one is capped, for one. A download takes 6 to 15 seconds."""
MIN_SHARE, MAX_SHARE = 0.95, 1.05
"""Minimum and maximum rate, as a share of a link or a cap. A higher rate means that nothing shaped the link."""


@dataclass(frozen=True, slots=True)
class Settings:
    runs: int = parameter("number of downloads of each kind", "3", whole(), quick="1")


TWO, ONE, TCP = "two subflows", "one subflow", "plain TCP client"
"""Kinds of clients."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of download, with conf/policy.yaml or without a policy."""

    policy: bool
    client: str = TWO
    connect: bool = False
    family: int = 4

    def __str__(self) -> str:
        request = f"{'CONNECT' if self.connect else 'GET'}, IPv{self.family}"
        download = request if self.client == TWO else self.client
        return f"policy, {download}" if self.policy else download

    @property
    def is_multipath(self) -> bool:
        return self.client != TCP

    @property
    def is_capped(self) -> bool:
        """Whether the policy caps one of the paths. It does not cap a connection's only path."""
        return self.policy and self.client == TWO

    @property
    def file(self) -> str:
        return "one" if self.client != TWO else "capped" if self.policy else "both"


CELLS = (
    *(Cell(*each) for each in product((False, True), (TWO,), (False, True), (4, 6))),
    Cell(policy=True, client=ONE),
    Cell(policy=True, client=TCP),
)


def _shares_of_links(row: Row[Cell, Measurement]) -> list[float]:
    """Return each goodput, divided by the payload that the links can carry; no values if a path is capped."""
    if row.cell.is_capped:
        return []
    links = ETHERNET_RATE + (WIFI_RATE if row.cell.client == TWO else 0)
    share = payload_share(row.cell.family, multipath=row.cell.is_multipath)
    return [each.goodput / (links * share) for each in row.measured]


def _worst_share(row: Row[Cell, Measurement], path: str, expected: float) -> list[float]:
    """Return the rate of *path* that differs most from *expected*, divided by it: a cap must hold in every round."""
    shares = [rate / expected for rate in row.values(path)] if row.cell.is_capped else []
    return sorted(shares, key=lambda share: abs(share - 1))[-1:]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One download: its goodput, and the steady rate of each path on the wire, in bits/s."""

    goodput: float
    ethernet: float
    wifi: float


@contextmanager
def bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[ProxySite]:
    """Start the services, with a throttler and conf/policy.yaml if the cells have a policy."""
    with Testbed(TWO_PATHS) as testbed:
        if cells[0].policy:
            services.start_throttler(testbed["proxy"], services.write_throttler_config(testbed["proxy"], POLICY))
        yield ProxySite(
            testbed, services.start_proxy(testbed["proxy"]), services.start_origin(testbed["origin"], FILES)
        )


def measure(site: ProxySite, turn: Turn[Cell]) -> Measurement:
    """Run one download. Raises TestbedError if it did not use the protocol that *turn* requires."""
    cell, lab = turn.cell, lab_of(site.testbed)
    url = site.origin.url(cell.file, family=cell.family, port=443 if cell.connect else 80)
    argv = ["curl", "-sSf", "-x", site.proxy.url(cell.family), *(["--proxytunnel"] if cell.connect else []), url]
    with one_subflow(site.testbed) if cell.client == ONE else nullcontext():
        observation = download(lab, services.mptcp_command(argv) if cell.is_multipath else argv, timeout=120)
    check_protocol(cell, observation.protocol)
    samples, start, end = observation.samples, SETTLE_SECONDS if cell.policy else 1.0, observation.ended - 0.3
    return Measurement(observation.goodput, *(mean_rate(samples, path.name, start, end) for path in lab.paths))


def check_protocol(cell: Cell, protocol: Protocol) -> None:
    """Raise TestbedError if a download used another *protocol* than *cell* requires."""
    if protocol != Protocol(int(cell.is_multipath), fallbacks=0, joins=int(cell.client == TWO), proxy_requested=0):
        raise TestbedError(
            protocol.complaint(multipath=cell.is_multipath) or f"a client of kind {cell.client}: {protocol}"
        )


def _share_column(heading: str, of: Callable[[Row[Cell, Measurement]], list[float]]) -> Column[Cell, Measurement]:
    return Column(heading, of, "median", least=MIN_SHARE, most=MAX_SHARE, digits=3)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "tbf", "htb", "apache2", "squid", "curl", "mptcpize"),
    cells=lambda chosen: CELLS,
    shared_bed=lambda cell: cell.policy,
    shuffled=True,
    bed=bed,
    measure=measure,
    tables=[
        Table(
            "Goodput",
            [
                RUNS,
                _share_column("goodput / payload of the links", _shares_of_links),
                _share_column("Ethernet / its cap", lambda row: _worst_share(row, "ethernet", ethernet_cap())),
                _share_column("Wi-Fi / its link", lambda row: _worst_share(row, "wifi", WIFI_RATE)),
            ],
            labels=[CELL],
        )
    ],
)
