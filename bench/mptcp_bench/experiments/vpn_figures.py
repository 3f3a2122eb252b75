# SPDX-License-Identifier: GPL-2.0-or-later
"""The experiments ``vpn-fig…``: figures of "Multipath Transport for Virtual Private Networks", and ours beside each.

Each figure is described by data: the ways, the paths, the number of rounds. One procedure measures all figures. For
each condition and round a testbed is built. In it, each way is measured, in a drawn order, with each congestion control
inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from mptcp_lab.agent import processors
from mptcp_lab.testbed.features import need

from .. import style
from ..statistics import median
from .aims import aims_table
from .attempts import Attempts
from .findings import Findings, Picture
from .mimbox_bed import claims_table, drawn
from .options import OptionError, choice, count, listed, positive
from .relay_judging import machine
from .tables import mean, new_table
from .vpn_bed import NEEDS, built, measured
from .vpn_cells import LOSSES, OVER_TCP, PRIMARY, RATE, WAYS, Cell, Condition, Point, Points, cells
from .vpn_judging import claims_of, ours, sound

CONTROLS = ("cubic", "bbr")
BUILD, START, BESIDE = 3.0, 4.0, 3.0
"""Seconds to build a testbed, to start a VPN, and to do everything else beside a download."""
RTT, RATIO = "rtt", "ratio"
"""What a figure varies: the RTT of both paths in ms, or the secondary path's RTT as a multiple of the primary's."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The part of a figure that the options choose."""

    cells: tuple[Cell, ...]
    conditions: tuple[Condition, ...]
    runs: int
    seconds: float

    @property
    def planned(self) -> list[tuple[Cell, Condition]]:
        return list(product(self.cells, self.conditions))

    @property
    def groups(self) -> dict[tuple[str, str], list[str]]:
        """The congestion controls inside, by way and outer control. One VPN is used for all of them."""
        found: dict[tuple[str, str], list[str]] = {}
        for cell in self.cells:
            found.setdefault((cell.way, cell.outer), []).append(cell.inner)
        return found

    @property
    def estimate(self) -> float:
        """Estimated duration in seconds, an upper limit."""
        each = BUILD + len(self.groups) * START + len(self.cells) * (self.seconds + BESIDE)
        return self.runs * len(self.conditions) * each


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of the paper, or a table."""

    name: str
    title: str
    ways: tuple[str, ...]
    inner: tuple[str, ...] = ("cubic",)
    outer: tuple[str, ...] = ("cubic",)
    varied: str = RTT
    values: tuple[str, ...]
    quick_values: tuple[str, ...]
    losses: tuple[str, ...]
    quick_losses: tuple[str, ...]
    runs: int = 3
    seconds: float = 8.0

    @property
    def OPTIONS(self) -> dict[str, str]:
        axis = "RTT of both paths, ms" if self.varied == RTT else f"secondary RTT, × the primary's {PRIMARY:g} ms"
        return {
            self.varied: f"{axis}, default {','.join(self.values)}",
            "loss": f"% in each direction, of {', '.join(LOSSES)} (ge: bursts), default {','.join(self.losses)}",
            "inner": f"congestion controls of the download, of {', '.join(CONTROLS)}, default {','.join(self.inner)}",
            "outer": f"the same of the VPN's own connection, default {','.join(self.outer)}",
            "ways": f"which of {', '.join(self.ways)}, default all",
            "runs": f"rounds, default {self.runs}",
            "seconds": f"after which a download of 16 MB is broken off, default {self.seconds:g}",
        }

    def chosen(self, options: Mapping[str, str], quick: bool) -> Chosen:
        """Return the part that *options* choose. Raises OptionError for an invalid option."""
        values = listed(options, self.varied, ",".join(self.quick_values if quick else self.values))
        losses = choice(options, "loss", LOSSES, self.quick_losses if quick else self.losses)
        ways = choice(options, "ways", self.ways)
        inner, outer = (choice(options, name, CONTROLS, getattr(self, name)) for name in ("inner", "outer"))
        return Chosen(
            cells(ways, inner, outer),
            tuple(Condition(*self._rtts(value), loss) for loss in losses for value in values),
            count(options, "runs", 1 if quick else self.runs),
            positive(options, "seconds", self.seconds),
        )

    def _rtts(self, value: str) -> tuple[float, float]:
        number = positive({self.varied: value}, self.varied, 1, above=0)
        if number > 2000:
            raise OptionError(f"--set {self.varied}={value}: at most 2000")
        return (number, number) if self.varied == RTT else (PRIMARY, PRIMARY * number)

    def run(self, console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
        """Measure the part that *options* choose."""
        need(*NEEDS)
        what = self.chosen(options, quick)
        console.print(f"{self.name}: {what.estimate / 60:.0f} minutes at the most", style="dim", highlight=False)
        attempts = Attempts(console)
        before = processors.read()
        points = Points(_rounds(console, what, seed, attempts))
        usage = processors.usage(before, processors.read())
        claims = claims_of(self.name, points)
        aims = (*sound(points, what.planned, what.runs), *ours(points), *machine(usage))
        tables = (claims_table(self.title, claims), goodputs(what, points), aims_table(self.title, aims))
        data = {"points": [asdict(point) for point in points.all], "claims": [asdict(claim) for claim in claims]}
        picture = Picture(self.name, partial(draw, self, what, points))
        return attempts.judged(Findings(tables, data, pictures=(picture,) if points.all else (), aims=aims))


def _rounds(console: Console, what: Chosen, seed: int, attempts: Attempts) -> Iterator[Point]:
    draw = Random(seed)
    for number in range(what.runs):
        for at in draw.sample(what.conditions, len(what.conditions)):
            groups = draw.sample(list(what.groups.items()), len(what.groups))
            found: list[Point] = []
            name = f"round {number + 1}, {at}"
            # Use another seed in each round, so that other packets are lost.
            with attempts.keeping(name, found), built(at, seed + number) as bed:
                for (way, outer), inner in groups:
                    controls = draw.sample(inner, len(inner))
                    once = partial(measured, bed, way, outer, controls, at, number, what.seconds)
                    for point in attempts.of(once, f"{name}, {way}", check=bed.testbed.check_emulation) or []:
                        shown = f"{point.goodput / 1e6:.1f} Mbit/s, {point.second:.0%} by the second path"
                        console.print(f"{name}, {point.cell}: {shown}", style="dim", highlight=False)
                        found.append(point)
            yield from found


def goodputs(what: Chosen, points: Points) -> Table:
    """Return the table of each cell's mean goodput with its interval."""
    head = ("way", "inside", "outside", *map(str, what.conditions))
    table = new_table("Goodput: Mbit/s", head, head[:3], head[:1])
    for cell in what.cells:
        rates = ([point.goodput for point in points.of(cell, at)] for at in what.conditions)
        row = (mean(each, 1e-6, 1) if each else "" for each in rates)
        table.add_row(WAYS[cell.way].title, cell.inner, cell.outer, *row)
    return table


