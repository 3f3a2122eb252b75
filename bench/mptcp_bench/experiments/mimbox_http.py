# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests per second and completion times of short connections, as in Figure 5 of "Multipath in the Middle(Box)".

40 clients request a file, each time on a new connection, which is closed after the answer. The file's size is varied.
The clients use Multipath TCP, to the server behind a router or to the proxy, with one subflow: most of these
connections end before a second subflow could join. The completion time is from connect(2) to the last byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from mptcp_lab.agent import processors
from mptcp_lab.testbed.features import need

from .. import style
from ..statistics import median
from .attempts import Attempts
from .findings import Findings
from .mimbox_bed import LOOKS, NEEDS, Chosen, Declared, Procedure, built, chosen, curves, drawn, findings, rounds
from .mimbox_judging import http_aims, http_claims
from .mimbox_points import FEWEST, PERCENTS, Points
from .relay_cells import DIRECT, OURS, Cell

CLIENTS = 40
DECLARED = Declared(
    "mimbox-http",
    "MiMBox's Figure 5: requests on connections of their own",
    tuple((cell, "each") for cell in (
        Cell(DIRECT, "tcp"), Cell(DIRECT, "mptcp1"), Cell(OURS, "mptcp1"), Cell(OURS, "tcp"), Cell("haproxy", "mptcp1"),
        Cell("squid", "tcp"),
    )),
    values=(1_000, 10_000, 100_000, 1_000_000),
    quick=(1_000, 100_000),
    varied="size",
    meaning="bytes of the file",
    runs=FEWEST,
    seconds=2.0,
    claims=http_claims,
    figure=lambda point: point.rate,
    unit="requests/s",
)  # fmt: skip
OPTIONS = DECLARED.options


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure what *options* choose, without proxies that are not installed."""
    need(*NEEDS)
    what = chosen(DECLARED, options, quick)
    attempts = Attempts(console)
    before = processors.read()
    with built(seed, {str(size): size for size in what.values}, what.seconds) as bed:
        points = Points(rounds(console, what, bed, seed, attempts, lambda at: Procedure(str(at), CLIENTS, close=True)))
    usage = processors.usage(before, processors.read())
    subtitle = f"{CLIENTS} clients, each request on a connection of its own, closed after the answer"
    panels: list[Callable[[Any], None]] = [
        lambda axes: curves(axes, DECLARED, what, points),
        lambda axes: times(axes, what, points),
    ]
    return findings(
        DECLARED, what, points, http_aims(points), attempts, usage,
        lambda target: drawn(target, "Requests a second, and completion times", subtitle, panels),
    )  # fmt: skip


def times(axes: Any, what: Chosen, points: Points) -> None:
    """Draw the distribution of the completion times of the smallest file: each percentile's median over the rounds."""
    size = what.values[0]
    for cell, task in what.tasks:
        there = [p.spread for p in points.all if (p.cell, p.task, p.at) == (cell, task, size)]
        if there:
            times = [median([each[number] for each in there]) * 1e3 for number in range(len(PERCENTS))]
            name = "no proxy" if cell.proxy == DIRECT else cell.proxy
            line = style.DASHED if cell.client == "tcp" else "-"
            axes.plot(times, PERCENTS, color=LOOKS[cell.proxy], linestyle=line, label=f"{name}, {cell.client}")
    axes.set_xscale("log")
    style.dress(axes, f"completion time of {size:,} bytes, ms", "percent")
