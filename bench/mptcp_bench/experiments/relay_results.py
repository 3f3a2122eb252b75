# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of the experiment ``relay``: costs, latencies and memory, for each setting. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import product

from rich.table import Table

from .relay_cells import BULK, CLIENTS, HELD, PROXIES, Cell, Setting
from .relay_judging import Measured, Rounds, spread
from .tables import new_table

COSTS = (
    "proxy",
    "client",
    "GET s/GB",
    "CONNECT s/GB",
    "µs/request",
    "GET / direct",
    "CONNECT / direct",
    "requests / direct",
)
LATENCIES = ("proxy", "client", "requests/s", "p50 µs", "p90 µs", "p99 µs")
MEMORY = (
    "proxy",
    "client",
    *(f"{what} {whose}" for what in ("idle", "tunnel", "busy") for whose in ("user", "kernel")),
)
LEFT = ("proxy", "client")


def tables(rounds: Rounds, seed: int) -> list[Table]:
    """Return the tables of each setting that was measured."""
    found = []
    for setting in dict.fromkeys(m.setting for m in rounds.all):
        there = {m.cell for m in rounds.all if m.setting == setting}
        cells = [cell for cell in (Cell(*each) for each in product(PROXIES, CLIENTS)) if cell in there]
        tasks = {m.task for m in rounds.all if m.setting == setting}
        parts: tuple[tuple[str, set[str], Sequence[str], Callable[..., list[str]]], ...] = (
            ("Cost", {*BULK, "requests"}, COSTS, _costs),
            ("Latency at half load", {"latency"}, LATENCIES, _latencies),
            ("Memory of a connection in kB", set(HELD), MEMORY, _memory),
        )
        for title, wanted, columns, row in parts:
            if tasks & wanted:
                table = new_table(f"{title}: {setting}", columns, LEFT)
                for cell in cells:
                    if any(rounds.of(setting, cell, task) for task in wanted):
                        # Draw the same numbers for the same row, whichever other rows exist.
                        draw = random.Random(f"{seed} {setting} {cell}")
                        table.add_row(cell.proxy, cell.client, *row(rounds, setting, cell, draw))
                found.append(table)
    return found


def _costs(rounds: Rounds, setting: Setting, cell: Cell, draw: random.Random) -> list[str]:
    # Leave out costs of 0: without a proxy, no processor time is counted.
    costs = {task: [c for c in rounds.costs(setting, cell, task).values() if c] for task in (*BULK, "requests")}
    return [
        *(spread(costs[task], 2 if task in BULK else 0, draw) for task in (*BULK, "requests")),
        *(spread(rounds.of_direct(setting, cell, task), 2, draw) for task in (*BULK, "requests")),
    ]


def _latencies(rounds: Rounds, setting: Setting, cell: Cell, draw: random.Random) -> list[str]:
    there = list(rounds.of(setting, cell, "latency").values())
    return [
        spread([m.offered for m in there], 0, draw),
        *(spread([m.late[number] * 1e6 for m in there], 0, draw) for number in range(3)),
    ]


def _memory(rounds: Rounds, setting: Setting, cell: Cell, draw: random.Random) -> list[str]:
    def of(task: str, figure: Callable[[Measured], float]) -> str:
        return spread([figure(m) / 1e3 for m in rounds.of(setting, cell, task).values()], 0, draw)

    return [text for task in HELD for text in (of(task, lambda m: m.user), of(task, lambda m: m.kernel))]
