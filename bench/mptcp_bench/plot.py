# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's picture: throughput of each path over time, with a band for each download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mptcp_lab.testbed.recorder import Sample, rates

from . import style
from .displayed_path import DisplayedPath


@dataclass(frozen=True, slots=True)
class Band:
    """One download on the time axis, with its texts."""

    start: float
    end: float
    title: str
    subtitle: str
    result: str


@dataclass(frozen=True, slots=True)
class Level:
    """A rate that is drawn as a dashed line within a band."""

    band: int
    rate: float
    text: str
    color: str


def throughput(
    target: Path,
    samples: Sequence[Sample],
    paths: Sequence[DisplayedPath],
    *,
    bands: Sequence[Band],
    levels: Sequence[Level],
    title: str,
    subtitle: str,
) -> None:
    """Draw *samples*, with *bands* and *levels*, into the PNG file *target*."""
    figure = style.new_figure(13, 6.5)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.06, right=0.985, top=0.735, bottom=0.1)
    series = rates(samples)
    times = [rate.time for rate in series]
    top = max(path.rate for path in paths) / 1e6 * 1.12
    for band in bands:
        axes.axvspan(band.start, band.end, color=style.BAND, zorder=0, linewidth=0)
        middle = (band.start + band.end) / 2
        for text, height, look in (
            (band.title, 1.145, {"weight": "bold", "color": style.INK, "fontsize": 10}),
            (band.subtitle, 1.085, {"color": style.MUTED, "fontsize": 9}),
            (band.result, 1.02, {"weight": "bold", "color": style.GOOD, "fontsize": 9.5}),
        ):
            axes.text(middle, top * height, text, ha="center", va="bottom", **look)
    for path in paths:
        values = style.smooth([rate.bits[path.device] / 1e6 for rate in series])
        style.draw_path(axes, times, values, style.PathStyle(path.label, path.color))
    for level in levels:
        band, rate = bands[level.band], level.rate / 1e6
        axes.hlines(rate, band.start, band.end, colors=level.color, linestyles=style.DASHED, linewidth=1, zorder=4)
        axes.annotate(
            level.text,
            ((band.start + band.end) / 2, rate),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            color=level.color,
            fontsize=9.5,
            weight="bold",
            zorder=5,
        )
    axes.set_xlim(bands[0].start - 0.4, bands[-1].end + 0.4)
    axes.set_ylim(0, top)
    style.dress(axes, "time in seconds", "received by the client, Mbit/s")
    style.heading(figure, title, subtitle, left=0.06)
    axes.legend(
        loc="upper left", bbox_to_anchor=(bands[:2][-1].start, top * 0.99), bbox_transform=axes.transData,
        frameon=False, fontsize=11, borderpad=0,
    )  # fmt: skip
    style.save(figure, target)
