# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results of the experiments vpn-…, in which all of the paper's claims hold, and their mutants.

A claim is not an aim: a claim that fails is also a result. A mutant must miss an aim or break a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mutants import Judge

from mptcp_bench.experiments import vpn_trace
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.vpn_cells import GOOD_LOSS, WAYS, Cell, Claim, Condition, Point, Points, loss_of
from mptcp_bench.experiments.vpn_figures import (
    FIG3,
    FIG4,
    FIG5,
    FIG6,
    FIG7,
    FIG9,
    FIG10,
    FIG11,
    Chosen,
    Figure,
)
from mptcp_bench.experiments.vpn_judging import claims_of, ours, sound, trace_claims
from mptcp_bench.experiments.vpn_losses import Lost, loss_aims, loss_claims

Rate = Callable[[Cell, Condition], float]
"""Rate in Mbit/s by cell and condition."""
Change = Callable[[Point], Mapping[str, Any]]
SHARES = {
    "tcp": 0.0,
    "ports": 0.0,
    "udp": 0.0,
    "50/50": 0.5,
    "75/25": 0.25,
    "90/10": 0.1,
    "mptcp": 0.4,
    "tunnel": 0.45,
    "weights 75/25": 0.25,
    "weights 90/10": 0.1,
}


def point(cell: Cell, at: Condition, number: int, rate: float) -> Point:
    """Return a sound point with this *rate*."""
    return Point(
        cell, at, number, goodput=rate * 1e6, second=SHARES[cell.way], carried=0.95, joined=WAYS[cell.way].joined,
        fallbacks=0, round_trip=1.02e-3 * at.first,
    )  # fmt: skip


def points(what: Chosen, rate: Rate) -> Iterator[Point]:
    for number in range(what.runs):
        for cell, at in what.planned:
            yield point(cell, at, number, rate(cell, at))


def unchanged(_: Point) -> Mapping[str, Any]:
    return {}


def everything(_: Point) -> bool:
    return True


def multipath(p: Point) -> bool:
    return bool(WAYS[p.cell.way].joined)


COMMON: dict[str, Change] = {
    "emulator off": lambda p: {"carried": 5.0, "round_trip": 1e-4},
    "second path unused": lambda p: {"second": 0.0, "joined": 0},
}
FALLBACK: dict[str, Change] = {
    "fallback to TCP": lambda p: {"joined": 0, "fallbacks": 1} if multipath(p) else {},
}
ALONE: dict[str, Change] = {
    "what should use one path uses both": lambda p: {} if WAYS[p.cell.way].both else {"second": 0.5},
    "TCP is Multipath TCP": lambda p: {} if multipath(p) else {"joined": 1},
}
FIXED: dict[str, Change] = {
    "the split is another one": lambda p: {"second": 0.9} if WAYS[p.cell.way].share is not None else {},
}
TCP_IS_MULTIPATH: dict[str, Change] = {"TCP is Multipath TCP": ALONE["TCP is Multipath TCP"]}


@dataclass(frozen=True)
class Judged:
    """A judge, and a function that returns the claims of the sound result."""

    judge: Judge
    claims: Callable[[], Sequence[Claim]]


def judge_of(figure: Figure, rate: Rate, changes: dict[str, Change], worlds: Mapping[str, Rate]) -> Judged:
    """Return the judge of *figure*, with mutants that change measurements, and *worlds* in which claims fail."""
    what = figure.chosen({}, False)

    def found(change: Change = unchanged, keep: Callable[[Point], bool] = everything, rate: Rate = rate) -> Points:
        return Points(replace(p, **change(p)) for p in points(what, rate) if keep(p))

    def aims(there: Points) -> list[Aim]:
        return [*sound(there, what.planned, what.runs), *ours(there)]

    def mutant(*changed: Any, **named: Any) -> Callable[[], Sequence[Aim]]:
        def judge() -> Sequence[Aim]:
            there = found(*changed, **named)
            return [*aims(there), *(claim.aim for claim in claims_of(figure.name, there))]

        return judge

    mutants = {name: mutant(change) for name, change in (COMMON | changes).items()}
    mutants |= {name: mutant(rate=other) for name, other in worlds.items()}
    mutants["nothing measured"] = mutant(keep=lambda p: False)
    mutants["a round of one way is missing"] = mutant(keep=lambda p: (p.cell.way, p.round) != ("tunnel", 1))
    # Each rate is inverted, so that larger ones become smaller.
    mutants["all is the other way round"] = mutant(rate=lambda cell, at: 100 / rate(cell, at))
    return Judged(Judge(lambda: aims(found()), mutants), lambda: claims_of(figure.name, found()))


def figure3(cell: Cell, at: Condition) -> float:
    return {"tcp": 7.0, "ports": 7.5, "mptcp": 12.0, "tunnel": 15.0}[cell.way] * (1.3 if cell.outer == "cubic" else 1)


def figure4(cell: Cell, at: Condition, growth: float = -1 / 25) -> float:
    """*growth*: change of the gain by both paths for each ms of RTT."""
    tcp = 8 - at.first / 20
    rates = {"tcp": tcp, "ports": 1.1 * tcp, "mptcp": tcp + 6 + growth * at.first, "tunnel": 9.0}
    return rates[cell.way] * (1.1 if at.loss.startswith("ge") else 1)


