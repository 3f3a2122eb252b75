# SPDX-License-Identifier: GPL-2.0-or-later
"""Common parts of the experiments ``mimbox-…``: topology, running one proxy at a time, one measurement, tables.

The testbed is the one of the experiment ``relay``, with a second origin that accepts MPTCP. In the paper's baseline, a
router connects the clients to such a server. MPTCP connections are counted at the host that accepts them from the
client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from mptcp_lab.agent import processors
from mptcp_lab.testbed import LiveNode, Program, Testbed, paths
from mptcp_lab.testbed.node import InterfaceBytes
from mptcp_lab.testbed.services import start_origin, wait_until

from .. import style
from ..statistics import median
from .aims import Aim, aims_table
from .attempts import Attempts
from .findings import Findings, Picture
from .mimbox_judging import sound
from .mimbox_points import PERCENTS, Claim, Point, Points
from .options import choice, count, counts, positive
from .peers import PEERS
from .relay_bed import LARGE, MULTIPATH_PORT, PATIENCE, SAMPLES, WARM, Accepted, Bed
from .relay_cells import BASE, CLIENTS, DIRECT, Cell
from .relay_judging import machine, spread, taken
from .relay_load import Load
from .relay_memory import buffers, user_memory
from .tables import new_table

NEEDS = ("root", "mptcp", "mptcp-pm", "apache2", "squid", "ss", "ethtool", "gcc", "mptcpize")
DEVICES = (("client", "eth0"), ("core", "to-eth0"), ("client", "wlan0"), ("core", "to-wlan0"), ("proxy", "wan0"),
           ("core", "to-proxy"), ("origin", "eth0"), ("core", "to-origin"))  # fmt: skip
"""Node and device of both ends of every link."""
PATHS = ("eth0", "wlan0")
QUIET, FEW = 0.3, 3_000
"""If the client receives fewer than FEW bytes in QUIET seconds, its last transfer has ended."""


@dataclass(frozen=True, slots=True)
class Declared:
    """One experiment: what it varies and measures, and the paper's claims about it."""

    name: str
    title: str
    tasks: tuple[tuple[Cell, str], ...]
    """The combinations of proxy and client to measure, each with its task."""
    values: tuple[int, ...]
    """Values of the varied parameter, in bytes; :attr:`quick` has the ones for a quick run."""
    quick: tuple[int, ...]
    varied: str
    """Name of the varied parameter, which is also an option. :attr:`meaning` explains it."""
    meaning: str
    runs: int
    seconds: float
    claims: Callable[[Points], list[Claim]]
    figure: Callable[[Point], float]
    """Computes the plotted value; :attr:`unit` is its unit."""
    unit: str

    @property
    def options(self) -> dict[str, str]:
        return {
            self.varied: f"{self.meaning}, default {','.join(map(str, self.values))}",
            "proxies": f"which of {', '.join(self.proxies)}, default all that are installed",
            "runs": f"rounds, default {self.runs}",
            "seconds": f"for which each is measured, default {self.seconds:g}",
        }

    @property
    def proxies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.proxy for cell, _ in self.tasks))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The part of an experiment that is measured: what the options choose and is installed."""

    tasks: tuple[tuple[Cell, str], ...]
    values: tuple[int, ...]
    runs: int
    seconds: float
    left_out: tuple[str, ...]

    @property
    def planned(self) -> list[tuple[Cell, str, int]]:
        return [(cell, task, at) for cell, task in self.tasks for at in self.values]


def chosen(declared: Declared, options: Mapping[str, str], quick: bool) -> Chosen:
    """Return the part that *options* choose, without proxies that are not installed. Raises OptionError."""
    wanted = {DIRECT, *choice(options, "proxies", declared.proxies)}
    absent = {name: why for name in sorted(wanted - {DIRECT}) if (why := PEERS[name].lacking())}
    return Chosen(
        tuple((cell, task) for cell, task in declared.tasks if cell.proxy in wanted - absent.keys()),
        tuple(sorted(counts(options, declared.varied, declared.quick if quick else declared.values))),
        count(options, "runs", 1 if quick else declared.runs),
        positive(options, "seconds", min(0.5, declared.seconds) if quick else declared.seconds),
        tuple(f"{name}: {why}" for name, why in absent.items()),
    )


@contextmanager
def built(seed: int, files: Mapping[str, int], seconds: float, paths_: Sequence[Any] = (None, None)) -> Iterator[Bed]:
    """Yield a testbed with both origins, which serve *files*, and with the client's *paths_*."""
    with Testbed(paths(paths_, offloads=False, name="mimbox"), seed=seed) as testbed:
        start_origin(testbed["origin"], files, ports=(MULTIPATH_PORT,), multipath=True)
        for name in ("client", "proxy"):
            # Closed connections keep their ports in TIME-WAIT. Provide enough ports, and allow their reuse.
            for key, value in (("ip_local_port_range", "1024 65535"), ("tcp_tw_reuse", "1")):
                testbed.scope.enter_context(testbed[name].sysctl(f"net.ipv4.{key}", value))
        yield Bed.built(testbed, BASE, seconds=seconds, files=files)


