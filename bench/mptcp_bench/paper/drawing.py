# SPDX-License-Identifier: GPL-2.0-or-later
"""The pictures of Figures 2 to 7, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import style
from . import PAPER
from .measurements import Found, Trial
from .panels import (
    HEADROOM,
    PNG_DPI,
    Plot,
    Row,
    arranged,
    bars,
    baselines,
    over_time,
    receive_memory,
    span,
    sweep,
    total,
)  # fmt: skip

SUBTITLE = (
    f"Bytes on the wire at the client, mean over {style.SMOOTHING} samples. "
    "Bold: the run of median goodput; faint: the other runs."
)


def _in_rows(plots: Sequence[Plot], height: float) -> list[Row]:
    return [(height, plots[i : i + 2]) for i in range(0, len(plots), 2)]


def _throughput(found: Found, trials: Sequence[Trial]) -> list[Plot]:
    """Return a panel of throughput over time for each of *trials*.

    All panels with a cap have the same scale, and all panels without a cap as well. With one common scale, low rates
    would not be visible.
    """
    levels = [level for _, _, level in baselines(found)]

    def plot(trial: Trial) -> Plot:
        alike = [each for each in trials if each.throttled == trial.throttled]
        top = max([*levels, 1.0, *(rate for each in alike for d in found.of(each) for rate in total(each, d))])
        return lambda axes: over_time(axes, found, trial, span(found, trial, alike), HEADROOM * top)

    return [plot(trial) for trial in trials]


def _memory(found: Found, trials: Sequence[Trial]) -> list[Plot]:
    """Return a panel of the receiver's memory over time for each of *trials*."""
    top = max([1.0, *(octets / 1e3 for each in trials for d in found.of(each) for _, octets in d.memory)])

    def plot(trial: Trial) -> Plot:
        return lambda axes: receive_memory(axes, found, trial, span(found, trial, trials), HEADROOM * top)

    return [plot(trial) for trial in trials]


def picture(name: str, found: Found) -> Any:
    """Return the matplotlib figure of the experiment *name*."""
    trials = [trial for trial in found.cells if trial.kind == "panel"]
    panels = _throughput(found, trials)
    if name in ("fig4", "fig5"):
        rows = [*_in_rows(panels, 2.4), *_in_rows(_memory(found, trials), 1.3)]
        last: list[Plot] = [lambda axes: bars(axes, found, trials, "retransmission_share")]
        if any(trial.kind == "sweep" for trial in found.cells):
            last.insert(0, lambda axes: sweep(axes, found))
        rows.append((2.3 if len(last) > 1 else 1.5, last))
    elif name == "fig6":
        rows = _in_rows([*panels, lambda axes: bars(axes, found, trials, "duration")], 2.2)
    else:
        rows = _in_rows(panels, 2.6)
    unfinished = " (incomplete)" if len(found.runs) < len(found.turns) else ""
    return arranged(PAPER[name].summary + unfinished, SUBTITLE, rows)


def draw(name: str, found: Found, target: Path) -> None:
    """Draw the picture of the experiment *name* into *target*, in the format of its suffix. Raises OSError."""
    style.save(picture(name, found), target, dpi=PNG_DPI)
