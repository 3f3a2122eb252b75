# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results of the experiments vpn-…, in which all of the paper's claims hold, and their mutants.

A claim is not an aim: a claim that fails is also a result. A mutant must miss an aim or break a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mutants import Judge, rehearsed

from mptcp_bench.experiments import vpn_figures, vpn_losses, vpn_trace
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.claims import Claim
from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.experiments.scenario import Scenario
from mptcp_bench.experiments.vpn_cells import GOOD_LOSS, VPNS, WAYS, Condition, Point, Vpn, loss_of
from mptcp_bench.experiments.vpn_judging import TRACE, claims_of, unlike

Rate = Callable[[Vpn, Condition], float]
"""Rate in Mbit/s by VPN and condition."""
Change = Callable[[Vpn], Mapping[str, Any]]
SHARES = {
    "tcp": 0.0, "ports": 0.0, "udp": 0.0, "50/50": 0.5, "75/25": 0.25, "90/10": 0.1, "mptcp": 0.4, "tunnel": 0.45,
    "weights 75/25": 0.25, "weights 90/10": 0.1,
}  # fmt: skip


def point(vpn: Vpn, rate: float) -> Point:
    """Return a sound measurement with this *rate* in Mbit/s."""
    return Point(
        goodput=rate * 1e6, second=SHARES[vpn.way], carried=0.95, joined=WAYS[vpn.way].joined, fallbacks=0
    )  # fmt: skip


def unchanged(_: Vpn) -> Mapping[str, Any]:
    return {}


def multipath(vpn: Vpn) -> bool:
    return bool(WAYS[vpn.way].joined)


MUTANTS: dict[str, Change] = {
    "emulator off": lambda vpn: {"carried": 5.0},
    "second path unused": lambda vpn: {"second": 0.0},
    "fallback to TCP": lambda vpn: {"joined": 0, "fallbacks": 1} if multipath(vpn) else {},
    "what should use one path uses both": lambda vpn: {} if WAYS[vpn.way].both else {"second": 0.5},
    "the split is another one": lambda vpn: {"second": 0.9} if WAYS[vpn.way].share is not None else {},
    "TCP is Multipath TCP": lambda vpn: {} if multipath(vpn) else {"joined": 1},
}


@dataclass(frozen=True)
class Judged:
    """A judge, and a function that returns the claims of the sound result."""

    judge: Judge
    claims: Callable[[], Sequence[Claim]]


def judged(
    scenario: Scenario[Any, Any, Any, Any],
    claims: Callable[[Results[Any, Any]], Sequence[Claim]],
    sound: Callable[[], Results[Any, Any]],
    mutants: Mapping[str, Callable[[], Results[Any, Any]]],
) -> Judged:
    """Return the judge of *scenario*, whose mutants are also judged by the paper's claims."""

    def mutant(results: Callable[[], Results[Any, Any]]) -> Callable[[], Sequence[Aim]]:
        return lambda: [*scenario.aims(found := results()), *(claim.aim for claim in claims(found))]

    return Judged(
        Judge(lambda: scenario.aims(sound()), {name: mutant(results) for name, results in mutants.items()}),
        lambda: claims(sound()),
    )


def changed(scenario: Scenario[Any, Any, Any, Any]) -> dict[str, Change]:
    """Return the changes that affect a VPN of *scenario*."""
    chosen = scenario.chosen({})
    there = {VPNS[name] for cell in scenario.cells(chosen) for name in scenario.variants(chosen, cell)}
    return {name: change for name, change in MUTANTS.items() if any(map(change, there))}


def of_figure(number: int, rate: Rate, worlds: Mapping[str, Rate] | None = None) -> Judged:
    """Return the judge of a figure. *worlds*: for each mutant's name, rates with which a claim fails."""
    scenario: Scenario[Any, Condition, Any, Point] = getattr(vpn_figures, f"FIG{number}")

    def results(
        change: Change = unchanged, rate: Rate = rate, keep: Callable[[Vpn, int], bool] = lambda vpn, number: True
    ) -> Callable[[], Results[Condition, Point]]:
        def measure(turn: Turn[Condition]) -> dict[str, Point] | None:
            vpn = VPNS[turn.variant]
            found = replace(point(vpn, rate(vpn, turn.cell)), **change(vpn))
            is_void = unlike(vpn, found) is not None or not keep(vpn, turn.number)
            return None if is_void else dict.fromkeys(turn.cell.inner, found)

        return lambda: rehearsed(scenario, {}, measure)

    mutants = {name: results(change) for name, change in changed(scenario).items()}
    mutants |= {name: results(rate=other) for name, other in (worlds or {}).items()}
    mutants["nothing measured"] = results(keep=lambda vpn, number: False)
    mutants["a round of one way is missing"] = results(keep=lambda vpn, number: (vpn.way, number) != ("tunnel", 2))
    # Each rate is inverted, so that larger ones become smaller.
    mutants["all is the other way round"] = results(rate=lambda vpn, at: 100 / rate(vpn, at))
    return judged(scenario, lambda found: claims_of(f"vpn-fig{number}", found), results(), mutants)


