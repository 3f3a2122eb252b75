# SPDX-License-Identifier: GPL-2.0-or-later
"""The layout of the experiments' pictures, and panels with the rates of Ethernet and Wi-Fi over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mptcp_lab.testbed.recorder import Sample, rates

from .. import style
from .devices import DEVICES


@dataclass(frozen=True, slots=True)
class Panel:
    """One transfer over time. *zero* is the origin of the time axis; *marks* are relative to the origin."""

    title: str
    samples: Sequence[Sample]
    zero: float = 0.0
    marks: Sequence[float] = ()


def draw_panels(
    target: Path,
    title: str,
    subtitle: str,
    panels: Sequence[Panel],
    *,
    x: str,
    span: tuple[float, float],
    most: float | None = None,
    side_by_side: bool = False,
) -> None:
    """Draw *panels* into *target*. *x* labels the time axis, *span* is its range, *most* the highest rate in Mbit/s."""

    def draw(panel: Panel, axes: Any) -> None:
        shown = [each for each in rates(panel.samples) if span[0] <= each.time - panel.zero <= span[1]]
        times = [each.time - panel.zero for each in shown]
        for device, path in zip(DEVICES, (style.ETHERNET, style.WIFI), strict=True):
            style.draw_path(axes, times, [each.bits[device] / 1e6 for each in shown], path)
        for moment in panel.marks:
            axes.axvline(moment, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
        axes.set_title(panel.title, loc="left", fontsize=10, color=style.INK)
        axes.set_xlim(*span)
        axes.set_ylim(0, most)
        style.dress(axes, x if side_by_side or panel is panels[-1] else "", "Mbit/s")

    drawn(target, title, subtitle, [partial(draw, panel) for panel in panels], stacked=not side_by_side)


def drawn(
    target: Path, title: str, subtitle: str, panels: Sequence[Callable[[Any], None]], *, stacked: bool = False
) -> None:
    """Draw *panels* side by side, or *stacked*, into the file *target*."""
    count = len(panels)
    rows, width, height = (count, 11.0, 2.2 * count + 1) if stacked else (1, 6.2 * count + 0.6, 4.8)
    figure = style.new_figure(width, height)
    left = 0.7 / width
    figure.subplots_adjust(left=left, right=0.985, top=1 - 1.05 / height, bottom=0.62 / height, wspace=0.2, hspace=0.4)
    for axes, panel in zip(figure.subplots(rows, count // rows, squeeze=False).flat, panels, strict=True):
        panel(axes)
        axes.legend(loc="upper right" if stacked else "best", frameon=False, fontsize=8)
    style.heading(figure, title, subtitle, left=left, size=14)
    style.save(figure, target)