LOOKS = {
    "tcp": style.MUTED, "udp": style.MUTED, "mptcp": style.ETHERNET.color, "ports": style.FOURTH,
    "50/50": style.WIFI.color, "75/25": style.WIFI.color, "90/10": style.WIFI.color,
    "weights 75/25": style.THIRD, "weights 90/10": style.THIRD, "tunnel": style.THIRD,
}  # fmt: skip
LINES = {
    "udp": style.DASHED, "75/25": style.DASHED, "90/10": style.DOTTED,
    "weights 75/25": style.DASHED, "weights 90/10": style.DOTTED,
}  # fmt: skip


def draw(figure: Figure, what: Chosen, points: Points, target: Path) -> None:
    """Draw the medians of *points* over the RTT, in a panel for each loss and each congestion control inside."""
    losses = list(dict.fromkeys(at.loss for at in what.conditions))
    inner = list(dict.fromkeys(cell.inner for cell in what.cells))
    panels = [partial(_panel, what=what, points=points, loss=loss, inner=each) for each in inner for loss in losses]
    drawn(target, figure.title, "goodput of a download inside, by the second path's RTT", panels)


def _panel(axes: Any, *, what: Chosen, points: Points, loss: str, inner: str) -> None:
    ats = sorted((at for at in what.conditions if at.loss == loss), key=lambda at: at.second)
    for cell in (cell for cell in what.cells if cell.inner == inner):
        line = [(at.second, median([p.goodput for p in found])) for at in ats if (found := points.of(cell, at))]
        if line:
            label = WAYS[cell.way].title + (f", {cell.outer} outside" if cell.outer else "")
            dashed = style.DASHED if cell.way in OVER_TCP and cell.outer == "cubic" else LINES.get(cell.way, "-")
            times, rates = zip(*line, strict=True)
            axes.plot(times, [rate / 1e6 for rate in rates], color=LOOKS[cell.way], linestyle=dashed, marker="o",
                      markersize=4, label=label)  # fmt: skip
    axes.set_ylim(0, 2 * RATE / 1e6)
    axes.set_title(f"{inner} inside, loss {loss}", fontsize=10, color=style.MUTED)
    style.dress(axes, "RTT of the second path, ms", "Mbit/s")