def figure3(vpn: Vpn, at: Condition) -> float:
    return {"tcp": 7.0, "ports": 7.5, "mptcp": 12.0, "tunnel": 15.0}[vpn.way] * (1.3 if vpn.outer == "cubic" else 1)


def figure4(vpn: Vpn, at: Condition, growth: float = -1 / 25) -> float:
    """Return the rate. *growth*: change of the gain from using both paths, in Mbit/s per ms of RTT."""
    tcp = 8 - at.first / 20
    rates = {"tcp": tcp, "ports": 1.1 * tcp, "mptcp": tcp + 6 + growth * at.first, "tunnel": 9.0}
    return rates[vpn.way] * (1.1 if at.loss.startswith("ge") else 1)


def figure5(vpn: Vpn, at: Condition) -> float:
    return 12.0 if at.first == at.second else 9.0


def figure6(vpn: Vpn, at: Condition) -> float:
    return {"tcp": 7.0, "udp": 8.0, "tunnel": 14.0}[vpn.way]


def figure7(vpn: Vpn, at: Condition) -> float:
    return {"udp": 9.0, "mptcp": 15 - at.first / 20, "50/50": 16.0, "tunnel": 17.0}[vpn.way]


def figure9(vpn: Vpn, at: Condition) -> float:
    advantage = 1.2 if at.loss == "0" else 1.1
    return {"udp": 5.0, "mptcp": 9.0, "50/50": 9.0 * advantage, "tunnel": 12.0}[vpn.way]


def figure10(vpn: Vpn, at: Condition) -> float:
    disadvantage = at.second / 250 + (0.1 if at.loss == "ge1" else 0)
    return {"mptcp": 10.0, "50/50": 10 * (1 - disadvantage), "tunnel": 12.0}[vpn.way]


def figure11(vpn: Vpn, at: Condition) -> float:
    rates = {"mptcp": 10.0, "50/50": 9.0, "75/25": 10.5, "tunnel": 14.0}
    return rates.get(vpn.way, 11.0)


FASTER = {"mptcp": 150_000, "50/50": 250_000, "tunnel": 260_000}
RUNS = 3


def traced(
    acknowledged: Mapping[str, int] = FASTER, change: Change = unchanged, rounds: int = RUNS
) -> Callable[[], Results[Condition, vpn_trace.Begin]]:
    def measure(turn: Turn[Condition]) -> dict[str, vpn_trace.Begin] | None:
        vpn = VPNS[turn.variant]
        values = asdict(point(vpn, 15.0)) | dict(change(vpn))
        found = vpn_trace.Begin(**values, sent=300_000, acknowledged=acknowledged[vpn.way])
        return {"cubic": found} if turn.number <= rounds and unlike(vpn, found) is None else None

    return lambda: rehearsed(vpn_trace.SCENARIO, {"runs": str(RUNS)}, measure)


def lost(factor: float = 1.0, short: float = 0.97, rounds: int = RUNS) -> Callable[[], Results[str, vpn_losses.Lost]]:
    """Return losses: *factor* times the configured ones, of whose bursts the share *short* is short."""

    def measure(turn: Turn[str]) -> dict[str, vpn_losses.Lost] | None:
        found = {}
        for loss in GOOD_LOSS:
            model = loss_of(loss)
            assert model is not None
            one_way = factor * model.mean
            found[loss] = vpn_losses.Lost(one_way, 1 - (1 - one_way) ** 2, short)
        return found if turn.number <= rounds else None

    return lambda: rehearsed(vpn_losses.SCENARIO, {"runs": str(RUNS)}, measure)


VPN = {
    "vpn-fig3": of_figure(3, figure3),
    "vpn-fig4": of_figure(4, figure4, {"the gain grows": lambda vpn, at: figure4(vpn, at, 1 / 25)}),
    "vpn-fig5": of_figure(5, figure5, {"worse with the asymmetry": lambda vpn, at: figure5(vpn, at) - at.second / 50}),
    "vpn-fig6": of_figure(6, figure6),
    "vpn-fig7": of_figure(7, figure7),
    "vpn-fig8": judged(
        vpn_trace.SCENARIO,
        lambda results: list(TRACE.claims(results)),
        traced(),
        {name: traced(change=change) for name, change in changed(vpn_trace.SCENARIO).items()}
        | {
            "nothing measured": traced(rounds=0),
            "a round is missing": traced(rounds=RUNS - 1),
            "Multipath TCP begins as fast": traced(FASTER | {"mptcp": 250_000}),
        },
    ),
    "vpn-fig9": of_figure(9, figure9),
    "vpn-fig10": of_figure(10, figure10),
    "vpn-fig11": of_figure(11, figure11),
    "vpn-table1": judged(
        vpn_losses.SCENARIO,
        vpn_losses.claims,
        lost(),
        {
            "nothing measured": lost(rounds=0),
            "a round is missing": lost(rounds=RUNS - 1),
            "emulator off": lost(0.0),
            "twice as much is lost": lost(2.0),
            "bursts are long": lost(short=0.5),
        },
    ),
}
"""The judge of each experiment, by the experiment's name."""
