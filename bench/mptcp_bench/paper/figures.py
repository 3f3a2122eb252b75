# SPDX-License-Identifier: GPL-2.0-or-later
"""The picture of an experiment, as PNG and SVG: :func:`draw`. ``FIGURES`` has the parts of each scenario's picture.

A picture consists of rows of parts, whose sizes are in inches. At 100 dots per inch it is 920 dots wide, which is
readable at the width of a page. Headings, legends and axes have their own space, so that no text covers data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from .. import style
from ..statistics import median
from .figures_parts import bars, delays, sweep
from .figures_time import Scales, beginning, over_time, receive_memory
from .results import (
    DURATION,
    OUT_OF_ORDER,
    RETRANSMISSION_SHARE,
    RETRANSMISSIONS,
    Case,
    Measurements,
    representative,
)

WIDTH = 9.2
LEFT, RIGHT, BETWEEN = 0.78, 0.15, 0.85
HEADING = 0.8
CAPTIONS = 0.52
"""Inches above each part for its title and a line about it."""
AXIS = 0.52
"""Inches below each part for ticks and label."""
LEGEND_ROW, LEGEND_COLUMNS = 0.22, 3
STEM = "figure"
PNG_DPI = 180


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of a picture: one pair of axes, drawn by a function."""

    draw: Callable[[Any], None]
    share: float = 1.0
    """Share of the row's width that the axes take."""


@dataclass(frozen=True, slots=True)
class Row:
    height: float
    """Height of the axes in inches."""
    parts: tuple[Panel, ...]
    aside: float = 0.0
    """Inches to the right of the axes for their own legend."""


@dataclass(frozen=True, slots=True)
class FigurePlan:
    """All parts of a picture, before it is drawn."""

    subtitle: str
    rows: tuple[Row, ...]
    legend: bool = True


def _panels(result: Measurements, until: float | None = None) -> tuple[Panel, ...]:
    """Return a panel for each case or, with *until* (seconds), for the begin of each case that has a cap.

    All panels with a cap have the same scale, and so have all others: with a common scale for both, low rates would not
    be visible.
    """
    cases = result.of_kind("panel")
    capped = [case for case in cases if case.caps]
    scales = {
        True: Scales.of(result, capped, beginnings=until is not None),
        False: Scales.of(result, [case for case in cases if not case.caps]),
    }

    def part(case: Case) -> Panel:
        return Panel(lambda axes: over_time(axes, result, case, scales[bool(case.caps)], until))

    return tuple(map(part, cases if until is None else capped))


def _in_rows(parts: Sequence[Panel], height: float) -> tuple[Row, ...]:
    return tuple(Row(height, tuple(parts[i : i + 2])) for i in range(0, len(parts), 2))


def _wire(result: Measurements) -> str:
    runs = [run for case in result.of_kind("panel") if (run := representative(result.valid(case.key)))]
    steps = [b - a for run in runs if run.series for a, b in zip(run.series.times, run.series.times[1:], strict=False)]
    mean = f", mean over {style.SMOOTHING * median(steps):.1g} s" if steps else ""
    return f"Bytes on the wire at the client{mean}. Bold: the run of median goodput; faint: the other runs."


def throughput(result: Measurements) -> FigurePlan:
    """Return throughput over time, in a panel for each case."""
    return FigurePlan(_wire(result), _in_rows(_panels(result), 2.6))


def transfers(result: Measurements) -> FigurePlan:
    """Return throughput over time, the transfers' durations, and an enlarged view of the begin of each cap."""
    done = Panel(lambda axes: bars(axes, result, result.of_kind("panel"), DURATION))
    rows = _in_rows((*_panels(result), done), 2.2)
    if (until := beginning(result, result.of_kind("panel"))) is not None:
        rows += _in_rows(_panels(result, until), 1.8)
    return FigurePlan(_wire(result), rows)