BOTH_OUTSIDE = ("cubic", "bbr")
TREND = ("20", "60", "100")
ENDS = ("20", "100")
FIG3 = Figure(
    name="vpn-fig3",
    title="Figure 3: two congestion controls outside, loss 0.1 %",
    ways=("tcp", "mptcp", "ports", "tunnel"),
    outer=BOTH_OUTSIDE,
    values=TREND,
    quick_values=ENDS,
    losses=("0.1",),
    quick_losses=("0.1",),
)
FIG4 = Figure(
    name="vpn-fig4",
    title="Figure 4: Multipath TCP beside TCP, loss 1 %",
    ways=FIG3.ways,
    values=TREND,
    quick_values=ENDS,
    losses=("1", "ge1"),
    quick_losses=("1",),
)
FIG5 = Figure(
    name="vpn-fig5",
    title="Figure 5: Multipath TCP over paths whose delays differ",
    ways=("mptcp", "tunnel"),
    varied=RATIO,
    values=("1", "3", "5"),
    quick_values=("1", "5"),
    losses=("ge1", "ge3", "ge7"),
    quick_losses=("ge1",),
)
FIG6 = Figure(
    name="vpn-fig6",
    title="Figure 6: UDP beside TCP, one path",
    ways=("tcp", "udp", "tunnel"),
    values=ENDS,
    quick_values=("20",),
    losses=("0", "0.1", "1", "3"),
    quick_losses=("0", "1"),
)
COMPARED = ("udp", "mptcp", "50/50", "tunnel")
FIG7 = Figure(
    name="vpn-fig7",
    title="Figure 7: Multipath UDP beside Multipath TCP, no loss",
    ways=COMPARED,
    inner=CONTROLS,
    outer=BOTH_OUTSIDE,
    values=TREND,
    quick_values=ENDS,
    losses=("0",),
    quick_losses=("0",),
)
FIG9 = Figure(
    name="vpn-fig9",
    title="Figure 9: Multipath UDP beside Multipath TCP, with losses",
    ways=COMPARED,
    inner=CONTROLS,
    outer=BOTH_OUTSIDE,
    values=("40",),
    quick_values=("40",),
    losses=("0", "1", "ge3"),
    quick_losses=("0", "1"),
)
FIG10 = Figure(
    name="vpn-fig10",
    title="Figure 10: Multipath UDP, delays that differ",
    ways=("mptcp", "50/50", "tunnel"),
    inner=CONTROLS,
    outer=("bbr",),
    varied=RATIO,
    values=("1", "3", "5"),
    quick_values=("1", "5"),
    losses=("ge1", "ge7"),
    quick_losses=("ge1",),
    seconds=5.5,
)
FIG11 = Figure(
    name="vpn-fig11",
    title="Figure 11: less by the longer path",
    ways=("mptcp", "50/50", "75/25", "90/10", "weights 75/25", "weights 90/10", "tunnel"),
    inner=CONTROLS,
    outer=("bbr",),
    varied=RATIO,
    values=("5",),
    quick_values=("5",),
    losses=("0", "ge1"),
    quick_losses=("0",),
)
FIGURES: Mapping[str, Figure] = {figure.name: figure for figure in (FIG3, FIG4, FIG5, FIG6, FIG7, FIG9, FIG10, FIG11)}