def figure5(cell: Cell, at: Condition) -> float:
    return 12.0 if at.first == at.second else 9.0


def figure6(cell: Cell, at: Condition) -> float:
    return {"tcp": 7.0, "udp": 8.0, "tunnel": 14.0}[cell.way]


def figure7(cell: Cell, at: Condition) -> float:
    return {"udp": 9.0, "mptcp": 15 - at.first / 20, "50/50": 16.0, "tunnel": 17.0}[cell.way]


def figure9(cell: Cell, at: Condition) -> float:
    advantage = 1.2 if at.loss == "0" else 1.1
    return {"udp": 5.0, "mptcp": 9.0, "50/50": 9.0 * advantage, "tunnel": 12.0}[cell.way]


def figure10(cell: Cell, at: Condition) -> float:
    disadvantage = at.second / 250 + (0.1 if at.loss == "ge1" else 0)
    return {"mptcp": 10.0, "50/50": 10 * (1 - disadvantage), "tunnel": 12.0}[cell.way]


def figure11(cell: Cell, at: Condition) -> float:
    return {
        "mptcp": 10.0,
        "50/50": 9.0,
        "75/25": 10.5,
        "90/10": 11.0,
        "weights 75/25": 11.0,
        "weights 90/10": 11.0,
        "tunnel": 14.0,
    }[cell.way]


VPN_FIGURES = {
    "vpn-fig3": judge_of(FIG3, figure3, ALONE | FALLBACK, {}),
    "vpn-fig4": judge_of(
        FIG4, figure4, ALONE | FALLBACK, {"the gain grows": lambda cell, at: figure4(cell, at, 1 / 25)}
    ),
    "vpn-fig5": judge_of(
        FIG5,
        figure5,
        TCP_IS_MULTIPATH | FALLBACK,
        {"worse with the asymmetry": lambda cell, at: figure5(cell, at) - at.second / 50},
    ),
    "vpn-fig6": judge_of(FIG6, figure6, ALONE, {}),
    "vpn-fig7": judge_of(FIG7, figure7, ALONE | FIXED | FALLBACK, {}),
    "vpn-fig9": judge_of(FIG9, figure9, ALONE | FIXED | FALLBACK, {}),
    "vpn-fig10": judge_of(FIG10, figure10, TCP_IS_MULTIPATH | FIXED | FALLBACK, {}),
    "vpn-fig11": judge_of(FIG11, figure11, TCP_IS_MULTIPATH | FIXED | FALLBACK, {}),
}
FASTER = {"mptcp": 150_000, "50/50": 250_000, "tunnel": 260_000}
RUNS = 3


Traced = Callable[[], tuple[Sequence[Aim], Sequence[Claim]]]


def _traced(acknowledged: Mapping[str, int], change: Change = unchanged, rounds: int = RUNS) -> Traced:
    def judge() -> tuple[Sequence[Aim], Sequence[Claim]]:
        at, there = vpn_trace.AT, range(rounds)
        found = [point(cell, at, number, 15.0) for number in there for cell in vpn_trace.CELLS]
        octets = {(cell, number): acknowledged[cell.way] for number in there for cell in vpn_trace.CELLS}
        planned = [(cell, at) for cell in vpn_trace.CELLS]
        points = Points(replace(p, **change(p)) for p in found)
        return sound(points, planned, RUNS), trace_claims(points, octets)

    return judge


def _lost(factor: float = 1.0, short: float = 0.97, rounds: int = RUNS) -> Traced:
    def judge() -> tuple[Sequence[Aim], Sequence[Claim]]:
        found = []
        for loss in GOOD_LOSS:
            model = loss_of(loss)
            assert model is not None
            one_way = factor * model.mean
            found += [Lost(loss, number, one_way, 1 - (1 - one_way) ** 2, short) for number in range(rounds)]
        return loss_aims(found, RUNS), loss_claims(found)

    return judge


def _judged(sound: Traced, mutants: Mapping[str, Traced]) -> Judged:
    def mutant(judged: Traced) -> Callable[[], Sequence[Aim]]:
        def judge() -> Sequence[Aim]:
            aims, claims = judged()
            return [*aims, *(claim.aim for claim in claims)]

        return judge

    return Judged(Judge(lambda: sound()[0], {name: mutant(each) for name, each in mutants.items()}), lambda: sound()[1])


VPN = VPN_FIGURES | {
    "vpn-fig8": _judged(
        _traced(FASTER),
        {name: _traced(FASTER, change) for name, change in (COMMON | TCP_IS_MULTIPATH | FIXED | FALLBACK).items()}
        | {
            "nothing measured": _traced(FASTER, rounds=0),
            "a round is missing": _traced(FASTER, rounds=RUNS - 1),
            "Multipath TCP begins as fast": _traced(FASTER | {"mptcp": 250_000}),
        },
    ),
    "vpn-table1": _judged(
        _lost(),
        {
            "nothing measured": _lost(rounds=0),
            "a round is missing": _lost(rounds=RUNS - 1),
            "emulator off": _lost(0.0),
            "twice as much is lost": _lost(2.0),
            "bursts are long": _lost(short=0.5),
        },
    ),
}
"""Judges by the name of the experiment."""
