# SPDX-License-Identifier: GPL-2.0-or-later
"""The aims, tables and picture of the experiment ``pages``, from batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from mptcp_lab.testbed.recorder import Sample, rates

from .. import style
from ..statistics import fmean
from .aims import Aim, coloured
from .devices import DEVICES
from .drawing import beside, both_paths
from .pages_cells import Cell
from .pages_judging import Lead, Octets, Outcome, ideal_seconds, judge_cell, judge_lone
from .tables import new_table

COLUMNS = (
    "downloads", "variant", "n", "× cap", "worst", "ahead kB", "s", "× static", "× ideal", "p50 s", "p95 s",
    "other", "joins", "plain",
)  # fmt: skip
LONE_COLUMNS = ("downloads of a client with one path", "variant", "n", "first ones s", "longest s", "later ones s")
LABEL_WIDTH = 20
"""Width of the first column in characters."""
STEP = 0.1
"""Seconds between two points of the picture's curves."""
TITLES = {"none": "No policy", "ours": "Ours", "static": "A static class", "link": "A path of that rate"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One batch of downloads."""

    cell: Cell
    variant: str
    fresh: bool
    """Whether its throttler had never seen the client."""
    outcome: Outcome
    lead: Lead
    joins: int
    plain: int
    samples: tuple[Sample, ...]
    begin: float
    """When the batch began, on the samples' clock."""


class Batches:
    """All batches, by cell and variant."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self.cells = list(dict.fromkeys(m.cell for m in measured))
        self._measured = measured

    def of(self, cell: Cell, variant: str, fresh: bool = False) -> list[Measured]:
        return [m for m in self._measured if (m.cell, m.variant, m.fresh) == (cell, variant, fresh)]

    def variants(self, cell: Cell) -> list[tuple[str, bool]]:
        """Return the measured variants, each with whether the client was new to the throttler."""
        return list(dict.fromkeys((m.variant, m.fresh) for m in self._measured if m.cell == cell))

    def aims(self, cell: Cell) -> dict[str, Aim]:
        """Return the aims of *cell* by figure."""
        known, fresh, none, static = (
            self.of(cell, *each) for each in (("ours",), ("ours", True), ("none",), ("static",))
        )
        if cell.lone:
            return judge_lone(*([m.lead for m in each] for each in (known, fresh, none)))
        if cell.share == "connection":
            return {}
        return judge_cell(*([m.outcome for m in each] for each in (known, fresh, static)))

    def judged(self) -> list[tuple[str, Aim]]:
        """Return all aims, each with its cell. The first one is missed if there is no batch."""
        any_at_all = ("all", Aim("batches measured", len(self._measured), least=1))
        return [any_at_all, *((str(cell), aim) for cell in self.cells for aim in self.aims(cell).values())]


def tables(batches: Batches) -> list[Table]:
    """Return a table for clients with two paths, and one for clients with one path."""
    found = []
    for lone, titles, rows in ((False, COLUMNS, _add_rows), (True, LONE_COLUMNS, _add_lone_rows)):
        cells = [cell for cell in batches.cells if cell.lone is lone]
        if cells:
            table = new_table("Many downloads under a cap", titles, titles[:2], titles[:1])
            table.columns[0].min_width = LABEL_WIDTH
            for cell in cells:
                rows(table, batches, cell)
            found.append(table)
    return found


def _add_rows(table: Table, batches: Batches, cell: Cell) -> None:
    aims = batches.aims(cell)
    ideal = ideal_seconds(sum(cell.sizes), round(cell.cap * 1e6), cell.rates[1] * 1_000_000)
    static = [m.outcome.seconds for m in batches.of(cell, "static")]
    label = str(cell)
    for variant, fresh in batches.variants(cell):
        found = batches.of(cell, variant, fresh)
        mean = _mean_of([m.outcome for m in found])
        seconds = mean(lambda o: o.seconds)
        judged = variant == "ours" and (not fresh or not batches.of(cell, "ours"))
        table.add_row(
            label, _name(variant, fresh), str(len(found)),
            coloured(f"{mean(lambda o: o.mean):.2f}", aims.get("mean" if judged else "overshoot"), variant == "ours"),
            coloured(f"{max(m.outcome.worst for m in found):.2f}", aims.get("worst"), judged),
            f"{mean(lambda o: o.ahead) / 1e3:.0f}",
            f"{seconds:.1f}",
            coloured(f"{seconds / fmean(static):.2f}" if static else "", aims.get("seconds"), judged),
            f"{seconds / ideal:.2f}", f"{mean(lambda o: o.median):.2f}", f"{mean(lambda o: o.p95):.2f}",
            f"{mean(lambda o: 8 * o.other / o.seconds) / 1e6:.1f}", f"{fmean(m.joins for m in found):.0f}",
            f"{fmean(m.plain for m in found):.0f}",
        )  # fmt: skip
        label = ""
    compared = f"{ideal / fmean(static):.2f}" if static else ""
    table.add_row("", "ideal", "", "1.00", "", "", f"{ideal:.1f}", compared, "1.00", end_section=True)


def _add_lone_rows(table: Table, batches: Batches, cell: Cell) -> None:
    aims = batches.aims(cell)
    label = str(cell)
    for variant, fresh in batches.variants(cell):
        leads = [m.lead for m in batches.of(cell, variant, fresh)]
        ours = variant == "ours"
        table.add_row(
            label, _name(variant, fresh), str(len(leads)),
            coloured(f"{fmean(x.first for x in leads):.3f}", aims.get("first"), fresh),
            coloured(f"{max(x.first_longest for x in leads):.3f}", aims.get("longest"), fresh),
            coloured(f"{fmean(x.later for x in leads):.3f}", aims.get("later"), ours),
        )  # fmt: skip
        label = ""


def _name(variant: str, fresh: bool) -> str:
    return f"{variant}, new" if fresh else variant


def _mean_of(outcomes: Sequence[Outcome]) -> Callable[[Callable[[Outcome], float]], float]:
    return lambda value: fmean(value(outcome) for outcome in outcomes)


def drawn_cell(batches: Batches) -> Cell | None:
    """Return the first cell that has more than one variant to compare."""
    return next((c for c in batches.cells if not c.lone and len(_drawn(batches, c)) > 1), None)


def _drawn(batches: Batches, cell: Cell) -> list[Measured]:
    return [found[-1] for v in TITLES if (found := batches.of(cell, v) or batches.of(cell, v, True))]


def draw(target: Path, batches: Batches, cell: Cell) -> None:
    """Draw the last batch of each variant of *cell* from its first SYN on, with common axes."""
    shown = _drawn(batches, cell)
    figure, panels = beside(len(shown))
    longest = max(m.outcome.seconds for m in shown)
    for axes, one in zip(panels, shown, strict=True):
        both_paths(axes, rates(resampled(one.samples, one.begin, one.outcome.seconds)))
        axes.axhline(cell.cap, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
        title = f"{TITLES[one.variant]}\n{one.outcome.mean:.2f} × the cap, {one.outcome.seconds:.1f} s"
        axes.set_title(title, loc="left", fontsize=10.5, color=style.INK)
        axes.set_xlim(0, longest * 1.03)
        axes.set_ylim(0, max(cell.rates) * 1.08)
        style.dress(axes, "seconds since the first SYN", "received, Mbit/s" if axes is panels[0] else "")
    panels[-1].legend(loc="upper right", frameon=False)
    style.heading(figure, "Many downloads under a cap", f"{cell}; dashed: the cap of Ethernet", left=0.065)
    style.save(figure, target)


def resampled(samples: Sequence[Sample], begin: float, seconds: float) -> tuple[Sample, ...]:
    """Return a sample for every ``STEP`` of the batch, and a bit beyond, with times since the batch's begin."""
    counters = {device: Octets(samples, device) for device in DEVICES}
    steps = int(seconds / STEP) + 2
    times = [STEP * number for number in range(steps + 1)]
    return tuple(Sample(t, {d: round(c(begin + t)) for d, c in counters.items()}) for t in times)
