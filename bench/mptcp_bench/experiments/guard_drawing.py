# SPDX-License-Identifier: GPL-2.0-or-later
"""Draw the results of the experiment ``guard``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mptcp_lab.testbed.recorder import rates

from .. import style
from .drawing import both_paths, mark, stacked
from .findings import Picture
from .guard_judging import AFTER, CAP, FAULT, Arm, Measured


def pictures(measured: Sequence[Measured]) -> tuple[Picture, ...]:
    """Return the picture of *measured*; empty if no run had the guard."""
    guarded = [m for m in measured if m.arm is Arm.ON]
    return (Picture("guard", lambda target: draw(target, guarded)),) if guarded else ()


def draw(target: Path, guarded: Sequence[Measured]) -> None:
    """Draw one run with the guard for each kind of fault, all with the same direction and RTT."""
    first = guarded[0].cell
    shown = [m for m in guarded if (m.cell.direction, m.cell.rtt) == (first.direction, first.rtt)]
    kinds = list(dict.fromkeys(m.cell.fault for m in shown))
    figure, panels = stacked(len(kinds), 2.3)
    for axes, fault in zip(panels, kinds, strict=True):
        chosen = next(m for m in shown if m.cell.fault == fault)
        series = [rate for rate in rates(chosen.samples) if rate.time - chosen.fault_at >= -2]
        both_paths(axes, series, chosen.fault_at)
        mark(axes, 0, FAULT)
        axes.set_title(f"Wi-Fi: {fault}", loc="left", fontsize=10, color=style.INK)
        axes.set_xlim(-2, FAULT + AFTER)
        style.dress(axes, "seconds since the fault" if fault == kinds[-1] else "", "Mbit/s")
    panels[0].legend(loc="upper right", frameon=False)
    heading = f"Ethernet capped at {CAP} Mbit/s, RTT {first.rtt} ms; between the dashed lines Wi-Fi has a fault"
    style.heading(figure, "The guard", heading, left=0.065)
    style.save(figure, target)
