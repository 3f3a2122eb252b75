"""The demo's picture: throughput of each path against time, one band for each download."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .live import Path as NetworkPath
from .recorder import Sample, rates

INK = "#222222"
MUTED = "#6b6b6b"
SMOOTHING = 3
"""Samples in the moving mean: packets come in bursts of the queue's making."""


@dataclass(frozen=True, slots=True)
class Band:
    """One download on the time axis."""

    start: float
    end: float
    title: str
    subtitle: str
    result: str
    """What came of it, in a few words."""


@dataclass(frozen=True, slots=True)
class Level:
    """A rate worth a dashed line within a band."""

    band: int
    rate: float
    text: str
    color: str


def _smooth(values: Sequence[float]) -> list[float]:
    half = SMOOTHING // 2
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def throughput(
    target: Path,
    samples: Sequence[Sample],
    paths: Sequence[NetworkPath],
    *,
    bands: Sequence[Band],
    levels: Sequence[Level],
    title: str,
    subtitle: str,
) -> None:
    """Draw *samples* into the PNG file *target*."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "axes.edgecolor": MUTED})
    figure, axes = plt.subplots(figsize=(13, 6.5), dpi=120)
    figure.subplots_adjust(left=0.06, right=0.985, top=0.735, bottom=0.1)
    series = rates(samples)
    times = [rate.time for rate in series]
    top = max(path.rate for path in paths) / 1e6 * 1.12
    for band in bands:
        axes.axvspan(band.start, band.end, color="#f2f4f7", zorder=0, linewidth=0)
        middle = (band.start + band.end) / 2
        for text, height, style in (
            (band.title, 1.145, {"weight": "bold", "color": INK, "fontsize": 10}),
            (band.subtitle, 1.085, {"color": MUTED, "fontsize": 9}),
            (band.result, 1.02, {"weight": "bold", "color": "#2b7a3f", "fontsize": 9.5}),
        ):
            axes.text(middle, top * height, text, ha="center", va="bottom", **style)
    for path in paths:
        values = _smooth([rate.bits[path.device] / 1e6 for rate in series])
        axes.fill_between(times, values, color=path.color, alpha=0.14, linewidth=0, zorder=2)
        axes.plot(times, values, color=path.color, linewidth=2, label=path.label, zorder=3)
    for level in levels:
        band, rate = bands[level.band], level.rate / 1e6
        dashes = (0, (4, 3))
        axes.hlines(rate, band.start, band.end, colors=level.color, linestyles=dashes, linewidth=1, zorder=4)
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
    axes.set_xlabel("time in seconds", color=MUTED)
    axes.set_ylabel("received by the client, Mbit/s", color=MUTED)
    axes.tick_params(colors=MUTED)
    axes.grid(axis="y", color="#d9dce1", linewidth=0.7, zorder=1)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.06, 0.945, title, fontsize=15, weight="bold", color=INK)
    figure.text(0.06, 0.908, subtitle, fontsize=10, color=MUTED)
    axes.legend(
        loc="upper left", bbox_to_anchor=(bands[1].start, top * 0.99), bbox_transform=axes.transData,
        frameon=False, fontsize=11, borderpad=0,
    )  # fmt: skip
    figure.savefig(target)
    plt.close(figure)
