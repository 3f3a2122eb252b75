# SPDX-License-Identifier: GPL-2.0-or-later
"""A figure with panels side by side, as the experiments' pictures use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import style


def draw_panels(target: Path, title: str, subtitle: str, panels: Sequence[Callable[[Any], None]]) -> None:
    """Draw *panels* side by side into the file *target*."""
    figure = style.new_figure(6.2 * len(panels) + 0.6, 4.8)
    figure.subplots_adjust(left=0.11 / len(panels), right=0.985, top=0.82, bottom=0.13, wspace=0.2)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes)
        axes.legend(frameon=False, fontsize=8)
    style.heading(figure, title, subtitle, left=0.11 / len(panels), size=14)
    style.save(figure, target)
