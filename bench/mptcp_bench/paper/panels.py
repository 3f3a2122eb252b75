# SPDX-License-Identifier: GPL-2.0-or-later
"""The plots of the paper's pictures. Each call draws one pair of axes; ``draw_delays`` the whole picture of Table 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any

from mptcp_common.units import approximate_size, counted, format_rate
from mptcp_lab.testbed.recorder import rates

from .. import style
from ..experiments.tables import mean
from ..statistics import fmean, mean_interval, of_median, percentiles
from . import PAPER
from .conversion_claims import (
    BULK,
    DOWNLOAD,
    PAPER_MS,
    REQUEST,
    RESPONSE,
    SYN,
    UPLOAD,
    WHOLE,
)
from .conversion_claims import (
    Found as Delayed,
)
from .measurements import COLUMNS, Download, Found, Trial, values

WIDTH, HEADING = 9.2, 0.8
"""Inches. At 100 dots per inch a picture is 920 dots wide, which is readable at the width of a page."""
ROW_MARGIN = 1.04
"""Inches above and below the axes of a row, for titles, ticks and labels."""
LEGEND_ROW, LEGEND_COLUMNS = 0.22, 3
PNG_DPI = 180
MAX_COMPARABLE_RATIO = 3.0
"""Maximum ratio of the longest to the shortest duration at which panels have the same time axis."""
HEADROOM = 1.08
FAINT_ALPHA = 0.28
BAR_COLOR = "#c3c9d3"
MIN_AXIS_PERCENT = 0.1
"""Minimum upper end of an axis of percentages, so that a negligible share looks negligible."""
Plot = Callable[[Any], None]
"""Draws one pair of axes."""
Row = tuple[float, Sequence[Plot]]
"""Height of the axes in inches, and the plots in them, side by side."""


def arranged(title: str, subtitle: str, rows: Sequence[Row]) -> Any:
    """Return the matplotlib figure with *rows* of plots, and one legend if no plot has its own.

    Matplotlib's constrained layout gives headings, legends and axes their own space, so that no text covers data.
    """
    height = HEADING + sum(ROW_MARGIN + each for each, _ in rows)
    figure = style.new_figure(WIDTH, height)
    figure.set_layout_engine("constrained", wspace=0.04, h_pad=0.08)
    grid = figure.add_gridspec(len(rows), 2, height_ratios=[each for each, _ in rows])
    for number, (_, plots) in enumerate(rows):
        for column, plot in enumerate(plots):
            plot(figure.add_subplot(grid[number, column if len(plots) > 1 else slice(None)]))
    entries: dict[str, Any] = {}
    if not any(axes.get_legend() for axes in figure.axes):
        for axes in figure.axes:
            for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, line)
    height += LEGEND_ROW * ceil(len(entries) / LEGEND_COLUMNS) + 0.08
    figure.set_figheight(height)
    if entries:
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower left", ncols=LEGEND_COLUMNS, frameon=False, fontsize=9,
            labelcolor=style.INK, borderaxespad=0.5, handlelength=2.2, columnspacing=2,
        )  # fmt: skip
    style.heading(figure, title, subtitle, left=0.018, size=13)
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - HEADING / height))
    return figure


def caption(axes: Any, title: str, text: str) -> None:
    """Write *title* and the line *text* above *axes*."""
    for words, rise, size, weight, color in (
        (title, 19, 10, "bold", style.INK), (text, 6, 9, "normal", style.MUTED),
    ):  # fmt: skip
        axes.annotate(
            words, (0, 1), xycoords="axes fraction", xytext=(0, rise), textcoords="offset points",
            fontsize=size, weight=weight, color=color, annotation_clip=False,
        )  # fmt: skip


def representative(downloads: Sequence[Download]) -> Download | None:
    """Return the download of median goodput (of two in the middle, the lower); None if there are no samples."""
    sampled = [each for each in downloads if each.samples]
    return of_median(sampled, lambda each: each.goodput or 0.0) if sampled else None


def _rates(trial: Trial, download: Download) -> tuple[list[float], dict[str, list[float]]]:
    """Return times, and the smoothed rate in Mbit/s of each path that *trial* uses."""
    found = rates(download.samples)
    paths = [path for path in style.PATHS if trial.path in (None, path)]
    return [each.time for each in found], {
        path: style.smooth([each.bits[path] / 1e6 for each in found]) for path in paths
    }


def total(trial: Trial, download: Download) -> list[float]:
    """Return the smoothed rate of all paths together over time, in Mbit/s."""
    return [sum(each) for each in zip(*_rates(trial, download)[1].values(), strict=True)]


def baselines(found: Found) -> Iterator[tuple[Trial, str, float]]:
    """Yield each measured baseline with its path and its rate (Mbit/s on the wire)."""
    for trial in found.cells:
        if trial.kind == "baseline" and trial.path and (rate := values(found.of(trial), f"rate_{trial.path}")):
            yield trial, trial.path, fmean(rate) / 1e6


def span(found: Found, trial: Trial, trials: Sequence[Trial]) -> float:
    """Return the end of *trial*'s time axis: that of all *trials* if their durations are comparable."""
    ends = {each: max(d.duration or 1.0 for d in found.of(each)) for each in trials if found.of(each)}
    together = bool(ends) and max(ends.values()) <= MAX_COMPARABLE_RATIO * min(ends.values())
    return 1.05 * (max(ends.values()) if together else ends.get(trial, 1.0))