def buffers(result: Measurements) -> FigurePlan:
    """Return throughput and the receiver's memory over time, retransmissions, and goodput over the buffer's size."""
    cases = result.of_kind("panel")
    rows = list(_in_rows(_panels(result), 2.4))
    if any(OUT_OF_ORDER in run.series.extra for run in result.runs if run.valid and run.series):
        scales = Scales.of(result, cases, extra=OUT_OF_ORDER)

        def memory(case: Case) -> Panel:
            return Panel(lambda axes: receive_memory(axes, result, case, OUT_OF_ORDER, scales))

        rows += _in_rows([memory(case) for case in cases], 1.3)
    has_share = RETRANSMISSION_SHARE in result.metrics(cases)
    again = RETRANSMISSION_SHARE if has_share else RETRANSMISSIONS
    last = [Panel(lambda axes: bars(axes, result, cases, again), 0.4)]
    if result.of_kind("sweep"):
        last.insert(0, Panel(lambda axes: sweep(axes, result), 0.6))
    return FigurePlan(_wire(result), (*rows, Row(2.3 if len(last) > 1 else 1.5, tuple(last))))


def conversion(result: Measurements) -> FigurePlan:
    """Return the distributions of delays, in a row for each kind of segment."""
    kinds = dict.fromkeys(name.split()[0] for run in result.runs if run.valid for name in run.distributions)

    def part(kind: str) -> Panel:
        return Panel(lambda axes: delays(axes, result, kind))

    rows = tuple(Row(1.9, (part(kind),), aside=3.2) for kind in kinds)
    return FigurePlan("From packet timestamps on both sides of the proxy. Dots: median, p95, p99.", rows, legend=False)


FIGURES: dict[str, Callable[[Measurements], FigurePlan]] = {
    "fig4": buffers,
    "fig5": buffers,
    "fig6": transfers,
    "table1": conversion,
}
"""The pictures that are more than throughput over time."""


def figure(result: Measurements) -> Any:
    """Return the matplotlib figure of *result*."""
    picture = FIGURES.get(result.experiment, throughput)(result)
    # Draw it twice, because the legend's size is known only when all axes have been drawn.
    entries = len(_entries(_compose(result, picture, 0.0))) if picture.legend else 0
    below = 0.08 + LEGEND_ROW * ceil(entries / LEGEND_COLUMNS)
    drawn = _compose(result, picture, below)
    if entries:
        _legend(drawn, below / drawn.get_figheight())
    return drawn


def _compose(result: Measurements, picture: FigurePlan, below: float) -> Any:
    """Draw heading and rows, and leave *below* inches empty at the bottom."""
    height = HEADING + sum(CAPTIONS + row.height + AXIS for row in picture.rows) + below
    drawn = style.new_figure(WIDTH, height)
    title = f"{result.paper}: {result.title}"
    style.heading(drawn, title if result.complete else f"{title} (incomplete)", picture.subtitle, left=0.018, size=13)
    top = height - HEADING
    for row in picture.rows:
        top -= CAPTIONS + row.height
        _draw_row(drawn, row, top / height, height)
        top -= AXIS
    return drawn


def _draw_row(drawn: Any, row: Row, bottom: float, height: float) -> None:
    width = WIDTH - LEFT - RIGHT - row.aside - BETWEEN * (len(row.parts) - 1)
    whole = sum(part.share for part in row.parts)
    left = LEFT
    for part in row.parts:
        own = width * part.share / whole
        part.draw(drawn.add_axes((left / WIDTH, bottom, own / WIDTH, row.height / height)))
        left += own + BETWEEN


def _entries(drawn: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axes in drawn.axes:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, line)
    return found


def _legend(drawn: Any, top: float) -> None:
    entries = _entries(drawn)
    drawn.legend(
        entries.values(), entries.keys(), loc="upper left", bbox_to_anchor=(LEFT / WIDTH - 0.012, top),
        ncols=LEGEND_COLUMNS, frameon=False, fontsize=9, labelcolor=style.INK, borderaxespad=0, handlelength=2.2,
        columnspacing=2,
    )  # fmt: skip


def draw(result: Measurements, directory: Path) -> tuple[Path, Path]:
    """Write ``figure.png`` and ``figure.svg`` into *directory*, and return their paths. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    drawn = figure(result)
    png, vector = (directory / f"{STEM}.{ending}" for ending in ("png", "svg"))
    style.save(drawn, png, dpi=PNG_DPI)
    style.save(drawn, vector)
    return png, vector
