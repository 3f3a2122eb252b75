# SPDX-License-Identifier: GPL-2.0-or-later
"""The picture of an experiment, as PNG and SVG: :func:`draw`. ``FIGURES`` has the parts of each scenario's picture.

A picture consists of rows of plots. At 100 dots per inch it is 920 dots wide, which is readable at the width of a page.
Matplotlib's constrained layout gives headings, legends and axes their own space, so that no text covers data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from .. import style
from ..statistics import median
from .figures_parts import bars, delays, sweep
from .figures_time import Scales, over_time, receive_memory
from .results import (
    DURATION,
    OUT_OF_ORDER,
    RETRANSMISSION_SHARE,
    RETRANSMISSIONS,
    Case,
    Measurements,
    representative,
)

WIDTH, HEADING = 9.2, 0.8
AROUND = 1.04
"""Inches above and below the axes of a row, for titles, ticks and labels."""
LEGEND_ROW, LEGEND_COLUMNS = 0.22, 3
STEM = "figure"
PNG_DPI = 180
Plot = Callable[[Any], None]
"""Draws one pair of axes."""
Row = tuple[float, Sequence[Plot]]
"""Height of the axes in inches, and the plots in them, side by side."""


def _panels(result: Measurements) -> list[Plot]:
    """Return a panel for each case.

    All panels with a cap have the same scale, and all panels without a cap as well. With one common scale, low rates
    would not be visible.
    """
    cases = result.of_kind("panel")
    scales = {
        capped: Scales.of(result, [case for case in cases if bool(case.caps) is capped]) for capped in (False, True)
    }

    def plot(case: Case) -> Plot:
        return lambda axes: over_time(axes, result, case, scales[bool(case.caps)])

    return [plot(case) for case in cases]


def _in_rows(plots: Sequence[Plot], height: float) -> list[Row]:
    return [(height, plots[i : i + 2]) for i in range(0, len(plots), 2)]


def _wire(result: Measurements) -> str:
    runs = [run for case in result.of_kind("panel") if (run := representative(result.valid(case.key)))]
    steps = [b - a for run in runs if run.series for a, b in zip(run.series.times, run.series.times[1:], strict=False)]
    mean = f", mean over {style.SMOOTHING * median(steps):.1g} s" if steps else ""
    return f"Bytes on the wire at the client{mean}. Bold: the run of median goodput; faint: the other runs."


def throughput(result: Measurements) -> list[Row]:
    """Return throughput over time, in a panel for each case."""
    return _in_rows(_panels(result), 2.6)


def transfers(result: Measurements) -> list[Row]:
    """Return throughput over time, and the transfers' durations."""

    def done(axes: Any) -> None:
        bars(axes, result, result.of_kind("panel"), DURATION)

    return _in_rows([*_panels(result), done], 2.2)


def buffers(result: Measurements) -> list[Row]:
    """Return throughput and the receiver's memory over time, retransmissions, and goodput over the buffer's size."""
    cases = result.of_kind("panel")
    rows = _in_rows(_panels(result), 2.4)
    if any(OUT_OF_ORDER in run.series.extra for run in result.runs if run.valid and run.series):
        scales = Scales.of(result, cases, extra=OUT_OF_ORDER)

        def memory(case: Case) -> Plot:
            return lambda axes: receive_memory(axes, result, case, OUT_OF_ORDER, scales)

        rows += _in_rows([memory(case) for case in cases], 1.3)
    again = RETRANSMISSION_SHARE if RETRANSMISSION_SHARE in result.metrics(cases) else RETRANSMISSIONS
    last: list[Plot] = [lambda axes: bars(axes, result, cases, again)]
    if result.of_kind("sweep"):
        last.insert(0, lambda axes: sweep(axes, result))
    return [*rows, (2.3 if len(last) > 1 else 1.5, last)]


def conversion(result: Measurements) -> list[Row]:
    """Return the distributions of delays, in a row for each kind of segment."""
    kinds = dict.fromkeys(name.split()[0] for run in result.runs if run.valid for name in run.distributions)

    def plot(kind: str) -> Plot:
        return lambda axes: delays(axes, result, kind)

    return [(1.9, [plot(kind)]) for kind in kinds]


FIGURES: dict[str, Callable[[Measurements], list[Row]]] = {
    "fig4": buffers,
    "fig5": buffers,
    "fig6": transfers,
    "table1": conversion,
}
"""The pictures with more than throughput over time."""


def figure(result: Measurements) -> Any:
    """Return the matplotlib figure of *result*."""
    rows = FIGURES.get(result.experiment, throughput)(result)
    height = HEADING + sum(AROUND + each for each, _ in rows)
    drawn = style.new_figure(WIDTH, height)
    drawn.set_layout_engine("constrained", wspace=0.04, h_pad=0.08)
    grid = drawn.add_gridspec(max(1, len(rows)), 2, height_ratios=[each for each, _ in rows] or None)
    for number, (_, plots) in enumerate(rows):
        for column, plot in enumerate(plots):
            plot(drawn.add_subplot(grid[number, column if len(plots) > 1 else slice(None)]))
    entries = {} if any(axes.get_legend() for axes in drawn.axes) else _entries(drawn)
    below = LEGEND_ROW * ceil(len(entries) / LEGEND_COLUMNS) + 0.08
    drawn.set_figheight(height + below)
    if entries:
        drawn.legend(
            entries.values(), entries.keys(), loc="outside lower left", ncols=LEGEND_COLUMNS, frameon=False, fontsize=9,
            labelcolor=style.INK, borderaxespad=0.5, handlelength=2.2, columnspacing=2,
        )  # fmt: skip
    title = f"{result.paper}: {result.title}{'' if result.complete else ' (incomplete)'}"
    subtitle = (
        "From packet timestamps on both sides of the proxy. Dots: median, p95, p99." if not entries else _wire(result)
    )
    style.heading(drawn, title, subtitle, left=0.018, size=13)
    drawn.get_layout_engine().set(rect=(0, 0, 1, 1 - HEADING / (height + below)))
    return drawn


def _entries(drawn: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axes in drawn.axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, line)
    return found


def draw(result: Measurements, target: Path) -> None:
    """Draw the figure into *target*, in the format of its suffix. Raises OSError."""
    style.save(figure(result), target, dpi=PNG_DPI)
