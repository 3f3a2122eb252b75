# SPDX-License-Identifier: GPL-2.0-or-later
"""Common parts of the experiments' pictures: Ethernet and Wi-Fi over time, panels, marked moments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mptcp_lab.testbed.recorder import Rate

from .. import style
from .devices import DEVICES


def both_paths(axes: Any, series: Sequence[Rate], zero: float = 0.0) -> None:
    """Draw the rates of both paths; *zero* is the origin of the time axis."""
    times = [rate.time - zero for rate in series]
    for device, path in zip(DEVICES, (style.ETHERNET, style.WIFI), strict=True):
        style.draw_path(axes, times, [rate.bits[device] / 1e6 for rate in series], path)


def mark(axes: Any, *moments: float) -> None:
    """Draw a dashed line at each of *moments*."""
    for moment in moments:
        axes.axvline(moment, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)


def stacked(count: int, height: float) -> tuple[Any, list[Any]]:
    """Return a figure of *count* panels of *height* inches, one below the other, with a common time axis."""
    inches = height * count + 1
    figure = style.new_figure(11, inches)
    panels = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    figure.subplots_adjust(left=0.065, right=0.985, top=1 - 1.1 / inches, bottom=0.09, hspace=0.4)
    return figure, list(panels)


def beside(count: int) -> tuple[Any, list[Any]]:
    """Return a figure of *count* panels side by side, which share their axes."""
    figure = style.new_figure(11, 4.6)
    panels = figure.subplots(1, count, sharex=True, sharey=True, squeeze=False)[0]
    figure.subplots_adjust(left=0.065, right=0.985, top=0.76, bottom=0.13, wspace=0.08)
    return figure, list(panels)


def drawn(target: Path, title: str, subtitle: str, panels: Sequence[Callable[[Any], None]]) -> None:
    """Draw *panels* side by side into the file *target*."""
    figure = style.new_figure(6.2 * len(panels) + 0.6, 4.8)
    figure.subplots_adjust(left=0.11 / len(panels), right=0.985, top=0.82, bottom=0.13, wspace=0.2)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes)
        axes.legend(frameon=False, fontsize=8)
    style.heading(figure, title, subtitle, left=0.11 / len(panels), size=14)
    style.save(figure, target)
