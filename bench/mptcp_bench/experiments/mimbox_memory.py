# SPDX-License-Identifier: GPL-2.0-or-later
"""Goodput over socket buffers, and a connection's memory: section 4.4 of "Multipath in the Middle(Box)".

A client with ADSL (8 Mbit/s, 512 kbit/s up, RTT 20 ms) and 3G (2 Mbit/s, 256 kbit/s, 80 ms) downloads from an origin
with 100 Mbit/s. The sender's tcp_rmem and tcp_wmem are limited, which are sysctls of its namespace. The sender is the
proxy or, without one, the origin. Two further measurements are the memory of many idle connections, and of downloads
that the client's paths slow down.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console

from mptcp_lab.agent import processors
from mptcp_lab.emulation.model import Direction, EmulatedPath
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.features import need

from .attempts import Attempts
from .findings import Findings
from .mimbox_bed import NEEDS, Declared, Procedure, built, chosen, curves, drawn, findings, measured, rounds, several
from .mimbox_judging import EACH, ROUTER, buffer_aims, buffer_claims
from .mimbox_points import FEWEST, HeldMemory, Point, Points
from .relay_bed import LARGE, SMALL, Bed
from .relay_cells import BASE, DIRECT, OURS, Cell
from .relay_judging import Measured
from .tables import mean, new_table
from .two_paths import slow_origin

ADSL = EmulatedPath("adsl", Direction(8_000_000, 10_000), Direction(512_000, 10_000))
MOBILE = EmulatedPath("3g", Direction(2_000_000, 40_000), Direction(256_000, 40_000))
ORIGIN_RATE = 100
"""Rate of the origin's link in Mbit/s."""
BUSY = 20
"""Number of downloads at the same time."""
HOLD, QUICK_HOLD = 300, 50
"""Number of idle connections."""
KEPT = {"idle-get": "idle connection", "idle-connect": "idle tunnel"}
DECLARED = Declared(
    "mimbox-memory",
    "MiMBox's Figure 6: goodput against buffers, and memory",
    ((ROUTER, "get"), (Cell(OURS, "mptcp2"), "connect"), (Cell(OURS, "mptcp2"), "get")),
    values=(25_000, 50_000, 100_000, EACH, 400_000, 1_000_000),
    quick=(25_000, EACH, 1_000_000),
    varied="buffer",
    meaning="what each socket may have at the most",
    runs=FEWEST,
    seconds=5.0,
    claims=buffer_claims,
    figure=lambda point: point.goodput / 1e6,
    unit="Mbit/s",
)
OPTIONS = DECLARED.options
FILES = {LARGE: 50_000_000, SMALL: 1_000}


def run(console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
    """Measure what *options* choose, and the memory of busy and idle connections."""
    need(*NEEDS)
    what = chosen(DECLARED, options, quick)
    attempts = Attempts(console)
    before = processors.read()
    with (
        built(seed, FILES, 2.0 if quick else what.seconds, (ADSL, MOBILE)) as bed,
        slow_origin(bed.testbed, ORIGIN_RATE),
    ):

        def limited(at: int, cell: Cell) -> AbstractContextManager[Any]:
            node = bed.testbed["origin" if cell.proxy == DIRECT else "proxy"]
            defaults = {"tcp_rmem": at, "tcp_wmem": min(at, 16_384)}
            return several(node.sysctl(f"net.ipv4.{key}", f"4096 {default} {at}") for key, default in defaults.items())

        found = list(rounds(console, what, bed, seed, attempts, lambda at: Procedure(memory=True, warm=2.0), limited))
        for number in range(what.runs):

            def busy(number: int = number) -> Point:
                cell = Cell(OURS, "mptcp2")
                with limited(EACH, cell), bed.running(cell) as process:
                    procedure = Procedure(streams=BUSY, memory=True, warm=2.0)
                    point = measured(bed, cell, "connect", EACH, number, procedure, process)
                bed.testbed.check_emulation()
                return replace(point, task="busy")

            point = attempts.of(busy, f"round {number + 1}, busy", check=bed.testbed.check_emulation)
            found += [point] if point else []
    idle = _idle(console, seed, what.runs, QUICK_HOLD if quick else HOLD, attempts)
    points = Points(found)
    usage = processors.usage(before, processors.read())
    subtitle = "ADSL of 8 and 3G of 2 Mbit/s; the sender's tcp_rmem and tcp_wmem are limited"
    done = findings(
        DECLARED, what, points, buffer_aims(points, idle), attempts, usage,
        lambda target: drawn(target, "Goodput against what a socket may buffer", subtitle,
                             [lambda axes: curves(axes, DECLARED, what, points, "linear")]),
    )  # fmt: skip
    kept = [
        *idle,
        *(HeldMemory("busy tunnel, mptcp2", p.user / 1e3, p.kernel / 1e3) for p in found if p.task == "busy"),
    ]
    table = new_table("Memory of a connection, kB", ("", "user", "kernel"), ("",))
    for name in dict.fromkeys(each.name for each in kept):
        there = [each for each in kept if each.name == name]
        table.add_row(name, *(mean(values, 1, 0) for values in ([h.user for h in there], [h.kernel for h in there])))
    return replace(done, tables=(*done.tables, table), data=done.data | {"memory": [asdict(each) for each in kept]})


def _idle(console: Console, seed: int, runs: int, hold: int, attempts: Attempts) -> list[HeldMemory]:
    found: list[HeldMemory] = []
    with Testbed(paths((None, None), offloads=False, name="mimbox"), seed=seed) as testbed:
        bed = Bed.built(testbed, BASE, seconds=1.0, hold=hold, files=FILES)
        for number in range(runs):
            for client in ("tcp", "mptcp2"):
                for task, name in KEPT.items():

                    def once(client: str = client, task: str = task, number: int = number) -> Measured:
                        return bed.hold(Cell(OURS, client), task, number)

                    what = f"round {number + 1}, {name}, {client}"
                    there = attempts.of(once, what, check=testbed.check_emulation)
                    if there is not None:
                        console.print(f"{name}, {client}: {there.cost:.0f} kB", style="dim", highlight=False)
                        found.append(HeldMemory(f"{name}, {client}", there.user / 1e3, there.kernel / 1e3))
    return found
