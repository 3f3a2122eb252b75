# SPDX-License-Identifier: GPL-2.0-or-later
"""What it costs a proxy to carry a byte and a request: ours, Squid, HAProxy and nginx, alternating in one run.

The tasks are: downloads of large files, by GET and through tunnels (CONNECT); small requests over persistent
connections, as fast as the proxy answers; and holding idle connections and tunnels. The clients use TCP, or Multipath
TCP with one subflow or two. Each proxy is freshly started, and no other proxy runs while it is measured.
The order is drawn for each round. The main figure is the processor time of all processes of the proxy: seconds for 10^9
bytes or µs for a request, as the median of the rounds with its 95 % bootstrap interval. The columns */ direct* have
rates, as a multiple of the rate without a proxy. If a proxy shares its processors, it also pays for the kernels of
router and client; with ``processors=apart`` it has its own processor.

The clients are ``native/relay_load.c``. Among Debian's load generators, wrk does not support tunnels, ab uses
HTTP/1.0, and h2load and hey do not use a tunnel for a second request.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

from rich.table import Table as RichTable

from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import Program, Testbed, paths

from . import own_processor
from . import relay_judging as judging
from .columns import Column, Row, Table, Turn
from .parameters import number, parameter, whole, words
from .peers import peers
from .relay_bed import FILES, LARGE, SMALL, WARM, Bed
from .relay_judging import BASE, BULK, CARRIED, CLIENTS, DIRECT, HELD, PROXIES, TASKS, Carried, Cell, Found, Setting
from .scenario import Scenario
from .tables import new_table

STREAMS, KEPT = 4, 40
"""Number of connections of bulk transfers, and of small requests."""
DESCRIPTORS = 20_000
"""Maximum number of open files of each proxy. A tunnel needs two, in the splice relay six."""
MULTIPATH = {"own": "its listener", "wrapped": "all its sockets, by mptcpize", "": "none"}
SETTINGS = (BASE, Setting(offloads=True), Setting(family=6), Setting(apart=True), Setting(apart=True, slow=True))
"""The settings that are measured by default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of ``--set``. Without any of the first four options, a usual choice of settings is measured."""

    offloads: tuple[str, ...] | None = parameter(
        "off, on or both: segmentation and receive offloads of the links", None, words("off", "on"), quick="off"
    )
    family: tuple[str, ...] | None = parameter("4, 6 or both: IPv4, IPv6", None, words("4", "6"))
    processors: tuple[str, ...] | None = parameter(
        "shared, apart or both; apart: the proxy has one to itself, and receives its packets there",
        None, words("shared", "apart"),
    )  # fmt: skip
    links: tuple[str, ...] | None = parameter(
        "fast, slow or both; slow: the clients' two paths have 200 and 100 Mbit/s", None, words("fast", "slow")
    )
    proxies: tuple[str, ...] = parameter(
        "without those that are not installed; direct is always measured", ",".join(PROXIES), words(*PROXIES)
    )
    clients: tuple[str, ...] = parameter("kinds, with their subflows", ",".join(CLIENTS), words(*CLIENTS))
    tasks: tuple[str, ...] | None = parameter(
        f"which of {', '.join(TASKS)}; by default all, but in other settings than the first {', '.join(CARRIED)}",
        None, words(*TASKS),
    )  # fmt: skip
    runs: int = parameter("rounds", "5", whole(), quick="2")
    seconds: float = parameter("for which a transfer is measured", "2", number(), quick="0.5")
    hold: int = parameter("idle connections that are held", "700", whole(), quick="100")

    @property
    def settings(self) -> list[Setting]:
        chosen = (self.offloads, self.family, self.processors, self.links)
        if not any(chosen):
            return list(SETTINGS)
        usual = (("off",), ("4",), ("shared",), ("fast",))
        combined = product(*(given or first for given, first in zip(chosen, usual, strict=True)))
        return [Setting(o == "on", int(f), p == "apart", s == "slow") for o, f, p, s in combined]

    def tasks_of(self, proxy: str, setting: Setting) -> tuple[str, ...]:
        """Return the tasks that *proxy* can do in *setting*."""
        wanted = self.tasks or (TASKS if setting == BASE else CARRIED)
        there = [task for task in TASKS if task in wanted]
        if proxy == DIRECT:
            return tuple(task for task in there if task not in HELD and task != "connect")
        return tuple(task for task in there if peers()[proxy].tunnels or "connect" not in task)


def cells(chosen: Settings) -> list[Cell]:
    """Return the cells to measure: each proxy with each kind of client that it accepts, and always no proxy, by TCP."""
    ways = [(DIRECT, "tcp")] + [
        (proxy, client)
        for proxy, client in product(chosen.proxies, chosen.clients)
        if proxy != DIRECT and (client == "tcp" or peers()[proxy].multipath)
    ]
    found = [Cell(*way, setting, chosen.tasks_of(way[0], setting)) for setting in chosen.settings for way in ways]
    return [cell for cell in found if cell.tasks]


def ready(chosen: Settings) -> None:
    """Raise TestbedError if the proxy is to have its own processor, and there is only one."""
    if chosen.processors and "apart" in chosen.processors:
        own_processor.here()


def lacking(cell: Cell) -> str | None:
    if cell.setting.apart and len(os.sched_getaffinity(0)) < 2:
        return "the proxy is to have a processor of its own, and this machine has one"
    return None if cell.proxy == DIRECT else peers()[cell.proxy].lacking()


@contextmanager
def built(chosen: Settings, there: Sequence[Cell], seed: int) -> Iterator[Bed]:
    """Yield the testbed of one setting."""
    setting = there[0].setting
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    with Testbed(paths(setting.rates, offloads=setting.offloads, name="relay"), seed=seed) as testbed:
        yield Bed.built(testbed, chosen.seconds, FILES, setting, chosen.hold)


def measure(bed: Bed, turn: Turn[Cell]) -> Carried:
    """Measure all transfers of a cell through one proxy, and the memory of each kind of connection with a new one."""
    cell, found = turn.cell, Carried()
    with bed.running(cell) as process:
        for task in (each for each in cell.tasks if each not in HELD):
            transfer(bed, cell, task, process, found)
    for task in (each for each in cell.tasks if each in HELD):
        with bed.running(cell) as process:
            hold(bed, cell, task, process, found)
    return found


def transfer(bed: Bed, cell: Cell, task: str, process: Program | None, found: Carried) -> None:
    """Add to *found* a measurement of bulk transfers or small requests, through a proxy that runs or without one."""
    count, file = (STREAMS, LARGE) if task in BULK else (KEPT, SMALL)
    with bed.asking(cell, task, count, file, process) as (load, accepted):
        time.sleep(WARM)
        bed.check(cell, count, accepted, process)
        began, before, spent = time.monotonic(), load.read(), _processor(process)
        time.sleep(bed.seconds)
        seconds, after, spent = time.monotonic() - began, load.read(), _processor(process) - spent
        found.add_failures(after.failures, load.complaint())
    octets, answers = after.octets - before.octets, after.answers - before.answers
    found.rates[task] = (octets if task in BULK else answers) / seconds
    if process is not None:
        found.costs[task] = judging.cost(task, spent, octets, answers)


def _processor(process: Program | None) -> float:
    return 0.0 if process is None else tree_seconds(process.pid)


def hold(bed: Bed, cell: Cell, task: str, process: Program | None, found: Carried) -> None:
    """Add to *found* the memory of connections that a new proxy holds."""
    assert process is not None, "without a proxy there is no memory of one"
    held = bed.hold(cell, task, process)
    found.costs[task] = judging.positive_or_nan((held.user + held.kernel) / 1e3)
    found.add_failures(held.failures, held.failure)


Values = Callable[[Row[Cell, Carried]], Sequence[float]]
LABELS = (
    ("proxy", lambda row: row.cell.proxy),
    ("client", lambda row: row.cell.client),
    ("setting", lambda row: str(row.cell.setting)),
)


def _column(heading: str, values: Values, digits: int = 0) -> Column[Cell, Carried]:
    """Return a column with the median of *values* and its interval."""
    return Column(heading, values, by="median", text=lambda row: judging.spread(values(row), digits))


def _cost(task: str) -> Values:
    return lambda row: [each.costs[task] for each in row.measured if task in each.costs]


def _of_direct(task: str) -> Values:
    return lambda row: judging.of_direct(row.results, row.cell, task)


@dataclass(frozen=True, slots=True)
class Proxies(Table[Cell, Carried]):
    """The table of the proxies that were measured, with their versions."""

    def shown(self, results: Found) -> RichTable:
        labels = ("proxy", "version", "Multipath TCP")
        table = new_table(self.title, labels, labels)
        for name in dict.fromkeys(cell.proxy for cell in results.cells if cell.proxy != DIRECT):
            table.add_row(name, peers()[name].version(), MULTIPATH[peers()[name].multipath])
        return table


TABLES = (
    Table(
        "Cost",
        (
            _column("GET s/GB", _cost("get"), 2),
            _column("CONNECT s/GB", _cost("connect"), 2),
            _column("µs/request", _cost("requests")),
            _column("GET / direct", _of_direct("get"), 2),
            _column("CONNECT / direct", _of_direct("connect"), 2),
            _column("requests / direct", _of_direct("requests"), 2),
        ),
        LABELS,
        wrapped=("setting",),
        of=lambda row: bool({*CARRIED} & {*row.cell.tasks}),
    ),
    Table(
        "Memory of a connection in kB",
        (_column("idle", _cost("idle-get")), _column("tunnel", _cost("idle-connect"))),
        LABELS,
        wrapped=("setting",),
        of=lambda row: bool({*HELD} & {*row.cell.tasks}),
    ),
    Proxies("Proxies: as installed", ()),
)
SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "apache2", "squid", "ss", "ethtool", "gcc", "mptcpize"),
    cells=cells,
    bed=built,
    measure=measure,
    tables=TABLES,
    together=lambda cell: cell.setting,
    drawn=True,
    ready=ready,
    lacking=lacking,
    counted=lambda row: "",
    verdicts=judging.verdicts,
)
