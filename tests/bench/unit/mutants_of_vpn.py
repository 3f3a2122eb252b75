# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results of the experiments vpn-…, in which all of the paper's claims hold, and their mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mutants import VerdictCases, simulated_results

from mptcp_bench.experiments import EXPERIMENTS, vpn_figures
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.scenario import Scenario
from mptcp_bench.experiments.vpn_cells import GOOD_LOSS, VPNS, WAYS, Condition, Vpn, loss_of, wrong
from mptcp_bench.experiments.vpn_figures import Start

Rate = Callable[[Vpn, Condition], float]
"""Rate in Mbit/s by VPN and condition."""
Change = Callable[[Vpn], Mapping[str, Any]]
MUTANTS: dict[str, Change] = {
    "second path unused": lambda vpn: {"second": 0.0},
    "fallback to TCP": lambda vpn: {"joined": 0, "fallbacks": 1} if WAYS[vpn.way].joined else {},
    "a VPN over one path uses both": lambda vpn: {} if WAYS[vpn.way].uses_both_paths else {"second": 0.5},
    "the fixed shares are not kept": lambda vpn: {"second": 0.9} if WAYS[vpn.way].share is not None else {},
    "TCP is Multipath TCP": lambda vpn: {} if WAYS[vpn.way].joined else {"joined": 1},
}


def point(vpn: Vpn, rate: float) -> Start:
    """Return a sound measurement with this *rate* in Mbit/s."""
    way = WAYS[vpn.way]
    share = 0.4 if way.share is None else way.share
    return Start(rate * 1e6, share, joined=way.joined, fallbacks=0, acknowledged=round(rate * 1e5))


def of_figure(number: int) -> VerdictCases:
    scenario: Scenario[Any, Condition, Any, Any] = EXPERIMENTS[f"vpn-fig{number}"].load()
    vpns = {VPNS[turn.variant] for turn in scenario.plan(scenario.chosen({}))}

    def judged(
        change: Change = lambda vpn: {},
        rate: Rate = RATES[number],
        keep: Callable[[Vpn, int], bool] = lambda vpn, number: True,
    ) -> Sequence[Aim]:
        def measure(turn: Turn[Condition]) -> dict[str, Start] | None:
            vpn = VPNS[turn.variant]
            measured = replace(point(vpn, rate(vpn, turn.cell)), **change(vpn))
            is_void = wrong(vpn, measured) is not None or not keep(vpn, turn.number)
            return None if is_void else dict.fromkeys(turn.cell.inner, measured)

        return scenario.aims(simulated_results(scenario, {}, measure))

    mutants = {name: partial(judged, change) for name, change in MUTANTS.items() if any(map(change, vpns))}
    mutants |= {name: partial(judged, rate=other) for name, other in WORLDS.get(number, {}).items()}
    mutants["nothing measured"] = partial(judged, keep=lambda vpn, number: False)
    mutants["a round of one way is missing"] = partial(
        judged, keep=lambda vpn, number: (vpn.way, number) != ("tunnel", 2)
    )
    mutants["each rate is inverted"] = partial(judged, rate=lambda vpn, at: 100 / RATES[number](vpn, at))
    return VerdictCases(judged, mutants)


def rate_of(vpn: Vpn, **by_way: float) -> float:
    """Return the rate of the VPN's way; *half* is the way 50/50."""
    return by_way[{"50/50": "half"}.get(vpn.way, vpn.way)]


def figure4(vpn: Vpn, at: Condition, growth: float = -1 / 25) -> float:
    """Return the rate. *growth*: change of the gain from using both paths, in Mbit/s per ms of RTT."""
    tcp = 8 - at.first / 20
    rate = rate_of(vpn, tcp=tcp, ports=1.1 * tcp, mptcp=tcp + 6 + growth * at.first, tunnel=9)
    return rate * (1.1 if at.loss.startswith("ge") else 1)


def figure10(vpn: Vpn, at: Condition) -> float:
    disadvantage = at.second / 250 + (0.1 if at.loss == "ge1" else 0)
    return rate_of(vpn, mptcp=10, half=10 * (1 - disadvantage), tunnel=12)


RATES: dict[int, Rate] = {
    3: lambda vpn, at: rate_of(vpn, tcp=7, ports=7.5, mptcp=12, tunnel=15) * (1.3 if vpn.outer == "cubic" else 1),
    4: figure4,
    5: lambda vpn, at: 12.0 if at.first == at.second else 9.0,
    6: lambda vpn, at: rate_of(vpn, tcp=7, udp=8, tunnel=14),
    7: lambda vpn, at: rate_of(vpn, udp=9, mptcp=15 - at.first / 20, half=16, tunnel=17),
    8: lambda vpn, at: rate_of(vpn, mptcp=1.5, half=2.5, tunnel=2.6),
    9: lambda vpn, at: rate_of(vpn, udp=5, mptcp=9, half=9 * (1.2 if at.loss == "0" else 1.1), tunnel=12),
    10: figure10,
    11: lambda vpn, at: {"mptcp": 10.0, "50/50": 9.0, "75/25": 10.5, "tunnel": 14.0}.get(vpn.way, 11.0),
}
"""Rates with which all claims about a figure hold."""
WORLDS: dict[int, dict[str, Rate]] = {
    4: {"the gain grows with the RTT": partial(figure4, growth=1 / 25)},
    5: {"the rate falls with the asymmetry": lambda vpn, at: RATES[5](vpn, at) - at.second / 50},
    8: {"Multipath TCP starts as fast": lambda vpn, at: rate_of(vpn, mptcp=2.5, half=2.5, tunnel=2.6)},
}
"""Rates with which a claim about a figure fails."""


def lost(factor: float = 1.0, short: float = 0.97, rounds: int = 10) -> Sequence[Aim]:
    """Judge losses: *factor* times the configured ones, of whose bursts the share *short* is short."""

    def measure(turn: Turn[str]) -> dict[str, vpn_figures.Lost] | None:
        means = {loss: model.mean for loss in GOOD_LOSS if (model := loss_of(loss)) is not None}
        losses = {loss: vpn_figures.Lost(1 - (1 - factor * mean) ** 2, short) for loss, mean in means.items()}
        return losses if turn.number <= rounds else None

    return vpn_figures.TABLE1.aims(simulated_results(vpn_figures.TABLE1, {}, measure))


VPN = {
    **{f"vpn-fig{number}": of_figure(number) for number in RATES},
    "vpn-table1": VerdictCases(
        lost,
        {
            "nothing measured": partial(lost, rounds=0),
            "a round is missing": partial(lost, rounds=9),
            "emulator off": partial(lost, 0.0),
            "twice as much is lost": partial(lost, 2.0),
            "bursts are long": partial(lost, short=0.5),
        },
    ),
}
"""The judge of each experiment, by the experiment's name."""
