# SPDX-License-Identifier: GPL-2.0-or-later
"""Common parts of the experiments' pictures: rates of Ethernet and Wi-Fi over time, panels, marked moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    span: tuple[float, float] | None = None,
    most: float | None = None,
    side_by_side: bool = False,
) -> None:
    """Draw *panels* into *target*. *x* labels the time axis, *span* is its range, *most* the highest rate in Mbit/s."""
    count = len(panels)
    inches = 4.6 if side_by_side else 2.2 * count + 1
    figure = style.new_figure(11, inches)
    rows, columns = (1, count) if side_by_side else (count, 1)
    every = list(figure.subplots(rows, columns, sharex=True, sharey=side_by_side, squeeze=False).flat)
    top, bottom = (0.76, 0.13) if side_by_side else (1 - 1.1 / inches, 0.09)
    figure.subplots_adjust(left=0.065, right=0.985, top=top, bottom=bottom, wspace=0.08, hspace=0.4)
    for axes, panel in zip(every, panels, strict=True):
        begin, end = span or (-math.inf, math.inf)
        shown = [each for each in rates(panel.samples) if begin <= each.time - panel.zero <= end]
        times = [each.time - panel.zero for each in shown]
        for device, path in zip(DEVICES, (style.ETHERNET, style.WIFI), strict=True):
            style.draw_path(axes, times, [each.bits[device] / 1e6 for each in shown], path)
        for moment in panel.marks:
            axes.axvline(moment, color=style.INK, linestyle=style.DASHED, linewidth=1, zorder=4)
        axes.set_title(panel.title, loc="left", fontsize=11 if side_by_side else 10, color=style.INK)
        if span is not None:
            axes.set_xlim(*span)
        axes.set_ylim(0, most)
        is_left, is_lowest = axes is every[0] or not side_by_side, axes is every[-1] or side_by_side
        style.dress(axes, x if is_lowest else "", "Mbit/s" if is_left else "")
    every[0].legend(loc="upper right", frameon=False)
    style.heading(figure, title, subtitle, left=0.065)
    style.save(figure, target)


def drawn(target: Path, title: str, subtitle: str, panels: Sequence[Callable[[Any], None]]) -> None:
    """Draw *panels* side by side into the file *target*."""
    figure = style.new_figure(6.2 * len(panels) + 0.6, 4.8)
    figure.subplots_adjust(left=0.11 / len(panels), right=0.985, top=0.82, bottom=0.13, wspace=0.2)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes)
        axes.legend(frameon=False, fontsize=8)
    style.heading(figure, title, subtitle, left=0.11 / len(panels), size=14)
    style.save(figure, target)
