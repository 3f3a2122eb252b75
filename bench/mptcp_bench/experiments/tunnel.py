# SPDX-License-Identifier: GPL-2.0-or-later
"""A tunnel over two paths: unmodified OpenVPN over ``mptcp-tunnel``, beside the alternatives.

A download runs through OpenVPN, without cipher, over emulated paths. The variants are: each path alone, both at the
same time; our splitter, whose daemons are restarted for each download, so that it has to learn the paths anew; a 50/50
split; and Multipath TCP. Variants alternate within a run. Two congestion controls are used inside, each in its own
testbed. Both testbeds run side by side if their rates together are far below the machine's. Further parts are a path
that falls silent, paths that change, a call beside a download, and the cost of a packet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isnan
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from mptcp_lab.testbed import UNSHAPED, Testbed
from mptcp_lab.testbed.features import need

from ..statistics import median
from . import tunnel_call, tunnel_cost, tunnel_faults
from .aims import aims_table
from .attempts import Attempts
from .findings import Findings
from .tables import new_table
from .tunnel_bed import Bed, beds, check, running, transfers
from .tunnel_cells import CONTROLS, OPTIONS, Cell, PathPair, Plan, plan
from .tunnel_judging import CALLS, CHANGES, Measured, aims, goodput

__all__ = ["OPTIONS", "run"]

T = TypeVar("T")
LIMIT = 1.3
"""A download is stopped after this multiple of the time that it would take at the sum of its paths' rates."""
LEARNING = 4.0
"""Seconds of a download that precedes the measured one if the paths' rates differ. Real tunnels run for days, so they
have learned the rates."""
SILENCE = PathPair((10, 10))


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Run the cells and parts that *options* choose."""
    chosen = plan(options, quick)
    need(
        "root", "mptcp", "mptcp-pm", "tbf", "nfqueue", "apache2", "curl", "mptcpize", "openvpn", "openssl", "ss", "gcc"
    )
    work = Work(console, seed, chosen, Attempts(console))
    for cell in chosen.cells():
        work.downloads(cell)
    for part in chosen.parts:
        work.part(part)
    cells = list(chosen.cells())
    changes = dict.fromkeys(work.changes, CONTROLS) if "change" in chosen.parts else {}
    asked = aims(work.measured, cells, chosen.parts, changes)
    tables = [table_of(work.measured, cells), *other_tables(work.measured), aims_table("Tunnel", asked)]
    notes = [f"outer TCP of OpenVPN over Multipath TCP is sent by {_default_control()}, this host's default"]
    found = Findings(tuple(tables), asdict(work.measured), aims=tuple(asked), notes=tuple(notes))
    return work.attempts.judged(found)


def _default_control() -> str:
    return Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()


@dataclass(slots=True)
class Work:
    """All measurements of a run, made one after the other."""

    console: Console
    seed: int
    plan: Plan
    attempts: Attempts
    measured: Measured = field(default_factory=Measured)

    @property
    def changes(self) -> Sequence[str]:
        return CHANGES[:1] if self.plan.quick else CHANGES

    def downloads(self, cell: Cell) -> None:
        """Run the downloads of *cell*, with alternating variants."""
        seconds, runs = self.plan.seconds, self.plan.runs_of(cell.part)
        with (
            self.attempts.keeping(cell.name, self.measured),
            beds(cell.over, self.seed, cell.controls, seconds) as found,
        ):
            for number, variant in self.plan.turns(cell.part):
                learning = LEARNING if cell.part == "rates" else 0.0
                once = partial(transfers, found, cell.name, variant, LIMIT * seconds, learning)
                got = self._of(once, f"{cell.name}, {variant}, {number + 1} of {runs}", found)
                self.measured.transfers += got or []

    def part(self, part: str) -> None:
        """Measure a part other than downloads; do nothing for another name."""
        measure = {"silence": self._silence, "change": self._change, "call": self._call, "cost": self._cost}
        if part in measure:
            with self.attempts.keeping(part, self.measured):
                measure[part]()

    def _silence(self) -> None:
        with beds(SILENCE, self.seed, CONTROLS[:1], 1.0, ()) as found:

            def once() -> None:
                with running(found, "ours") as [tunnel]:
                    self.measured.silences.append(tunnel_faults.fall_silent(found[0], tunnel))

            self._repeat("silence", once, found)

    def _change(self) -> None:
        for change in self.changes:
            with beds(tunnel_faults.PAIRS[change], self.seed, CONTROLS, 16.0, ()) as found:

                def once(found: list[Bed] = found, change: str = change) -> None:
                    self.measured.steady += tunnel_faults.changing(found, change, self.seed)

                self._repeat("change", once, found, change)

    def _call(self) -> None:
        with beds(tunnel_call.PAIR, self.seed, CONTROLS, 14.0, ()) as found:
            for number in range(self.plan.runs_of("call")):
                for where in CALLS:

                    def once(where: str = where) -> None:
                        self.measured.calls += tunnel_call.call(found, where)

                    self._of(once, f"call, {where}, {number + 1}", found)

    def _cost(self) -> None:
        with Testbed(UNSHAPED, seed=self.seed) as testbed:
            for number in range(self.plan.runs_of("cost")):
                name = f"cost, {number + 1}"
                self.console.print(name, style="dim", highlight=False)
                cost = self.attempts.of(partial(tunnel_cost.measure, testbed), name, check=testbed.check_emulation)
                self.measured.costs += [cost] if cost else []

    def _repeat(self, part: str, once: Callable[[], object], found: Sequence[Bed], name: str = "") -> None:
        for number in range(self.plan.runs_of(part)):
            self._of(once, f"{name or part}, {number + 1}", found)

    def _of(self, once: Callable[[], T], name: str, found: Sequence[Bed]) -> T | None:
        self.console.print(name, style="dim", highlight=False)
        return self.attempts.of(once, name, check=partial(check, found))


def table_of(measured: Measured, cells: Sequence[Cell]) -> Table:
    """Return the median goodput of each variant in Mbit/s; ours also as a share of the sum of both paths."""
    columns = ("paths, Mbit/s", "inside", "a alone", "b alone", "ours", "50/50", "over MPTCP", "ours / sum")
    table = new_table("Goodput of a download through OpenVPN", columns, left=("paths, Mbit/s", "inside"))
    for cell in cells:
        for control in cell.controls:
            alone = goodput(measured.transfers, cell.name, control, "alone")
            [ours], [weights], [mptcp] = (
                goodput(measured.transfers, cell.name, control, variant) for variant in ("ours", "weights", "mptcp")
            )
            rates = ("-" if isnan(rate) else f"{rate / 1e6:.1f}" for rate in (*alone, ours, weights, mptcp))
            table.add_row(cell.name, control, *rates, f"{ours / sum(alone):.3f}")
    return table


def other_tables(measured: Measured) -> list[Table]:
    """Return the tables of the other parts, with each run's results."""
    found = []
    if measured.silences:
        table = new_table(
            "A silent path", ("run", "relay leaves s", "proxy leaves s", "back s", "lost s"), left=("run",)
        )
        for number, one in enumerate(measured.silences, 1):
            table.add_row(str(number), *(f"{value:.3f}" for value in (one.relay, one.proxy, one.back, one.lost)))
        found.append(table)
    if measured.steady:
        table = new_table(
            "Paths that change", ("change", "inside", "Mbit/s", "there", "share"), left=("change", "inside")
        )
        for each in measured.steady:
            shown = f"{each.rate / 1e6:.1f}", f"{each.there / 1e6:.1f}", f"{each.rate / each.there:.3f}"
            table.add_row(each.change, each.control, *shown)
        found.append(table)
    if measured.calls:
        columns = ("call", "inside", "delay ms, median", "p99", "lost %")
        table = new_table("A call beside a download", columns, left=("call", "inside"))
        for where in CALLS:
            for control in CONTROLS:
                calls = [c for c in measured.calls if (c.where, c.control) == (where, control)]
                if calls:
                    middle = median([median(c.delays, default=float("nan")) for c in calls])
                    delays = 1e3 * middle, 1e3 * median([c.p99 for c in calls]), 100 * median([c.loss for c in calls])
                    table.add_row(where, control, *(f"{value:.1f}" for value in delays))
        found.append(table)
    if measured.costs:
        columns = ("run", "splitter ns", "joiner ns", "resequencer µs", "carried Mbit/s")
        table = new_table("Cost of a packet", columns, left=("run",))
        for number, cost in enumerate(measured.costs, 1):
            costs = cost.splitter, cost.joiner, cost.resequencer, cost.carried / 1e6
            table.add_row(str(number), *(f"{value:.1f}" for value in costs))
        found.append(table)
    return found
