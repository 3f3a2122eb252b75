# SPDX-License-Identifier: GPL-2.0-or-later
"""Plots over time: throughput of each path, and bytes in the receiver's memory. Each call draws one pair of axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mptcp_common.units import counted, format_rate

from .. import style
from .quantities import show
from .results import GOODPUT, JOINED, TIME_TO_THROTTLE, Case, Measurements, Run, Series, metric, rate, representative

COMPARABLE = 3.0
"""Maximum ratio of the longest to the shortest duration at which panels have the same time axis."""
HEADROOM = 1.08
FAINT = 0.28


@dataclass(frozen=True, slots=True)
class Scales:
    """The upper ends of the axes of several panels, which are the same so that the panels can be compared."""

    longest: float
    """End of the time axis in seconds; 0 if each panel has its own."""
    greatest: float
    """End of the other axis in Mbit/s, or in kB for memory."""

    @classmethod
    def of(cls, result: Measurements, cases: Iterable[Case], extra: str | None = None) -> Scales:
        """Return the scales for throughput, or for the series *extra*."""
        shown = [(case, run) for case in cases for run in _runs(result, case)]
        ends = {case.key: max(run.end for other, run in shown if other == case) for case, _ in shown}
        together = bool(ends) and max(ends.values()) <= COMPARABLE * min(ends.values())
        if extra is not None:
            tops = [max(run.series.extra.get(extra, ()), default=0.0) / 1e3 for _, run in shown if run.series]
        else:
            tops = [max(_total(case, run.series), default=0.0) for case, run in shown if run.series]
            tops += [level for _, _, level in _levels(result)]
        return cls(max(ends.values()) if together else 0.0, HEADROOM * max([*tops, 1.0]))

    def apply(self, axes: Any, runs: Sequence[Run]) -> None:
        # Two samples more, so that the curve can fall: a rate is the mean of the interval before its time.
        steps = [run.series.times[-1] / len(run.series.times) for run in runs if run.series]
        axes.set_xlim(0, 1.02 * (self.longest or max(run.end for run in runs)) + 2 * max(steps))
        axes.set_ylim(0, self.greatest)


def _runs(result: Measurements, case: Case) -> tuple[Run, ...]:
    return tuple(run for run in result.valid(case.key) if run.series is not None and run.series.times)


def _paths(case: Case, series: Series) -> Iterator[tuple[style.PathStyle, list[float]]]:
    """Yield the style of each path and its smoothed rate in Mbit/s."""
    for name, values in series.paths.items():
        if case.path in (None, name):
            look = style.PATHS.get(name) or style.PathStyle(name, style.THIRD)
            yield look, style.smooth([value / 1e6 for value in values])


def _total(case: Case, series: Series) -> list[float]:
    return [sum(values) for values in zip(*(values for _, values in _paths(case, series)), strict=True)]


def _levels(result: Measurements) -> Iterator[tuple[str, str, float]]:
    """Yield label, colour and rate (Mbit/s on the wire) of each baseline that was measured."""
    for case in result.of_kind("baseline"):
        if case.path is not None and (found := result.statistic(case.key, rate(case.path))):
            color = style.PATHS[case.path].color
            yield f"{case.title}: {show(found.mean, 'bit/s')}", color, found.mean / 1e6


def caption(axes: Any, title: str, text: str) -> None:
    """Write *title* and the line *text* above *axes*."""
    lines = [(title, 10, "bold", style.INK), *([(text, 9, "normal", style.MUTED)] if text else [])]
    for number, (words, size, weight, color) in enumerate(reversed(lines)):
        axes.annotate(
            words, (0, 1), xycoords="axes fraction", xytext=(0, 6 + 13 * number), textcoords="offset points",
            fontsize=size, weight=weight, color=color, annotation_clip=False,
        )  # fmt: skip


def nothing(axes: Any) -> None:
    """Write into *axes* that there is no data point."""
    axes.text(0.5, 0.5, "no data point yet", transform=axes.transAxes, ha="center", color=style.MUTED)
    axes.set_xticks([])
    axes.set_yticks([])


def _outcome(result: Measurements, case: Case, runs: Sequence[Run]) -> str:
    count, found = counted(len(runs), "run"), result.statistic(case.key, GOODPUT)
    return count if found is None else f"{show(found.mean, 'bit/s', found.half)} of payload, {count}"


def over_time(axes: Any, result: Measurements, case: Case, scales: Scales) -> None:
    """Draw the throughput of each path of *case*."""
    runs = _runs(result, case)
    caption(axes, case.title, _outcome(result, case, runs))
    style.dress(axes, "seconds since the request", "Mbit/s")
    chosen = representative(runs)
    if chosen is None or chosen.series is None:
        nothing(axes)
        return
    for run in runs:
        if run is not chosen and run.series is not None:
            for look, values in _paths(case, run.series):
                axes.plot(run.series.times, values, color=look.color, alpha=FAINT, linewidth=0.8, zorder=2)
    drawn = list(_paths(case, chosen.series))
    for look, values in drawn:
        style.draw_path(axes, chosen.series.times, values, look)
    if len(drawn) > 1:
        total = _total(case, chosen.series)
        axes.plot(chosen.series.times, total, color="#9a9a9a", linewidth=0.9, label="both paths", zorder=4)
    if case.path is None:
        for label, color, level in _levels(result):
            axes.axhline(level, color=color, linestyle=style.DASHED, linewidth=1.3, label=label, zorder=5)
    for name, cap in case.caps.items():
        look = style.PATHS.get(name) or style.PathStyle(name, style.INK)
        label = f"cap on {look.label}: {format_rate(round(cap))}"
        axes.axhline(cap / 1e6, color=style.INK, linestyle=style.DOTTED, linewidth=1.3, label=label, zorder=5)
    _marks(axes, chosen)
    scales.apply(axes, runs)


def _marks(axes: Any, run: Run) -> None:
    joined, taken = run.values.get(JOINED), run.values.get(TIME_TO_THROTTLE)
    if joined is None or taken is None:
        return
    axes.axvline(joined, color=style.FOURTH, linestyle=style.DOTTED, linewidth=1.2, label="second subflow joined")
    axes.axvline(joined + taken, color=style.FOURTH, linewidth=1.2, label="cap in force")


def receive_memory(axes: Any, result: Measurements, case: Case, name: str, scales: Scales) -> None:
    """Draw the series *name* of *case*, which has bytes at the receiver."""
    runs = [run for run in _runs(result, case) if run.series is not None and name in run.series.extra]
    values = result.values(case.key, name)
    text = f"greatest: {show(max(values), 'B')}" if values else ""
    caption(axes, f"{case.title}: {metric(name).title.partition(',')[0]}", text)
    style.dress(axes, "seconds since the request", "kB")
    chosen = representative(runs)
    if chosen is None or chosen.series is None:
        nothing(axes)
        return
    for run in runs:
        if run.series is not None:
            bold = run is chosen
            octets = [value / 1e3 for value in run.series.extra[name]]
            axes.plot(
                run.series.times, octets, color=style.FOURTH, linewidth=1.4 if bold else 0.8,
                alpha=1 if bold else FAINT, zorder=3 if bold else 2,
            )  # fmt: skip
    scales.apply(axes, runs)