def over_time(axes: Any, found: Found, trial: Trial, longest: float, top: float) -> None:
    """Draw the throughput of each path of *trial*. *longest* (s) and *top* (Mbit/s) are the ends of the axes."""
    downloads = found.of(trial)
    goodput = values(downloads, "goodput")
    payload = f"{mean(goodput, 1e-6)} Mbit/s of payload, " if goodput else ""
    caption(axes, trial.title, payload + counted(len(downloads), "run"))
    style.dress(axes, "seconds since the request", "Mbit/s")
    chosen = representative(downloads)
    for each in downloads:
        times, paths = _rates(trial, each)
        for path, rate in paths.items():
            if each is chosen:
                style.draw_path(axes, times, rate, style.PATHS[path])
            else:
                axes.plot(times, rate, color=style.PATHS[path].color, alpha=FAINT_ALPHA, linewidth=0.8, zorder=2)
        if each is chosen and len(paths) > 1:
            axes.plot(times, total(trial, each), color="#9a9a9a", linewidth=0.9, label="both paths", zorder=4)
    if trial.path is None:
        for baseline, path, level in baselines(found):
            label = f"{baseline.title}: {level:.1f} Mbit/s"
            axes.axhline(
                level, color=style.PATHS[path].color, linestyle=style.DASHED, linewidth=1.3, label=label, zorder=5
            )
    if trial.cap:
        label = f"cap on Ethernet: {format_rate(trial.cap)}"
        axes.axhline(trial.cap / 1e6, color=style.INK, linestyle=style.DOTTED, linewidth=1.3, label=label, zorder=5)
    if chosen is not None and chosen.joined is not None and chosen.time_to_throttle is not None:
        joined, in_force = chosen.joined, chosen.joined + chosen.time_to_throttle
        axes.axvline(joined, color=style.FOURTH, linestyle=style.DOTTED, linewidth=1.2, label="second subflow joined")
        axes.axvline(in_force, color=style.FOURTH, linewidth=1.2, label="cap in force")
    axes.set_xlim(0, longest)
    axes.set_ylim(0, top)


def receive_memory(axes: Any, found: Found, trial: Trial, longest: float, top: float) -> None:
    """Draw the bytes in the receiver's memory. *longest* (s) and *top* (kB) are the ends of the axes."""
    downloads = found.of(trial)
    greatest = max(values(downloads, "out_of_order_bytes"), default=0.0)
    caption(axes, f"{trial.title}: receive memory", f"greatest: {approximate_size(greatest)}")
    style.dress(axes, "seconds since the request", "kB")
    chosen = representative(downloads)
    for each in downloads:
        bold = each is chosen
        axes.plot(
            [time for time, _ in each.memory], [octets / 1e3 for _, octets in each.memory], color=style.FOURTH,
            linewidth=1.4 if bold else 0.8, alpha=1 if bold else FAINT_ALPHA, zorder=3 if bold else 2,
        )  # fmt: skip
    axes.set_xlim(0, longest)
    axes.set_ylim(0, top)