@dataclass(frozen=True, slots=True)
class Procedure:
    """How a point is measured: file, parallel streams, one request per connection or many, memory, warm-up."""

    file: str = LARGE
    streams: int = 1
    close: bool = False
    memory: bool = False
    warm: float = WARM


def measured(
    bed: Bed, cell: Cell, task: str, at: int, number: int, procedure: Procedure, process: Program | None
) -> Point:
    """Measure the transfers of *cell* for the bed's time. Raises TestbedError if connections are not established."""
    client, proxy = bed.testbed["client"], bed.testbed["proxy"]
    accepted = Accepted(bed.testbed["origin"] if process is None else proxy)
    user = user_memory(process.pid) if process and procedure.memory else 0
    idle, sent = client.counters(), proxy.interface_bytes("wan0").sent
    each = 1 if procedure.close else -1
    with (
        bed.subflows(cell),
        bed.asking(cell, task, procedure.streams, each, procedure.file, close=procedure.close) as load,
    ):
        streams = procedure.streams
        bed.wait(load, process, lambda seen: seen.standing == streams, f"{cell}: {streams} connections stand")
        accepted.wait_for(procedure.streams if CLIENTS[cell.client] == 2 else 0)
        # With *close*, wait until there are as many answers as streams, so that connections have been reopened.
        answers = procedure.streams if procedure.close else 0
        bed.wait(load, process, lambda seen: seen.answers >= answers, f"{cell}: {answers} answers")
        time.sleep(procedure.warm)
        began, first, wires = time.monotonic(), load.read(), client.counters()
        grown, held = _memory(bed, procedure, process, load)
        seconds, last, wires_ = time.monotonic() - began, load.read(), client.counters()
        # Count from before the transfer: the two counters are not read at the same moment, which matters less over a
        # longer time.
        passed = (proxy.interface_bytes("wan0").sent - sent) / max(1, _received(wires_, idle))
        capable, joined = accepted.read()
    # The server may still send data when its client has ended. Wait, or the next measurement would count that.
    wait_until(lambda: _quiet(client), f"{cell}: nothing comes any more", timeout=PATIENCE)
    octets = max(1, _received(wires_, wires))
    packets = max(1, sum(wires_[name].packets - wires[name].packets for name in PATHS))
    second = (wires_["wlan0"].received - wires["wlan0"].received) / octets
    return Point(
        cell,
        task,
        at,
        number,
        seconds=seconds,
        octets=last.octets - first.octets,
        answers=last.answers - first.answers,
        failures=last.failures,
        # With *close*, the last connection may not be established yet.
        opened=min(last.opened, last.answers) if procedure.close else last.opened,
        renewed=last.opened / last.answers if procedure.close and last.answers else 0.0,
        multipath=capable,
        joined=joined,
        packet=octets / packets,
        second=second,
        passed=passed,
        spread=taken(last.late, PERCENTS) if procedure.close else (),
        user=max(0.0, grown - user) / procedure.streams if process and procedure.memory else 0.0,
        kernel=held / procedure.streams,
    )


def _quiet(client: LiveNode) -> bool:
    before = client.counters()
    time.sleep(QUIET)
    return _received(client.counters(), before) < FEW


def _received(after: Mapping[str, InterfaceBytes], before: Mapping[str, InterfaceBytes]) -> int:
    return sum(after[name].received - before[name].received for name in PATHS)


def _memory(bed: Bed, procedure: Procedure, process: Program | None, load: Load) -> tuple[float, float]:
    """Wait for the bed's time. Return the highest user memory and socket memory of the proxy, in bytes."""
    if not procedure.memory or process is None:
        time.sleep(bed.seconds)
        return 0.0, 0.0
    grown = held = 0
    for _ in range(SAMPLES):
        time.sleep(bed.seconds / SAMPLES)
        grown = max(grown, user_memory(process.pid))
        held = max(held, buffers(bed.testbed["proxy"].run(["ss", "-tMmH"]).stdout))
    return grown, held


def rounds(
    console: Console,
    what: Chosen,
    bed: Bed,
    seed: int,
    attempts: Attempts,
    procedure: Callable[[int], Procedure],
    around: Callable[[int, Cell], AbstractContextManager[Any]] = lambda at, cell: nullcontext(),
) -> Iterator[Point]:
    """Measure everything that was chosen, in an order drawn for each round. *around* wraps each proxy's start."""
    for line in what.left_out:
        console.print(f"left out: {line}", style="yellow", highlight=False)
    draw = Random(seed)
    for number in range(what.runs):
        for at in draw.sample(what.values, len(what.values)):
            cells = list(dict.fromkeys(cell for cell, _ in what.tasks))
            for cell in draw.sample(cells, len(cells)):
                tasks = [task for one, task in what.tasks if one == cell]
                name = f"round {number + 1}, {at}, {cell}"
                once = partial(_through, bed, cell, tasks, at, number, procedure(at), around)
                for point in attempts.of(once, name, check=bed.testbed.check_emulation) or []:
                    console.print(f"{name}, {point.task}: {_shown(point)}", style="dim", highlight=False)
                    yield point


