# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment tunnel, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from mutants import MBIT, Judge, rehearsed

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.experiments.tunnel import DOWNLOADS, SCENARIO, Cell
from mptcp_bench.experiments.tunnel_cost import Cost
from mptcp_bench.experiments.tunnel_parts import BESIDE, CALLS, OURS, PAYLOAD, AfterChange, Call, Poll, Silence, silence
from mptcp_bench.experiments.vpn_cells import Point

LOSSY = 0.6
"""Share of a path's rate that remains with loss."""
Ours = Callable[[tuple[float, float]], float]
"""Bits/s of a download through the tunnel, as a function of each path's own rate."""
BEGAN, ENDED = 5.0, 8.0


def alone(cell: Cell, machine: float) -> tuple[float, float]:
    """Return the rate of each path of *cell*. *machine*: rate of the machine relative to the links."""
    a, b = (
        machine * rate * MBIT * PAYLOAD * (0.98 if loss is None else LOSSY)
        for rate, loss in zip(cell.over.rates, cell.over.losses, strict=True)
    )
    return a, b


def polls(left: int | None, after: float = 0.3, back: float = 0.1) -> list[Poll]:
    """Return the verdicts of both ends about an outage.

    Both ends consider path *left* dead from *after* seconds after its start until *back* seconds after its end.
    """
    found = []
    for step in range(600):
        time = step * 0.02
        lives = [path != left or not BEGAN + after <= time < ENDED + back for path in range(2)]
        found.append(Poll(time, lives, lives))
    return found


def left(path: int | None = 1, after: float = 0.3, back: float = 0.1, lost: float = 0.3) -> Silence:
    return silence(polls(path, after, back), 1, BEGAN, ENDED, lost)


def measured(
    ours: Ours = lambda each: 0.95 * sum(each),
    machine: float = 1.0,
    silent: Silence | None = None,
    change: float = 9.5,
    call: tuple[float, float] = (0.025, 0.0),
    cost: Cost | None = None,
    runs: int = 3,
) -> Results[Cell, Any]:
    """Return the results of runs with these values. *call*: 99th percentile of the delay, and share of lost packets."""

    def measure(turn: Turn[Cell]) -> Any:
        cell = turn.cell
        if turn.number > runs:
            return None
        if cell.part == "cost":
            return cost or Cost(150, 50, 4, 600 * MBIT)
        if cell.part in DOWNLOADS:
            each = alone(cell, machine)
            rate = {"a alone": each[0], "b alone": each[1]}.get(turn.variant, ours(each))
            found: Any = Point(rate, second=0.5, carried=0.95, joined=0, fallbacks=0)
        elif cell.part == "silence":
            found = silent or left()
        elif cell.part == "change":
            found = AfterChange(change, 10.0)
        else:
            p99 = dict(zip(CALLS, (0.011, 0.061, call[0]), strict=True))[turn.variant]
            lost = {BESIDE: 0.01, OURS: call[1]}.get(turn.variant, 0.0)
            found = Call(p99, p99, lost)
        return dict.fromkeys(cell.controls, found)

    return rehearsed(SCENARIO, {"runs": "3"}, measure)


def judged(**wrong: Any) -> Callable[[], Sequence[Aim]]:
    return lambda: SCENARIO.aims(measured(**wrong))


def downloads(ours: Ours) -> Callable[[], Sequence[Aim]]:
    return judged(ours=ours)


def silent(found: Silence) -> Callable[[], Sequence[Aim]]:
    return judged(silent=found)


TUNNEL = Judge(
    judged(),
    {
        "second path unused": downloads(lambda each: each[0]),
        "it is the only one that is used": downloads(lambda each: each[1]),
        "50/50 over unequal paths": downloads(lambda each: 2 * min(each)),
        "a lossy path stalls the other": downloads(lambda each: max(each) / 2),
        "only BBR gets little over lossy paths": downloads(lambda each: 0.8 * sum(each)),
        "no byte came": downloads(lambda each: 0.0),
        "emulator off": judged(machine=20),
        "a silent path is never left": silent(left(None, lost=3.0)),
        "the wrong path is left": silent(left(0, lost=3.0)),
        "it is left late": silent(left(after=0.6)),
        "by the relay alone": silent(replace(left(), proxy=inf)),
        "by the proxy alone": silent(replace(left(), relay=inf)),
        "it is used again late": silent(left(back=1.5)),
        "it is never used again": silent(left(back=99)),
        "the stream loses a second": silent(left(lost=1.0)),
        "a change is not followed": judged(change=5.0),
        "a call waits in a queue": judged(call=(0.061, 0.0)),
        "a call loses more than over one path": judged(call=(0.025, 0.02)),
        "packets are dear in the kernel": judged(cost=Cost(250, 100, 4, 600 * MBIT)),
        "packets are dear in the resequencer": judged(cost=Cost(150, 50, 28.6, 600 * MBIT)),
        "little is carried": judged(cost=Cost(150, 50, 4, 300 * MBIT)),
        "a run is missing": judged(runs=2),
        "nothing measured": judged(runs=0),
    },
)