def bars(axes: Any, found: Found, trials: Sequence[Trial], name: str) -> None:
    """Draw the means of the value *name* with their intervals, and a dot for each run."""
    column = COLUMNS[name]
    title, _, unit = column.heading.rpartition(", ")
    caption(axes, title[:1].upper() + title[1:], "mean, 95 % interval; dots: runs")
    style.dress(axes, unit, "")
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=style.GRID, linewidth=0.7)
    ends = [MIN_AXIS_PERCENT if unit == "%" else 0.0]
    for row, trial in enumerate(trials):
        sample = [column.scale * value for value in values(found.of(trial), name)]
        if not sample:
            continue
        interval = mean_interval(sample)
        ends += [*sample, interval.high or 0.0]
        axes.barh(-row, interval.mean, height=0.36, color=BAR_COLOR, zorder=2)
        if interval.half is not None:
            axes.errorbar(interval.mean, -row, xerr=interval.half, color=style.INK, capsize=4, linewidth=1.3, zorder=4)
        axes.plot(sample, [-row - 0.09] * len(sample), ".", color=style.MUTED, alpha=0.6, zorder=3)
        for words, y, rise, color in (
            (trial.title, -row + 0.18, 3, style.INK),
            (f"{mean(sample, digits=column.digits)} {unit}", -row - 0.18, -11, style.MUTED),
        ):
            axes.annotate(
                words, (0, y), xytext=(4, rise), textcoords="offset points", fontsize=9, color=color, zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
    axes.set_yticks([])
    axes.set_ylim(0.4 - len(trials), 0.55)
    axes.set_xlim(0, 1.1 * max(ends) or 1)


def sweep(axes: Any, found: Found) -> None:
    """Draw goodput over the size of the receive buffer, and the size that the paper's formula requires."""
    caption(axes, "Goodput against the greatest receive buffer", "mean, 95 % confidence interval")
    style.dress(axes, "receive buffer (tcp_rmem), MB", "Mbit/s")
    points = sorted(
        ((trial.receive_buffer or 0) / 1e6, mean_interval([value / 1e6 for value in goodput]))
        for trial in found.cells
        if trial.kind == "sweep" and (goodput := values(found.of(trial), "goodput"))
    )
    sizes = [size for size, _ in points]
    axes.errorbar(
        sizes, [each.mean for _, each in points], yerr=[each.half or 0.0 for _, each in points], color=style.GOOD,
        marker="o", markersize=4, capsize=3, zorder=3,
    )  # fmt: skip
    needed = found.cells[0].buffer_needed
    if needed is not None:
        label = f"2 × sum of bandwidth × greatest RTT: {needed / 1e6:.2f} MB"
        axes.axvline(needed / 1e6, color=style.MUTED, linestyle=style.DASHED, linewidth=1.3, label=label)
    axes.set_xscale("log")
    axes.set_xticks(sizes[::2], [f"{size:g}" for size in sizes[::2]], fontsize=8.5)
    axes.minorticks_off()
    axes.set_ylim(0, None)


KINDS: dict[str, tuple[str, ...]] = {
    "SYN: client's connection established → SYN to the origin": (SYN,),
    "SYN: client's SYN → SYN to the origin, the client's handshake within": (WHOLE,),
    "Data: a short request, a short response": (REQUEST, RESPONSE),
    "Data: a transfer that waits for nobody": (UPLOAD, DOWNLOAD),
    "Data: a download that comes faster than the client's paths take it": (BULK,),
}
"""The plots of Table 1's picture, and the kinds of segments in each."""
UPWARDS = (SYN, WHOLE, REQUEST, UPLOAD)
"""Kinds of segments from client to origin. The others go from origin to client."""
MARKED_PERCENTS = (50, 95, 99)
DRAWN_PERCENTS = [number / 5 for number in range(501)]
"""Percentages at which a distribution is drawn. These points suffice for any number of values."""


def delays(axes: Any, found: Delayed, title: str, kinds: Sequence[str]) -> None:
    """Draw the distributions of the delays of *kinds* of segments, with a line for each client."""
    caption(axes, title, "share of segments that took no longer")
    style.dress(axes, "milliseconds", "per cent")
    for client, stroke in zip(found.cells, cycle(("-", style.DASHED))):
        for kind in kinds:
            sample = [1e3 * seconds for each in found.of(client, part=kind) for seconds in each.seconds]
            if not sample:
                continue
            middle, p95, p99 = points = percentiles(sample, MARKED_PERCENTS)
            direction = "client → origin" if kind in UPWARDS else "origin → client"
            label = f"{client}, {direction}: n = {len(sample)}\nmedian {middle:.3g} ms, p95 {p95:.3g}, p99 {p99:.3g}"
            color = style.THIRD if kind in UPWARDS else style.FOURTH
            along = percentiles(sample, DRAWN_PERCENTS)
            axes.plot(along, DRAWN_PERCENTS, color=color, linestyle=stroke, linewidth=1.8, label=label, zorder=3)
            axes.plot(points, MARKED_PERCENTS, "o", color=color, markersize=4.5, markeredgecolor="white", zorder=4)
    paper = PAPER_MS[kinds[0]]
    axes.axvline(paper, color=style.INK, linestyle=style.DOTTED, linewidth=1.6, label=f"paper: {paper:.1f} ms")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, 101)
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.06), frameon=False, fontsize=8.5, labelcolor=style.INK,
        borderaxespad=0, labelspacing=0.8,
    )  # fmt: skip


def delays_picture(found: Delayed) -> Any:
    """Return the matplotlib figure of Table 1."""
    measured = {run.part for run in found.runs}

    def plot(title: str, kinds: Sequence[str]) -> Plot:
        return lambda axes: delays(axes, found, title, kinds)

    rows = [(1.9, [plot(title, kinds)]) for title, kinds in KINDS.items() if measured & {*kinds}]
    figure = arranged(
        PAPER["table1"].summary, "From packet timestamps on both sides of the proxy. Dots: median, p95, p99.", rows
    )
    milliseconds = [1e3 * seconds for run in found.runs for seconds in run.measured.seconds if seconds > 0]
    ends = [*milliseconds, *PAPER_MS.values()]
    for axes in figure.axes:
        axes.set_xlim(0.8 * min(ends), 1.25 * max(ends))
    return figure


def draw_delays(found: Delayed, target: Path) -> None:
    """Draw the picture of Table 1 into *target*. Raises OSError."""
    style.save(delays_picture(found), target, dpi=PNG_DPI)
