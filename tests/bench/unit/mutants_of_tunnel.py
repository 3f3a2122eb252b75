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
from mptcp_bench.experiments.tunnel_parts import (
    CALLS,
    ONE_PATH_BUSY,
    OURS_BUSY,
    AfterChange,
    Call,
    Poll,
    Silence,
    silence,
)
from mptcp_bench.experiments.vpn_cells import Point

LOSSY_SHARE = 0.6
"""Share of a path's rate that remains with loss."""
START, END = 5.0, 8.0


def polls(leave: float = 0.3, back: float = 0.1) -> list[Poll]:
    """Return the polls of both ends, which consider a path dead from *leave* seconds after ``START`` until *back*
    seconds after ``END``."""
    times = [step * 0.02 for step in range(600)]
    return [Poll(time, *[not START + leave <= time < END + back] * 2) for time in times]


def silent(leave: float = 0.3, back: float = 0.1, lost: float = 0.3) -> Silence:
    return silence(polls(leave, back), START, END, lost)


def measured(
    ours: Callable[[list[float]], float] = lambda rates: 0.95 * sum(rates),
    silence: Silence | None = None,
    change: float = 9.5,
    call: tuple[float, float] = (0.025, 0.0),
    cost: tuple[float, float] = (4.0, 600.0),
    runs: int = 3,
) -> Results[Cell, Any]:
    """Return the results of runs with these values. *ours* returns the rate of a download through the tunnel from the
    rates of both paths alone; *call*: 99th percentile of the delay, and share of lost packets."""

    def measure(turn: Turn[Cell]) -> Any:
        cell = turn.cell
        if turn.number > runs:
            return None
        if cell.part == "cost":
            return Cost(cost[0], cost[1] * MBIT)
        if cell.part == "silence":
            return silence or silent()
        if cell.part == "change":
            return AfterChange(change, 10.0)
        if cell.part == "call":
            p99 = dict(zip(CALLS, (0.011, 0.061, call[0]), strict=True))[turn.variant]
            return Call(p99, p99, {ONE_PATH_BUSY: 0.01, OURS_BUSY: call[1]}.get(turn.variant, 0.0))
        assert cell.part in DOWNLOADS
        over = zip(cell.over.rates, cell.over.losses, strict=True)
        rates = [rate * MBIT * (0.9 if loss is None else LOSSY_SHARE) for rate, loss in over]
        rate = {"a alone": rates[0], "b alone": rates[1]}.get(turn.variant, ours(rates))
        return Point(rate, second=0.5, load=0.95, joined=0, fallbacks=0)

    return rehearsed(SCENARIO, {"runs": "3"}, measure)


def judged(**wrong: Any) -> Callable[[], Sequence[Aim]]:
    return lambda: SCENARIO.aims(measured(**wrong))


TUNNEL = Judge(
    judged(),
    {
        "second path unused": judged(ours=lambda rates: rates[0]),
        "50/50 over unequal paths": judged(ours=lambda rates: 2 * min(rates)),
        "a lossy path stalls the other": judged(ours=lambda rates: max(rates) / 2),
        "only BBR gets little over lossy paths": judged(ours=lambda rates: 0.8 * sum(rates)),
        "no byte came": judged(ours=lambda rates: 0.0),
        "a silent path is never left": judged(silence=silent(leave=99, lost=3.0)),
        "it is left late": judged(silence=silent(leave=0.6)),
        "only the relay leaves it": judged(silence=replace(silent(), proxy=inf)),
        "only the proxy leaves it": judged(silence=replace(silent(), relay=inf)),
        "it is used again late": judged(silence=silent(back=1.5)),
        "it is never used again": judged(silence=silent(back=99)),
        "the stream loses a second": judged(silence=silent(lost=1.0)),
        "a change is not followed": judged(change=5.0),
        "a call waits in a queue": judged(call=(0.061, 0.0)),
        "a call loses more than over one path": judged(call=(0.025, 0.02)),
        "packets are dear in the resequencer": judged(cost=(28.6, 600.0)),
        "little is carried": judged(cost=(4.0, 300.0)),
        "a run is missing": judged(runs=2),
        "nothing measured": judged(runs=0),
    },
)
