# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment tunnel, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from mutants import MBIT, VerdictCases, simulated_results

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.tunnel import DOWNLOADS, SCENARIO, VPNS, Cell
from mptcp_bench.experiments.tunnel_parts import CALLS, AfterChange, Call, Cost, Silence
from mptcp_bench.experiments.vpn_cells import WAYS, Point, wrong

LOSSY_SHARE = 0.6
"""Share of a path's rate that remains with loss."""
SILENCE = Silence(relay=0.3, proxy=0.3, back=0.1, lost=0.3)
COST = Cost(150, 50, 4, 600 * MBIT)


def judged(
    ours: Callable[[list[float]], float] = lambda rates: 0.95 * sum(rates),
    silence: Silence = SILENCE,
    change: float = 9.5,
    call: tuple[float, float] = (0.025, 0.0),
    cost: Cost = COST,
    split: float = 0.5,
    runs: int = 3,
) -> Callable[[], Sequence[Aim]]:
    """Return a function that judges runs with these values.

    *ours* returns the rate of a download through the tunnel from the rates of both paths alone; *call*: 99th percentile
    of the delay, and share of lost packets; *split*: the second path's share with fixed shares of 50/50.
    """

    def downloaded(turn: Turn[Cell]) -> Point | None:
        over = zip(turn.cell.over.rates, turn.cell.over.losses, strict=True)
        rates = [rate * MBIT * (0.9 if loss is None else LOSSY_SHARE) for rate, loss in over]
        rate = {"a alone": rates[0], "b alone": rates[1]}.get(turn.variant, ours(rates))
        vpn = VPNS[turn.variant]
        way = WAYS[vpn.way]
        second = split if turn.variant == "weights" else 0.4 if way.share is None else way.share
        point = Point(rate, second, joined=way.joined, fallbacks=0)
        return point if wrong(vpn, point) is None else None

    def called(turn: Turn[Cell]) -> Call:
        p99, loss = dict(zip(CALLS, ((0.011, 0.0), (0.061, 0.01), call), strict=True))[turn.variant]
        return Call(p99, p99, loss)

    measured: dict[str, Callable[[Turn[Cell]], Any]] = {
        **dict.fromkeys(DOWNLOADS, downloaded),
        "silence": lambda turn: silence,
        "change": lambda turn: AfterChange(change, 10.0),
        "call": called,
        "cost": lambda turn: cost,
    }

    def measure(turn: Turn[Cell]) -> Any:
        return measured[turn.cell.part](turn) if turn.number <= runs else None

    return lambda: SCENARIO.aims(simulated_results(SCENARIO, {}, measure))


TUNNEL = VerdictCases(
    judged(),
    {
        "second path unused": judged(ours=lambda rates: rates[0]),
        "50/50 over unequal paths": judged(ours=lambda rates: 2 * min(rates)),
        "a lossy path stalls the other": judged(ours=lambda rates: max(rates) / 2),
        "only BBR gets little over lossy paths": judged(ours=lambda rates: 0.8 * sum(rates)),
        "no byte arrived": judged(ours=lambda rates: 0.0),
        "both ends keep using a silent path": judged(silence=Silence(inf, inf, 0.1, 3.0)),
        "both ends stop using it late": judged(silence=replace(SILENCE, relay=0.6, proxy=0.6)),
        "only the relay stops using it": judged(silence=replace(SILENCE, proxy=inf)),
        "only the proxy stops using it": judged(silence=replace(SILENCE, relay=inf)),
        "it is used again late": judged(silence=replace(SILENCE, back=1.5)),
        "it is never used again": judged(silence=replace(SILENCE, back=inf)),
        "the stream loses a second": judged(silence=replace(SILENCE, lost=1.0)),
        "a change is not followed": judged(change=5.0),
        "a call waits in a queue": judged(call=(0.061, 0.0)),
        "a call loses more than over one path": judged(call=(0.025, 0.02)),
        "fixed shares are not kept": judged(split=0.7),
        "packets are expensive in the kernel": judged(cost=replace(COST, splitter=250, joiner=100)),
        "packets are expensive in the resequencer": judged(cost=replace(COST, resequencer=28.6)),
        "little is carried": judged(cost=replace(COST, carried=300 * MBIT)),
        "a run is missing": judged(runs=2),
        "nothing measured": judged(runs=0),
    },
)
