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
import random
import resource
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial

from rich.console import Console
from rich.table import Table

from mptcp_lab.agent import processors
from mptcp_lab.testbed import Testbed, TestbedError
from mptcp_lab.testbed.features import need

from .aims import aims_table
from .attempts import Attempts
from .findings import Findings
from .own_processor import Shares
from .peers import PEERS
from .relay_bed import Bed, measured, topology
from .relay_cells import DIRECT, HELD, OPTIONS, Cell, Plan, Setting, applies, cells, plan_of
from .relay_judging import Measured, Rounds, judge, machine
from .relay_results import tables
from .tables import new_table

__all__ = ["OPTIONS", "run"]

MULTIPATH = {"own": "its listener", "wrapped": "all its sockets, by mptcpize", "": "none"}
DESCRIPTORS = 20_000
"""Open files that each proxy may have. A tunnel takes two, in the splice relay six."""


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure what *options* choose, without proxies that are not installed."""
    need("root", "mptcp", "mptcp-pm", "apache2", "squid", "ss", "ethtool", "gcc", "mptcpize")
    plan, left_out = fitting(plan_of(options, quick), "processors" in options, os.sched_getaffinity(0))
    left_out += [f"{name}: {why}" for name in plan.proxies if name != DIRECT and (why := PEERS[name].lacking())]
    multipath = {
        name: bool(PEERS[name].multipath) for name in plan.proxies if name != DIRECT and not PEERS[name].lacking()
    } | {DIRECT: False}
    versions = {name: PEERS[name].version() for name in multipath if name != DIRECT}
    for line in left_out:
        console.print(f"left out: {line}", style="yellow", highlight=False)
    chosen = cells(plan, multipath)
    planned = [
        (setting, cell, task) for setting in plan.settings for cell in chosen for task in tasks_of(plan, setting, cell)
    ]
    attempts = Attempts(console)
    found: list[Measured] = []
    draw = random.Random(seed)
    before = processors.read()
    _allow_descriptors()
    for setting in plan.settings:
        found += _measure(console, seed, plan, setting, chosen, draw, attempts)
    usage = processors.usage(before, processors.read())
    rounds = Rounds(found)
    aims = [*judge(rounds, planned, plan.runs), *machine(usage)]
    data = {
        "measured": [asdict(m) | {"setting": str(m.setting), "cell": str(m.cell), "cost": m.cost} for m in found],
        "left_out": left_out,
        "versions": versions,
        "runs": plan.runs,
        "processors": str(usage),
    }
    title = f"The relay, {plan.runs} rounds: {plan.settings[0]}"
    shown = (*tables(rounds, seed), _proxies(versions), aims_table(title, aims))
    return attempts.judged(Findings(shown, data, aims=tuple(aims)))


def tasks_of(plan: Plan, setting: Setting, cell: Cell) -> list[str]:
    """Return the tasks of *cell* that its proxy can do."""
    tasks = [
        task for task in plan.tasks_of(setting) if cell.proxy == DIRECT or applies(task, PEERS[cell.proxy].tunnels)
    ]
    return [task for task in tasks if cell.proxy != DIRECT or (task not in HELD and task != "connect")]


def fitting(plan: Plan, asked: bool, processors: Collection[int]) -> tuple[Plan, list[str]]:
    """Return *plan* without settings for which *processors* are too few, and why; raise TestbedError if *asked* for."""
    if any(setting.apart for setting in plan.settings):
        try:
            Shares.of(processors)
        except TestbedError as error:
            if asked:
                raise
            return replace(plan, settings=tuple(each for each in plan.settings if not each.apart)), [str(error)]
    return plan, []


def _proxies(versions: Mapping[str, str]) -> Table:
    table = new_table(
        "Proxies: as installed", ("proxy", "version", "Multipath TCP"), ("proxy", "version", "Multipath TCP")
    )
    for name, version in versions.items():
        table.add_row(name, version, MULTIPATH[PEERS[name].multipath])
    return table


def _measure(
    console: Console,
    seed: int,
    plan: Plan,
    setting: Setting,
    chosen: Sequence[Cell],
    draw: random.Random,
    attempts: Attempts,
) -> list[Measured]:
    found: list[Measured] = []
    with Testbed(topology(setting), seed=seed) as testbed:
        bed = Bed.built(testbed, setting, seconds=plan.seconds, hold=plan.hold)
        for number in range(plan.runs):
            for cell in draw.sample(chosen, len(chosen)):
                name = f"{setting}, round {number + 1}, {cell}"
                tasks = tasks_of(plan, setting, cell)
                if not tasks:
                    continue
                once = partial(measured, bed, cell, tasks, number)
                there = attempts.of(once, name, check=testbed.check_emulation)
                if there is not None:
                    console.print(f"{name}: {', '.join(map(_shown, there))}", style="dim", highlight=False)
                    found += there
    return found


def _shown(m: Measured) -> str:
    if m.failures:
        return f"{m.task}: {m.failures} answers failed ({m.failure})"
    if m.task == "latency":
        return f"latency p99 {m.late[2] * 1e6:.0f} µs at {m.offered:.0f}/s"
    if m.cell.proxy == DIRECT:
        return f"{m.task} {m.rate:.4g}/s"
    return f"{m.task} {m.cost:.3g}"


def _allow_descriptors() -> None:
    """Raise the limit of open files of child processes to ``DESCRIPTORS``, as far as this host allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
