# SPDX-License-Identifier: GPL-2.0-or-later
"""Plots without a time axis: bars with intervals, goodput over buffer size, distributions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any

from .. import style
from ..statistics import percentiles
from .figures_time import caption, nothing
from .quantities import scale, show
from .results import BULK, DATA, DOWN, GOODPUT, STREAM, SYN, UP, WHOLE, Case, Measurements, metric

BAR = "#c3c9d3"
KINDS = {
    SYN: "SYN: client's connection established → SYN to the origin",
    WHOLE: "SYN: client's SYN → SYN to the origin, the client's handshake within",
    DATA: "Data: a short request, a short response",
    STREAM: "Data: a transfer that waits for nobody",
    BULK: "Data: a download that comes faster than the client's paths take it",
}
DIRECTIONS = {UP: ("client → origin", style.THIRD), DOWN: ("origin → client", style.FOURTH)}
STROKES = ("-", style.DASHED, style.DOTTED)
"""Line styles of the cases."""
MARKED = (50, 95, 99)
SHARES = [number / 5 for number in range(501)]
"""Percentages at which a distribution is drawn. These points suffice for any number of values."""
UNITS = {"s": "seconds", "ms": "milliseconds", "%": "per cent", "": "segments"}
LEAST_SHARE = 0.001
"""Minimum upper end of an axis of shares, so that a negligible share looks negligible."""


def bars(axes: Any, result: Measurements, cases: Sequence[Case], name: str) -> None:
    """Draw the means of metric *name* with their intervals, and a dot for each run."""
    known = metric(name)
    found = [(case, s) for case in cases if (s := result.statistic(case.key, name))]
    caption(axes, known.title[:1].upper() + known.title[1:], "mean, 95 % interval; dots: runs")
    if not found:
        nothing(axes)
        return
    top = max(max(s.high or s.mean, *s.values, s.mean) for _, s in found)
    if known.unit == "ratio":
        top = max(top, LEAST_SHARE)
    factor, unit = scale(top, known.unit)
    style.dress(axes, UNITS.get(unit, unit), "")
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x", color=style.GRID, linewidth=0.7)
    for row, (case, s) in enumerate(found):
        axes.barh(-row, s.mean / factor, height=0.36, color=BAR, zorder=2)
        if s.half is not None:
            axes.errorbar(
                s.mean / factor, -row, xerr=s.half / factor, color=style.INK, capsize=4, linewidth=1.3, zorder=4
            )
        axes.plot([v / factor for v in s.values], [-row - 0.09] * s.n, ".", color=style.MUTED, alpha=0.6, zorder=3)
        for words, y, rise, color in (
            (case.title, -row + 0.18, 3, style.INK),
            (show(s.mean, known.unit, s.half), -row - 0.18, -11, style.MUTED),
        ):
            axes.annotate(
                words, (0, y), xytext=(4, rise), textcoords="offset points", fontsize=9, color=color, zorder=5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=5)
    axes.set_ylim(0.4 - len(found), 0.55)
    axes.set_xlim(0, 1.1 * top / factor or 1)


def sweep(axes: Any, result: Measurements) -> None:
    """Draw goodput over the size of the receive buffer, and the size that the paper's formula requires."""
    found = sorted(
        (case.at / 1e6, s)
        for case in result.of_kind("sweep")
        if case.at is not None and (s := result.statistic(case.key, GOODPUT))
    )
    caption(axes, "Goodput against the greatest receive buffer", "mean, 95 % confidence interval")
    if not found:
        nothing(axes)
        return
    style.dress(axes, "receive buffer (tcp_rmem), MB", "Mbit/s")
    sizes, means = [size for size, _ in found], [s.mean / 1e6 for _, s in found]
    halves = [(s.half or 0.0) / 1e6 for _, s in found]
    axes.errorbar(sizes, means, yerr=halves, color=style.GOOD, marker="o", markersize=4, capsize=3, zorder=3)
    for reference in result.references:
        if reference.where == "sweep":
            axes.axvline(
                reference.value / 1e6, color=style.MUTED, linestyle=style.DASHED, linewidth=1.3, label=reference.title
            )
    axes.set_xscale("log")
    axes.set_xticks(sizes[::2], [f"{size:g}" for size in sizes[::2]], fontsize=8.5)
    axes.minorticks_off()
    axes.set_ylim(0, 1.1 * max(m + h for m, h in zip(means, halves, strict=True)))


def delays(axes: Any, result: Measurements, kind: str) -> None:
    """Draw the distributions of the delays of segments of *kind*, with a line for each direction and case."""
    caption(axes, KINDS.get(kind, kind), "share of segments that took no longer")
    style.dress(axes, "milliseconds", "per cent")
    cases = [case for case in result.cases if any(run.distributions for run in result.valid(case.key))]
    for case, stroke in zip(cases, cycle(STROKES)):
        names = dict.fromkeys(name for run in result.valid(case.key) for name in run.distributions)
        for name in names:
            of, _, direction = name.partition(" ")
            values = [1e3 * value for value in result.pooled(name, case.key)]
            if of != kind or not values:
                continue
            label, color = DIRECTIONS.get(direction, (direction, style.INK))
            points = percentiles(values, MARKED)
            whose = f"{case.title}, {label}" if len(cases) > 1 else label
            legend = f"{whose}: n = {len(values)}\n{_in_words(points)}"
            along = percentiles(values, SHARES)
            axes.plot(along, SHARES, color=color, linestyle=stroke, linewidth=1.8, label=legend, zorder=3)
            axes.plot(points, MARKED, "o", color=color, markersize=4.5, markeredgecolor="white", zorder=4)
    for reference in result.references:
        if reference.where == kind:
            axes.axvline(
                1e3 * reference.value, color=style.INK, linestyle=style.DOTTED, linewidth=1.6, label=reference.title
            )
    axes.set_xscale("log")
    axes.set_xlim(*_delay_range(result))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(0, 101)
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.02, 1.06), frameon=False, fontsize=8.5, labelcolor=style.INK,
        borderaxespad=0, labelspacing=0.8,
    )  # fmt: skip


def _delay_range(result: Measurements) -> tuple[float, float]:
    """Return the range of all delays and references in milliseconds, so that all kinds have the same axis."""
    seconds = [v for run in result.runs if run.valid for values in run.distributions.values() for v in values]
    seconds += [reference.value for reference in result.references]
    positive = [1e3 * value for value in seconds if value > 0]
    return 0.8 * min(positive), 1.25 * max(positive)


def _in_words(points: Sequence[float]) -> str:
    median, p95, p99 = (show(point / 1e3, "s") for point in points)
    return f"median {median}, p95 {p95}, p99 {p99}"
