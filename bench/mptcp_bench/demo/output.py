# SPDX-License-Identifier: GPL-2.0-or-later
"""The demo's output: a table in the terminal, a picture, and a file with numbers and samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from mptcp_lab.testbed.recorder import Sample, rates

from .. import provenance, style
from ..result_file import to_json
from .judging import Download, failure, last_of_each_part, warning
from .parts import ETHERNET, PATHS

PICTURE, NUMBERS = "throughput.png", "demo.json"
TITLE = "Downloads over an Ethernet link of 100 Mbit/s and a Wi-Fi link of 30 Mbit/s"
SUBTITLE = (
    "wget from Apache; Multipath TCP ends at the proxy, which goes on over plain TCP. "
    "Shown are bytes on the wire at the client, mean over 0.3 s."
)

INCHES_PER_SECOND = 0.22
"""Minimum width of the picture."""


def lines(download: Download) -> Iterator[str]:
    """Yield the lines about a finished download, in rich's markup."""
    color = "red" if download.failed else "yellow"
    sign = f"[{color}]✗[/]" if download.failed else f"[{color}]?[/]" if download.missed else "[green]✓[/]"
    yield f"{sign} {download.part.title}: {download.goodput / 1e6:.1f} Mbit/s of payload"
    for complaint in download.complaints:
        yield f"    [{color}]{complaint}[/]"
    if download.busy:
        yield f"    [yellow]the machine was busy: {download.processors}[/]"


def table(downloads: Sequence[Download]) -> Table:
    """Return the demo's results as a table that fits into 80 columns."""
    title = "Mbit/s; each path in the steady state, measured / expected"
    result = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    result.add_column("download", no_wrap=True)
    result.add_column("payload", justify="right")
    for path in PATHS:
        result.add_column(path.label, justify="right", style=path.color, no_wrap=True)
    for heading in ("subflows", "MB"):
        result.add_column(heading, justify="right")
    result.add_column("SHA-256")
    for each in downloads:
        cells = [each.part.name, f"{each.goodput / 1e6:.1f}"]
        for path in PATHS:
            expected, rate = each.expected.get(path.device), each.steady[path.device] / 1e6
            goal = "idle" if expected is None else f"{expected / 1e6:.3g}"
            cells.append(f"{rate:.{2 if rate < 10 else 1}f} / {goal}")
        subflows = str(1 + each.protocol.joins) if each.part.multipath else "TCP"
        compared = "cut off" if each.aborted_after is not None else "equal" if each.digest_ok else "differs"
        cells += [subflows, f"{each.octets / 1e6:.1f}", compared]
        result.add_row(*cells, style="bold red" if each.failed else "yellow" if each.busy else None)
    return result


def draw(target: Path, samples: Sequence[Sample], downloads: Sequence[Download], cap: int) -> None:
    """Draw each path's throughput over time into the PNG file *target*, with a band for each download."""
    first, last = downloads[0], downloads[-1]
    # Parts that were measured twice make the axis longer. The texts above the short parts must not overlap then.
    figure = style.new_figure(max(13.0, INCHES_PER_SECOND * (last.end - first.start)), 6.5)
    axes = figure.subplots()
    figure.subplots_adjust(left=0.06, right=0.985, top=0.735, bottom=0.1)
    series = rates(samples)
    top = max(path.rate for path in PATHS) / 1e6 * 1.12
    for path in PATHS:
        values = style.smooth([rate.bits[path.device] / 1e6 for rate in series])
        style.draw_path(axes, [rate.time for rate in series], values, style.PathStyle(path.label, path.color))
    for each in downloads:
        start, end, part = each.start, each.end, each.part
        middle = (start + end) / 2
        axes.axvspan(start, end, color=style.BAND, zorder=0, linewidth=0)
        color = style.INK if each.complaints else style.GOOD
        for text, height, size, weight, ink in (
            (part.title, 1.145, 10, "bold", style.INK),
            (part.subtitle, 1.085, 9, "normal", style.MUTED),
            (f"{each.goodput / 1e6:.0f} Mbit/s of payload", 1.02, 9.5, "bold", color),
        ):
            axes.text(middle, top * height, text, ha="center", va="bottom", fontsize=size, weight=weight, color=ink)
        if part.capped:
            level = cap / 1e6
            axes.hlines(level, start, end, colors=ETHERNET.color, linestyles=style.DASHED, linewidth=1, zorder=4)
            axes.annotate(
                f"cap on Ethernet: {level:g} Mbit/s", (middle, level),
                xytext=(0, 6), textcoords="offset points", ha="center", color=ETHERNET.color, fontsize=9.5,
                weight="bold", zorder=5,
            )  # fmt: skip
    axes.set_xlim(first.start - 0.4, last.end + 0.4)
    axes.set_ylim(0, top)
    style.dress(axes, "time in seconds", "received by the client, Mbit/s")
    style.heading(figure, TITLE, SUBTITLE, left=0.06)
    legend_at = downloads[:2][-1].start
    axes.legend(
        loc="upper left", bbox_to_anchor=(legend_at, top * 0.99), bbox_transform=axes.transData, frameon=False,
        fontsize=11, borderpad=0,
    )  # fmt: skip
    style.save(figure, target)


def save(directory: Path, samples: Sequence[Sample], downloads: Sequence[Download]) -> None:
    """Write the numbers and the samples into *directory*."""
    final = last_of_each_part(downloads)
    numbers = {
        "provenance": provenance.collect(),
        "failure": failure(final),
        "warning": warning(final),
        "downloads": [_numbers(each) for each in downloads],
        "samples": samples,
    }
    (directory / NUMBERS).write_text(to_json(numbers))


def _numbers(download: Download) -> dict[str, Any]:
    numbers = asdict(download)
    part = numbers.pop("part")
    judged = {"goodput": download.goodput, "busy": download.busy}
    return {"name": part["key"], "title": part["title"], **judged, **numbers}
