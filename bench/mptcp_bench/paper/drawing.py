# SPDX-License-Identifier: GPL-2.0-or-later
"""The pictures of Figures 2 to 7."""

from __future__ import annotations

from math import ceil
from pathlib import Path
from typing import Any

from mptcp_common.units import counted, format_rate
from mptcp_lab.testbed.recorder import rates

from .. import style
from ..experiments.tables import mean
from ..statistics import fmean, median_item
from . import PAPER
from .measurements import Download, Found, Trial, values

SUBTITLE = (
    f"Bytes on the wire at the client, mean over {style.SMOOTHING} samples. "
    "Bold: the run of median goodput; faint: the other runs."
)
WIDTH, HEADING, ABOVE, PLOT_HEIGHT, BELOW = 9.2, 0.7, 0.5, 2.0, 1.4
"""Inches: width of a picture, space for its heading, height of a plot, and space above and below it for its texts."""
PNG_DPI = 180


def rates_of(trial: Trial, download: Download) -> tuple[list[float], dict[str, list[float]]]:
    """Return times, and the smoothed rate in Mbit/s of each path that *trial* uses."""
    found = rates(download.samples)
    paths = [path for path in style.PATHS if trial.path in (None, path)]
    return [each.time for each in found], {
        path: style.smooth([each.bits[path] / 1e6 for each in found]) for path in paths
    }


def draw_rates(axes: Any, found: Found, trial: Trial) -> None:
    """Draw the throughput of each path of *trial* over time."""
    downloads = found.of(trial)
    goodput = values(downloads, "goodput")
    payload = f"{mean(goodput, 1e-6)} Mbit/s of payload, " if goodput else ""
    axes.set_title(trial.title, loc="left", pad=19, fontsize=10, weight="bold", color=style.INK)
    axes.annotate(
        payload + counted(len(downloads), "run"), (0, 1), xycoords="axes fraction", xytext=(0, 6),
        textcoords="offset points", fontsize=9, color=style.MUTED, annotation_clip=False,
    )  # fmt: skip
    style.label_axes(axes, "seconds since the request", "Mbit/s")
    sampled = [each for each in downloads if each.samples]
    chosen = median_item(sampled, lambda each: each.goodput or 0.0) if sampled else None
    for each in downloads:
        times, paths = rates_of(trial, each)
        for path, rate in paths.items():
            if each is chosen:
                style.draw_path(axes, times, rate, style.PATHS[path])
            else:
                axes.plot(times, rate, color=style.PATHS[path].color, alpha=0.28, linewidth=0.8, zorder=2)
        if each is chosen and len(paths) > 1:
            total = [sum(both) for both in zip(*paths.values(), strict=True)]
            axes.plot(times, total, color="#9a9a9a", linewidth=0.9, label="both paths", zorder=4)
    for baseline in found.cells if trial.path is None else ():
        if baseline.kind == "baseline" and (alone := values(found.of(baseline), f"rate_{baseline.path}")):
            level = fmean(alone) / 1e6
            label, color = f"{baseline.title}: {level:.1f} Mbit/s", style.PATHS[str(baseline.path)].color
            axes.axhline(level, color=color, linestyle=style.DASHED, linewidth=1.3, label=label, zorder=5)
    if trial.cap:
        label = f"cap on Ethernet: {format_rate(trial.cap)}"
        axes.axhline(trial.cap / 1e6, color=style.INK, linestyle=style.DOTTED, linewidth=1.3, label=label, zorder=5)
    if chosen is not None and chosen.joined is not None and chosen.time_to_throttle is not None:
        joined, in_force = chosen.joined, chosen.joined + chosen.time_to_throttle
        axes.axvline(joined, color=style.FOURTH, linestyle=style.DOTTED, linewidth=1.2, label="second subflow joined")
        axes.axvline(in_force, color=style.FOURTH, linewidth=1.2, label="cap in force")


def picture(name: str, found: Found) -> Any:
    """Return the matplotlib figure of the experiment *name*: two plots in a row, with a legend below each plot."""
    trials = [trial for trial in found.cells if trial.kind == "panel"]
    columns = min(2, len(trials))
    rows = ceil(len(trials) / columns)
    height = HEADING + rows * (PLOT_HEIGHT + ABOVE + BELOW)
    figure = style.new_figure(WIDTH, height)
    top, bottom, between = 1 - (HEADING + ABOVE) / height, BELOW / height, (ABOVE + BELOW) / PLOT_HEIGHT
    figure.subplots_adjust(left=0.07, right=0.98, top=top, bottom=bottom, hspace=between, wspace=0.16)
    first_axes: dict[bool, Any] = {}
    for number, trial in enumerate(trials, 1):
        # Plots with a cap have their own scales. With common scales, low rates would not be visible.
        common = first_axes.get(trial.throttled)
        axes = figure.add_subplot(rows, columns, number, sharex=common, sharey=common)
        first_axes.setdefault(trial.throttled, axes)
        draw_rates(axes, found, trial)
        axes.legend(
            loc="upper left", bbox_to_anchor=(0, -0.5 / PLOT_HEIGHT), frameon=False, fontsize=8, borderaxespad=0,
            labelcolor=style.INK, ncols=columns, columnspacing=1, handlelength=1.5,
        )  # fmt: skip
    for axes in first_axes.values():
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    style.heading(figure, PAPER[name].summary, SUBTITLE, left=0.018, size=13)
    return figure


def draw(name: str, found: Found, target: Path) -> None:
    """Draw the picture of the experiment *name* into *target*, in the format of its suffix. Raises OSError."""
    style.save(picture(name, found), target, dpi=PNG_DPI)
