# SPDX-License-Identifier: GPL-2.0-or-later
"""Goodput over the MSS, as in Figure 4 of "Multipath in the Middle(Box)": our proxy, a router, other proxies.

One download runs at a time, by Multipath TCP over both paths, on links whose MTU is varied from 296 to 9000 bytes. It
goes through a router to a server that accepts Multipath TCP, which is the paper's baseline; and through each proxy to a
server of plain TCP.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from rich.console import Console

from mptcp_lab.agent import processors
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.mtu import mtu

from .attempts import Attempts
from .findings import Findings
from .mimbox_bed import DEVICES, NEEDS, Declared, Procedure, built, chosen, curves, drawn, findings, rounds, several
from .mimbox_judging import ROUTER, goodput_aims, goodput_claims
from .mimbox_points import FEWEST, Points
from .relay_bed import LARGE
from .relay_cells import DIRECT, LIMIT, OURS, Cell

DECLARED = Declared(
    "mimbox-goodput",
    "MiMBox's Figure 4: goodput against the MSS",
    (
        (Cell(DIRECT, "tcp"), "get"),
        (ROUTER, "get"),
        (Cell(OURS, "mptcp2"), "connect"),
        (Cell(OURS, "mptcp2"), "get"),
        (Cell(LIMIT, "mptcp2"), "get"),
        (Cell("haproxy", "mptcp2"), "get"),
    ),
    values=(296, 576, 1000, 1500, 4000, 9000),
    quick=(576, 9000),
    varied="mtu",
    meaning="MTUs of all links",
    runs=FEWEST,
    seconds=1.5,
    claims=goodput_claims,
    figure=lambda point: point.goodput / 1e6,
    unit="Mbit/s",
)
OPTIONS = DECLARED.options
FILES = {LARGE: 50_000_000}


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure what *options* choose, without proxies that are not installed."""
    need(*NEEDS)
    what = chosen(DECLARED, options, quick)
    attempts = Attempts(console)
    before = processors.read()
    with built(seed, FILES, what.seconds) as bed:

        def around(at: int, cell: Cell) -> AbstractContextManager[None]:
            return several(mtu(bed.testbed[node], device, at) for node, device in DEVICES)

        points = Points(rounds(console, what, bed, seed, attempts, lambda at: Procedure(), around))
    usage = processors.usage(before, processors.read())
    title, subtitle = "Goodput against the MTU", "one download; Multipath TCP over two paths unless it says tcp"
    return findings(
        DECLARED, what, points, goodput_aims(points), attempts, usage,
        lambda target: drawn(target, title, subtitle, [lambda axes: curves(axes, DECLARED, what, points)]),
    )  # fmt: skip
