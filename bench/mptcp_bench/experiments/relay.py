# SPDX-License-Identifier: GPL-2.0-or-later
"""The cost of a byte and of a request in a proxy: ours, Squid, HAProxy and nginx, alternating in one run.

The tasks are: downloads of large files, by GET and through tunnels (CONNECT); and small requests over persistent
connections, as fast as the proxy answers. The clients use TCP, or Multipath TCP with one subflow or two. Each proxy is
freshly started, and no other proxy runs while it is measured. Each round has a random order. The main figure is the
processor time of all processes of the proxy: seconds for 10^9 bytes or µs for a request, as the median of the rounds
with its 95 % interval. The columns */ direct* have rates, as a multiple of the rate without a proxy. If a proxy shares
its processors, its time includes the kernel's work for router and client; see the option ``processors``.

The clients are ``native/relay_load.c``. Among Debian's load generators, wrk does not support tunnels, ab uses
HTTP/1.0, and h2load and hey do not use a tunnel for a second request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product

from mptcp_lab.agent.processors import tree_seconds
from mptcp_lab.testbed import Program, Testbed, paths

from . import relay_judging as judging
from .columns import Column, Row, Table, Turn
from .parameters import number, parameter, whole, words
from .peers import peers
from .relay_bed import FILES, LARGE, SMALL, WARM_UP_SECONDS, Bed
from .relay_judging import BULK, CLIENTS, DIRECT, PROXIES, TASKS, Cell, Outcome, Setting
from .scenario import Scenario

BULK_CONNECTIONS, REQUEST_CONNECTIONS = 4, 40
SLOW_RATES = (200_000_000, 100_000_000)
"""Rates of both paths in bits/s if the paths are to be the bottleneck."""


@dataclass(frozen=True, slots=True)
class Settings:
    processors: tuple[str, ...] = parameter(
        "processors of the proxy: shared, apart (a processor only for the proxy and its packets), or both",
        "shared,apart", words("shared", "apart"), quick="shared",
    )  # fmt: skip
    links: tuple[str, ...] = parameter(
        "links of the clients: fast, slow (200 and 100 Mbit/s), or both",
        "fast,slow", words("fast", "slow"), quick="fast",
    )  # fmt: skip
    proxies: tuple[str, ...] = parameter(
        "proxies to compare, if they are installed; direct is always measured", ",".join(PROXIES), words(*PROXIES)
    )
    clients: tuple[str, ...] = parameter(
        "protocol of the clients, with the number of subflows", ",".join(CLIENTS), words(*CLIENTS)
    )
    runs: int = parameter("number of rounds", "6", whole(), quick="2")
    seconds: float = parameter("duration of each measurement, seconds", "2", number(), quick="0.5")


def cells(chosen: Settings) -> list[Cell]:
    """Return the cells to measure: each proxy with each kind of client that it accepts, and TCP without a proxy."""
    tasks: dict[tuple[str, str], tuple[str, ...]] = {(DIRECT, "tcp"): ("get", "requests")}
    for proxy, client in product((name for name in chosen.proxies if name != DIRECT), chosen.clients):
        if client == "tcp" or peers()[proxy].multipath:
            tasks[proxy, client] = TASKS if peers()[proxy].tunnels else ("get", "requests")
    return [
        Cell(*proxy_and_client, Setting(processors == "apart", links == "slow"), cell_tasks)
        for processors, links in product(chosen.processors, chosen.links)
        for proxy_and_client, cell_tasks in tasks.items()
    ]


def lacking(cell: Cell) -> str | None:
    """Return why this host cannot measure *cell*; None if it can."""
    if cell.setting.own_processor and len(os.sched_getaffinity(0)) < 2:
        return "the proxy is to have its own processor, and this machine has one processor"
    return None if cell.proxy == DIRECT else peers()[cell.proxy].lacking()


@contextmanager
def relay_bed(chosen: Settings, cells: Sequence[Cell], seed: int) -> Iterator[Bed]:
    """Yield the testbed of one setting."""
    setting = cells[0].setting
    with Testbed(paths(SLOW_RATES if setting.slow else (None, None), name="relay"), seed=seed) as testbed:
        yield Bed.on(testbed, chosen.seconds, FILES, setting)


def measure(bed: Bed, turn: Turn[Cell]) -> dict[str, Outcome]:
    """Measure all tasks of a cell through one proxy, or without one."""
    with bed.running(turn.cell) as process:
        return {task: transfer(bed, turn.cell, task, process) for task in turn.cell.tasks}


def transfer(bed: Bed, cell: Cell, task: str, process: Program | None) -> Outcome:
    """Measure bulk transfers or small requests, through a proxy that runs or without one."""
    count, file = (BULK_CONNECTIONS, LARGE) if task in BULK else (REQUEST_CONNECTIONS, SMALL)

    def processor_seconds() -> float:
        return 0.0 if process is None else tree_seconds(process.pid)

    with bed.clients(cell, task, count, file) as (load, check):
        time.sleep(WARM_UP_SECONDS)
        check(count)
        start, before, spent = time.monotonic(), load.read(), processor_seconds()
        time.sleep(bed.seconds)
        seconds, after, spent = time.monotonic() - start, load.read(), processor_seconds() - spent
    octets, answers = after.octets - before.octets, after.answers - before.answers
    cost = judging.cost(task, spent, octets, answers) if process else None
    return Outcome(cost, (octets if task in BULK else answers) / seconds, after.failures)


Values = Callable[[Row[Cell, Outcome]], Sequence[float]]
PROXY = ("proxy", lambda row: row.cell.proxy)


def _column(heading: str, values: Values, digits: int = 0) -> Column[Cell, Outcome]:
    """Return a column with the median of *values* and its interval."""
    return Column(heading, values, by="median", text=lambda row: judging.spread(values(row), digits))


def _cost(task: str) -> Values:
    return lambda row: [each.cost for each in row.other_runs(part=task) if each.cost is not None]


def _share_of_direct(task: str) -> Values:
    return lambda row: judging.shares_of_direct(row.results, row.cell, task)


def _is_first_of_cell(row: Row[Cell, Outcome]) -> bool:
    return row.part == row.cell.tasks[0]


def _is_first_of_proxy(row: Row[Cell, Outcome]) -> bool:
    first = next(cell for cell in row.results.cells if cell.proxy == row.cell.proxy)
    return row.cell.proxy != DIRECT and row.cell == first and _is_first_of_cell(row)


SCENARIO = Scenario(
    settings=Settings,
    needs=("root", "mptcp", "mptcp-pm", "apache2", "squid", "ss", "ethtool", "gcc", "mptcpize"),
    cells=cells,
    bed=relay_bed,
    measure=measure,
    tables=(
        Table(
            "Cost",
            (
                _column("GET s/GB", _cost("get"), 2),
                _column("CONNECT s/GB", _cost("connect"), 2),
                _column("µs/request", _cost("requests")),
                _column("GET / direct", _share_of_direct("get"), 2),
                _column("CONNECT / direct", _share_of_direct("connect"), 2),
                _column("requests / direct", _share_of_direct("requests"), 2),
            ),
            (PROXY, ("client", lambda row: row.cell.client), ("setting", lambda row: str(row.cell.setting))),
            of=_is_first_of_cell, wrapped=("setting",),
        ),
        Table(
            "Proxies as installed", (), (PROXY, ("version", lambda row: peers()[row.cell.proxy].version())),
            of=_is_first_of_proxy,
        ),
    ),
    parts=lambda cell: cell.tasks,
    shared_bed=lambda cell: cell.setting,
    shuffled=True,
    skip_reason=lacking,
    verdicts=judging.verdicts,
)  # fmt: skip
