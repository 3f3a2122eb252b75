# SPDX-License-Identifier: GPL-2.0-or-later
"""Common look of all figures: colours of the paths, fonts, axes, and rates over time.

Matplotlib is imported for the first figure, without pyplot, so that no window opens and figures share no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INK = "#222222"
MUTED = "#6b6b6b"
GRID = "#d9dce1"
BAND = "#f2f4f7"
GOOD = "#2b7a3f"
THIRD, FOURTH = "#2b7a3f", "#7d4fb0"
"""Colours of lines that are not paths. They differ clearly from the paths' colours and, even for colour-blind readers,
from each other."""
DASHED = (0, (4, 3))
DOTTED = (0, (1, 1.6))
SMOOTHING = 3
"""Number of samples in the moving mean. Single samples vary, because packets leave the queue in bursts."""


@dataclass(frozen=True, slots=True)
class PathStyle:
    """Label and colour of one path in all figures."""

    label: str
    color: str


ETHERNET = PathStyle("Ethernet", "#1f6fb4")
WIFI = PathStyle("Wi-Fi", "#d9730d")
PATHS: Mapping[str, PathStyle] = {"ethernet": ETHERNET, "wifi": WIFI}


def smooth(values: Sequence[float]) -> list[float]:
    """Return the centred moving mean of *values*, which has fewer samples at the ends."""
    half = SMOOTHING // 2
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(part) / len(part) for part in windows]


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of this size in inches."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(
        # The salt makes the ids in an SVG file reproducible, and thereby the file.
        {"font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": MUTED, "svg.hashsalt": "mptcp-bench"}
    )
    return Figure(figsize=(width, height))


def heading(figure: Any, title: str, subtitle: str, *, left: float, size: float = 15) -> None:
    """Write title and subtitle at the top of the figure. *left* is a share of its width."""
    height = figure.get_figheight()
    figure.text(left, 1 - 0.36 / height, title, fontsize=size, weight="bold", color=INK)
    figure.text(left, 1 - 0.6 / height, subtitle, fontsize=min(10, size * 0.72), color=MUTED)


def label_axes(axes: Any, x: str, y: str) -> None:
    """Label *axes* with *x* and *y*, which include units, and remove the frame's upper and right lines."""
    axes.set_xlabel(x, color=MUTED)
    axes.set_ylabel(y, color=MUTED)
    axes.tick_params(colors=MUTED, which="both")
    axes.grid(axis="y", color=GRID, linewidth=0.7, zorder=1)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def draw_path(axes: Any, times: Sequence[float], values: Sequence[float], path: PathStyle) -> None:
    """Draw a path's rate over time, with a filled area below it and a label for the legend."""
    axes.fill_between(times, values, color=path.color, alpha=0.14, linewidth=0, zorder=2)
    axes.plot(times, values, color=path.color, linewidth=2, label=path.label, zorder=3)


def save(figure: Any, target: Path, *, dpi: int = 120) -> None:
    """Write *figure* into *target*, in the format of its suffix. The file contains no date."""
    kind = target.suffix.removeprefix(".")
    figure.savefig(target, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)


def draw_panels(target: Path, title: str, subtitle: str, panels: Sequence[Callable[[Any], None]]) -> None:
    """Draw *panels* side by side into the file *target*."""
    figure = new_figure(6.2 * len(panels) + 0.6, 4.8)
    figure.subplots_adjust(left=0.11 / len(panels), right=0.985, top=0.82, bottom=0.13, wspace=0.2)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes)
        axes.legend(frameon=False, fontsize=8)
    heading(figure, title, subtitle, left=0.11 / len(panels), size=14)
    save(figure, target)
