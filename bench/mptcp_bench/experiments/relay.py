# SPDX-License-Identifier: GPL-2.0-or-later
"""What it costs a proxy to carry a byte and a request: ours beside every peer, alternating in one run.

The tasks are: downloads of large files, by GET and through tunnels (CONNECT); small requests over persistent
connections, as fast as the proxy answers and at half that rate; and holding idle and busy connections. The clients use
TCP, or Multipath TCP with one subflow or two. Each proxy is freshly started, and no other runs while it is measured.
The order is drawn for each round. The main figure is the processor time of all processes of the proxy: seconds for 10^9
bytes or µs for a request, as the median of the rounds with its 95 % bootstrap interval. The columns */ direct* have
rates, as a multiple of the rate without a proxy. If a proxy shares its processors, it also pays for the kernels of
router and client; with ``processors=apart`` it has its own processor.

The clients are ``native/relay_load.c``. Among Debian's load generators, wrk has neither tunnels nor a fixed rate, ab
uses HTTP/1.0, and h2load and hey keep no tunnel for further requests. None measures latency from when a request was
due.
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

from ..statistics import fmean
from . import own_processor
from . import relay_judging as judging
from .columns import Column, Row, Table, Turn
from .options import OptionError
from .parameters import number, parameter, whole, words
from .peers import peers
from .relay_bed import FILES, LARGE, SMALL, WARM, Bed, Memory
from .relay_judging import BASE, BULK, CARRIED, CLIENTS, DIRECT, HELD, PROXIES, TASKS, Carried, Cell, Found, Setting
from .relay_load import latencies
from .relay_memory import user_memory
from .scenario import Scenario
from .tables import new_table

BUSY = 50
PERCENTS = (50, 90, 99)
STREAMS, KEPT = 4, 40
"""Number of connections of bulk transfers, and of small requests."""
DESCRIPTORS = 20_000
"""Open files that each proxy may have. A tunnel takes two, in the splice relay six."""
MULTIPATH = {"own": "its listener", "wrapped": "all its sockets, by mptcpize", "": "none"}
SETTINGS = (
    BASE,
    Setting(offloads=True),
    Setting(family=6),
    Setting(workers="all"),
    Setting(apart=True),
    Setting(apart=True, slow=True),
)
"""The settings that are measured by default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``--set`` chooses. Without any of the first five options, a usual choice of settings is measured."""

    offloads: tuple[str, ...] | None = parameter(
        "off, on or both: segmentation and receive offloads of the links", None, words("off", "on"), quick="off"
    )
    family: tuple[str, ...] | None = parameter("4, 6 or both: IPv4, IPv6", None, words("4", "6"))
    workers: tuple[str, ...] | None = parameter(
        "one, all or both: workers, or threads, of each proxy; all: one for each processor", None, words("one", "all")
    )
    processors: tuple[str, ...] | None = parameter(
        "shared, apart or both; apart: the proxy has one to itself, with one worker, and receives its packets there",
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
        chosen = (self.offloads, self.family, self.workers, self.processors, self.links)
        if not any(chosen):
            return list(SETTINGS)
        usual = (("off",), ("4",), ("one",), ("shared",), ("fast",))
        combined = product(*(given or first for given, first in zip(chosen, usual, strict=True)))
        found = [Setting(o == "on", int(f), w, p == "apart", s == "slow") for o, f, w, p, s in combined]
        # With its own processor, a proxy has one worker, so that a worker per processor is not possible.
        found = [each for each in found if each.workers == "one" or not each.apart]
        if not found:
            raise OptionError("--set processors=apart: the proxy has one processor then; take workers=one")
        return found

    def tasks_of(self, proxy: str, setting: Setting) -> tuple[str, ...]:
        """Return the tasks that *proxy* can do in *setting*."""
        wanted = self.tasks or (TASKS if setting == BASE else CARRIED)
        # The latency task needs the rate of the requests task, because it runs at half of it.
        there = [task for task in TASKS if task in wanted or (task == "requests" and "latency" in wanted)]
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
    """Raise TestbedError if a processor for the proxy alone was asked for, and there is only one."""
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
    rate = found.rates["requests"] / 2 if task == "latency" else 0.0
    with bed.asking(cell, task, count, file, process, rate=rate) as (load, accepted):
        time.sleep(WARM)
        bed.check(cell, count, accepted, process)
        began, before, spent = time.monotonic(), load.read(), _processor(process)
        time.sleep(bed.seconds)
        seconds, after, spent = time.monotonic() - began, load.read(), _processor(process) - spent
        found.add_failures(after.failures, load.complaint())
    octets, answers = after.octets - before.octets, after.answers - before.answers
    found.rates[task] = (octets if task in BULK else answers) / seconds
    if task == "latency":
        late = [b - a for a, b in zip(before.late, after.late, strict=True)]
        found.offered, found.late = rate, latencies(late, PERCENTS)
    elif process is not None:
        found.costs[task] = judging.cost(task, spent, octets, answers)


def _processor(process: Program | None) -> float:
    return 0.0 if process is None else tree_seconds(process.pid)


def hold(bed: Bed, cell: Cell, task: str, process: Program | None, found: Carried) -> None:
    """Add to *found* the memory of connections that a new proxy holds."""
    assert process is not None, "without a proxy there is no memory of one"
    if task == "busy":
        user = user_memory(process.pid)
        with bed.asking(cell, task, BUSY, LARGE, process) as (load, accepted):
            time.sleep(WARM)
            bed.check(cell, BUSY, accepted, process)
            users, kernels = zip(*bed.held_memory(process), strict=True)
            held = Memory((fmean(users) - user) / BUSY, fmean(kernels) / BUSY, load.read().failures, load.complaint())
    else:
        held = bed.hold(cell, task, process)
    found.users[task], found.kernels[task] = held.user, held.kernel
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


def _of(field: str, task: str) -> Values:
    """Return a function that finds the value of *task* in the mapping *field* of each measurement of a row."""
    return lambda row: [there[task] for there in (getattr(each, field) for each in row.measured) if task in there]


def _of_direct(task: str) -> Values:
    return lambda row: judging.of_direct(row.results, row.cell, task)


def _latency(number: int) -> Values:
    return lambda row: [each.late[number] * 1e6 for each in row.measured if each.late]


def _kilobytes(field: str, task: str) -> Values:
    return lambda row: [octets / 1e3 for octets in _of(field, task)(row)]


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
            _column("GET s/GB", _of("costs", "get"), 2),
            _column("CONNECT s/GB", _of("costs", "connect"), 2),
            _column("µs/request", _of("costs", "requests")),
            _column("GET / direct", _of_direct("get"), 2),
            _column("CONNECT / direct", _of_direct("connect"), 2),
            _column("requests / direct", _of_direct("requests"), 2),
        ),
        LABELS,
        wrapped=("setting",),
        of=lambda row: bool({*CARRIED} & {*row.cell.tasks}),
    ),
    Table(
        "Latency at half load",
        (
            _column("requests/s", lambda row: [each.offered for each in row.measured]),
            *(_column(f"p{percent} µs", _latency(number)) for number, percent in enumerate(PERCENTS)),
        ),
        LABELS,
        wrapped=("setting",),
        of=lambda row: "latency" in row.cell.tasks,
    ),
    Table(
        "Memory of a connection in kB",
        tuple(
            _column(f"{what} {whose}", _kilobytes(f"{whose}s", task))
            for what, task in zip(("idle", "tunnel", "busy"), HELD, strict=True)
            for whose in ("user", "kernel")
        ),
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