def _through(
    bed: Bed, cell: Cell, tasks: Sequence[str], at: int, number: int, procedure: Procedure,
    around: Callable[[int, Cell], AbstractContextManager[Any]],
) -> list[Point]:  # fmt: skip
    with around(at, cell), bed.running(cell) as process:
        found = [measured(bed, cell, task, at, number, procedure, process) for task in tasks]
    bed.testbed.check_emulation()
    return found


def _shown(point: Point) -> str:
    memory = f", {point.memory:.0f} kB" if point.kernel else ""
    rate = f", {point.rate:.0f}/s" if point.spread else ""
    return f"{point.goodput / 1e6:.1f} Mbit/s{rate}, {point.failures} failed{memory}"


def findings(
    declared: Declared,
    what: Chosen,
    points: Points,
    more: Sequence[Aim],
    attempts: Attempts,
    usage: processors.Usage,
    draw: Callable[[Path], None],
) -> Findings:
    """Return the tables, claims and aims of an experiment. *more* are aims that only this experiment has."""
    claims = declared.claims(points)
    aims = (*sound(points, what.planned, what.runs), *more, *(claim.aim for claim in claims), *machine(usage))
    data = {"points": [asdict(p) | {"cell": str(p.cell)} for p in points.all], "left_out": what.left_out}
    tables = (claims_table(declared.title, claims), _figures(declared, what, points))
    shown = aims_table(f"{declared.title}, {what.runs} rounds", aims)
    pictures = (Picture(declared.name, draw),) if points.all else ()
    return attempts.judged(Findings((*tables, shown), data, pictures=pictures, aims=aims))


def claims_table(title: str, claims: Sequence[Claim]) -> Table:
    """Return the table of claims, in the form that the documentation uses for the other paper."""
    columns = ("the paper says", "measured", "verdict")
    table = Table(*columns, title=f"Claims: {title}", title_justify="left")
    for claim in claims:
        table.add_row(*claim.row)
    return table


def _figures(declared: Declared, what: Chosen, points: Points) -> Table:
    head = ("proxy", "client", "what", *(f"{at:,}" for at in what.values))
    table = new_table(f"Figures: {declared.unit}, by {declared.varied} in bytes", head, head[:3])
    for cell, task in what.tasks:
        values = points.values(cell, task, declared.figure)
        row = ([value for (_, at), value in values.items() if at == wanted] for wanted in what.values)
        table.add_row(cell.proxy, cell.client, task, *(spread(each, 1, Random(1)) for each in row))
    return table


LOOKS = {"direct": style.INK, "ours": style.ETHERNET.color, "haproxy": style.WIFI.color, "splice": style.THIRD,
         "squid": style.FOURTH}  # fmt: skip


def curves(axes: Any, declared: Declared, what: Chosen, points: Points, scale: str = "log") -> None:
    """Draw the median of each proxy's values over the varied parameter."""
    for cell, task in what.tasks:
        values = points.values(cell, task, declared.figure)
        there = {at: [v for (_, one), v in values.items() if one == at] for at in what.values}
        line = [(at, median(each)) for at, each in there.items() if each]
        dashed = (
            style.DASHED if cell.client == "tcp" else style.DOTTED if task == "get" and cell.proxy == "ours" else "-"
        )
        label = f"{'no proxy' if cell.proxy == DIRECT else cell.proxy}, {cell.client}" + (
            f", {task}" if cell.proxy == "ours" else ""
        )
        axes.plot(
            *zip(*line, strict=True), color=LOOKS[cell.proxy], linestyle=dashed, marker="o", markersize=4, label=label
        )
    axes.set_xscale("log")
    axes.set_yscale(scale)
    style.dress(axes, f"{declared.varied}, bytes", declared.unit)
    axes.set_xticks(what.values, [f"{at:,}" for at in what.values], minor=False)
    axes.minorticks_off()


def drawn(target: Path, title: str, subtitle: str, panels: Sequence[Callable[[Any], None]]) -> None:
    """Draw *panels* side by side into the file *target*."""
    figure = style.new_figure(6.2 * len(panels) + 0.6, 4.8)
    figure.subplots_adjust(left=0.11 / len(panels), right=0.985, top=0.82, bottom=0.13, wspace=0.2)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes)
        axes.legend(frameon=False, fontsize=8)
    style.heading(figure, title, subtitle, left=0.11 / len(panels), size=14)
    style.save(figure, target)


@contextmanager
def several(scopes: Iterable[AbstractContextManager[Any]]) -> Iterator[None]:
    """Enter all *scopes* in order, and leave them in reverse order."""
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(scope)
        yield
