# SPDX-License-Identifier: GPL-2.0-or-later
"""The pictures of Figures 2 to 7."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from mptcp_common.units import counted, format_rate
from mptcp_lab.testbed.recorder import rates

from .. import style
from ..experiments.tables import mean
from ..statistics import fmean, of_median
from . import PAPER
from .measurements import Download, Found, Trial, values

SUBTITLE = (
    f"Bytes on the wire at the client, mean over {style.SMOOTHING} samples. "
    "Bold: the run of median goodput; faint: the other runs."
)
WIDTH, HEADING, ABOVE, PLOT_HEIGHT, BELOW = 9.2, 0.7, 0.5, 2.0, 1.4
"""Inches: width of a picture, space for its heading, height of a plot, and space above and below it for its texts."""
PNG_DPI = 180
MAX_COMPARABLE_RATIO = 3.0
"""Maximum ratio of the longest to the shortest duration at which panels have the same time axis."""
HEADROOM = 1.08
Plot = Callable[[Any], None]
"""Draws one pair of axes."""


def arrange(title: str, plots: Sequence[Plot]) -> Any:
    """Return the matplotlib figure with *plots*, two in a row, and a legend below each plot."""
    columns = min(2, len(plots))
    rows = ceil(len(plots) / columns)
    height = HEADING + rows * (PLOT_HEIGHT + ABOVE + BELOW)
    figure = style.new_figure(WIDTH, height)
    top, bottom, between = 1 - (HEADING + ABOVE) / height, BELOW / height, (ABOVE + BELOW) / PLOT_HEIGHT
    figure.subplots_adjust(left=0.07, right=0.98, top=top, bottom=bottom, hspace=between, wspace=0.16)
    for number, plot in enumerate(plots, 1):
        axes = figure.add_subplot(rows, columns, number)
        plot(axes)
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.5 / PLOT_HEIGHT), frameon=False, fontsize=8, borderaxespad=0,
            labelcolor=style.INK, ncols=columns, columnspacing=1, handlelength=1.5,
        )  # fmt: skip
    style.heading(figure, title, SUBTITLE, left=0.018, size=13)
    return figure


def caption(axes: Any, title: str, text: str) -> None:
    """Write *title* and the line *text* above *axes*."""
    axes.set_title(title, loc="left", pad=19, fontsize=10, weight="bold", color=style.INK)
    axes.annotate(
        text, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize=9,
        color=style.MUTED, annotation_clip=False,
    )  # fmt: skip


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


def over_time(axes: Any, found: Found, trial: Trial, trials: Sequence[Trial]) -> None:
    """Draw the throughput of each path of *trial*, with the scale of all *trials*."""
    downloads = found.of(trial)
    goodput = values(downloads, "goodput")
    payload = f"{mean(goodput, 1e-6)} Mbit/s of payload, " if goodput else ""
    caption(axes, trial.title, payload + counted(len(downloads), "run"))
    style.dress(axes, "seconds since the request", "Mbit/s")
    sampled = [each for each in downloads if each.samples]
    chosen = of_median(sampled, lambda each: each.goodput or 0.0) if sampled else None
    for each in downloads:
        times, paths = _rates(trial, each)
        for path, rate in paths.items():
            if each is chosen:
                style.draw_path(axes, times, rate, style.PATHS[path])
            else:
                axes.plot(times, rate, color=style.PATHS[path].color, alpha=0.28, linewidth=0.8, zorder=2)
        if each is chosen and len(paths) > 1:
            axes.plot(times, total(trial, each), color="#9a9a9a", linewidth=0.9, label="both paths", zorder=4)
    levels = list(baselines(found))
    for baseline, path, level in levels if trial.path is None else ():
        label, color = f"{baseline.title}: {level:.1f} Mbit/s", style.PATHS[path].color
        axes.axhline(level, color=color, linestyle=style.DASHED, linewidth=1.3, label=label, zorder=5)
    if trial.cap:
        label = f"cap on Ethernet: {format_rate(trial.cap)}"
        axes.axhline(trial.cap / 1e6, color=style.INK, linestyle=style.DOTTED, linewidth=1.3, label=label, zorder=5)
    if chosen is not None and chosen.joined is not None and chosen.time_to_throttle is not None:
        joined, in_force = chosen.joined, chosen.joined + chosen.time_to_throttle
        axes.axvline(joined, color=style.FOURTH, linestyle=style.DOTTED, linewidth=1.2, label="second subflow joined")
        axes.axvline(in_force, color=style.FOURTH, linewidth=1.2, label="cap in force")
    ends = {each: max(d.duration or 1.0 for d in found.of(each)) for each in trials if found.of(each)}
    comparable = bool(ends) and max(ends.values()) <= MAX_COMPARABLE_RATIO * min(ends.values())
    axes.set_xlim(0, 1.05 * (max(ends.values()) if comparable else ends.get(trial, 1.0)))
    tops = (rate for each in trials for d in found.of(each) for rate in total(each, d))
    axes.set_ylim(0, HEADROOM * max([1.0, *(level for _, _, level in levels), *tops]))


def picture(name: str, found: Found) -> Any:
    """Return the matplotlib figure of the experiment *name*."""

    def plot(trial: Trial, trials: Sequence[Trial]) -> Plot:
        return lambda axes: over_time(axes, found, trial, trials)

    shown = [trial for trial in found.cells if trial.kind == "panel"]
    # Panels with a cap have their own scale. With one common scale, low rates would not be visible.
    plots = [plot(trial, [each for each in shown if each.throttled == trial.throttled]) for trial in shown]
    return arrange(PAPER[name].summary, plots)


def draw(name: str, found: Found, target: Path) -> None:
    """Draw the picture of the experiment *name* into *target*, in the format of its suffix. Raises OSError."""
    style.save(picture(name, found), target, dpi=PNG_DPI)
