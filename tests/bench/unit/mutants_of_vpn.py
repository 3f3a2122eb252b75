# SPDX-License-Identifier: GPL-2.0-or-later
"""Correct results, in which all claims of the paper hold, and mutants of the experiments vpn-… and tunnel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from mutants import MBIT, VerdictCases

from mptcp_bench.experiments import EXPERIMENTS, tunnel, vpn_figures
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.scenario import Scenario
from mptcp_bench.experiments.tunnel_parts import CALLS, AfterChange, Call, Cost, Silence
from mptcp_bench.experiments.vpn_cells import GOOD_LOSS, VPNS, WAYS, Condition, Point, Vpn, loss_of, wrong
from mptcp_bench.experiments.vpn_figures import Start

Rate = Callable[[Vpn, Condition], float]
"""Rate in Mbit/s by VPN and condition."""
Change = Callable[[Vpn], Mapping[str, Any]]
"""Changed fields of a measurement, by VPN."""
MUTANTS: dict[str, Change] = {
    "second path unused": lambda vpn: {"second": 0.0},
    "fallback to TCP": lambda vpn: {"joined": 0, "fallbacks": 1} if WAYS[vpn.way].joined else {},
    "a VPN over one path uses both": lambda vpn: {} if WAYS[vpn.way].uses_both_paths else {"second": 0.5},
    "the shares are not the configured ones": lambda vpn: {"second": 0.9} if WAYS[vpn.way].share is not None else {},
    "TCP is Multipath TCP": lambda vpn: {} if WAYS[vpn.way].joined else {"joined": 1},
}


def point(vpn: Vpn, rate: float) -> Start:
    """Return a correct measurement with this *rate* in Mbit/s."""
    way = WAYS[vpn.way]
    share = 0.4 if way.share is None else way.share
    return Start(
        rate * 1e6, share, joined=way.joined, fallbacks=0, acknowledged=round(rate * 1e5),
        sent_by_step=(0, 2), acknowledged_by_step=(0, 1),
    )  # fmt: skip


def figure_cases(number: int) -> VerdictCases:
    """Return the cases of a figure of the paper."""
    scenario: Scenario[Any, Condition, Any, Any] = EXPERIMENTS[f"vpn-fig{number}"].load()
    vpns = {VPNS[turn.variant] for turn in scenario.plan(scenario.chosen({}))}

    def measure(
        turn: Turn[Condition], change: Change = lambda vpn: {}, rate: Rate = RATES[number], missing: int = 0
    ) -> dict[str, Start] | None:
        """Return the downloads of a run with *change*; None in the round *missing* of our tunnel, or for a void run."""
        vpn = VPNS[turn.variant]
        measured = replace(point(vpn, rate(vpn, turn.cell)), **change(vpn))
        is_void = wrong(vpn, measured) is not None or (vpn.way, turn.number) == ("tunnel", missing)
        return None if is_void else dict.fromkeys(turn.cell.inner, measured)

    mutants: dict[str, dict[str, Any]] = {
        "a round of one way is missing": {"missing": 2},
        "each rate is inverted": {"rate": lambda vpn, at: 100 / RATES[number](vpn, at)},
    }
    mutants |= {name: {"change": change} for name, change in MUTANTS.items() if any(map(change, vpns))}
    mutants |= {name: {"rate": rate} for name, rate in FAULTY_RATES.get(number, {}).items()}
    return VerdictCases(scenario, {}, measure, mutants)


def rate_of(vpn: Vpn, **by_way: float) -> float:
    """Return the rate of the VPN's way; *half* is the way 50/50."""
    return by_way[{"50/50": "half"}.get(vpn.way, vpn.way)]


def figure4(vpn: Vpn, at: Condition, growth: float = -1 / 25) -> float:
    """Return the rate. *growth*: change of Multipath TCP's gain over TCP, in Mbit/s per ms of RTT."""
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
FAULTY_RATES: dict[int, dict[str, Rate]] = {
    4: {"the gain grows with the RTT": partial(figure4, growth=1 / 25)},
    5: {"the rate falls with the asymmetry": lambda vpn, at: RATES[5](vpn, at) - at.second / 50},
    8: {"Multipath TCP starts as fast as 50/50": lambda vpn, at: rate_of(vpn, mptcp=2.5, half=2.5, tunnel=2.6)},
}
"""Rates with which a claim about a figure fails."""


def losses_run(
    turn: Turn[str], factor: float = 1.0, short: float = 0.97, rounds: int = 10
) -> dict[str, vpn_figures.Lost] | None:
    """Return *factor* times the configured losses, of whose bursts the share *short* is short."""
    means = {loss: model.mean for loss in GOOD_LOSS if (model := loss_of(loss)) is not None}
    losses = {loss: vpn_figures.Lost(1 - (1 - factor * mean) ** 2, short) for loss, mean in means.items()}
    return losses if turn.number <= rounds else None


VPN = {f"vpn-fig{number}": figure_cases(number) for number in RATES}
VPN["vpn-table1"] = VerdictCases(
    vpn_figures.TABLE1,
    {},
    losses_run,
    {
        "a round is missing": {"rounds": 9},
        "emulator off": {"factor": 0.0},
        "twice as much is lost": {"factor": 2.0},
        "bursts are long": {"short": 0.5},
    },
)
"""The cases of each experiment, by the experiment's name."""

LOSSY_SHARE = 0.6
"""Share of a path's rate that remains with loss."""
SILENCE = Silence(relay=0.3, proxy=0.3, back=0.1, lost=0.3)
COST = Cost(150, 50, 4, 600 * MBIT)


def tunnel_run(
    turn: Turn[tunnel.Cell],
    ours: Callable[[list[float]], float] = lambda rates: 0.95 * sum(rates),
    silence: Silence = SILENCE,
    changed_rate: float = 9.5,
    call: tuple[float, float] = (0.025, 0.0),
    cost: Cost = COST,
    split: float = 0.5,
    runs: int = 3,
) -> Any:
    """Return the measurement of a part of the experiment; None after *runs* runs.

    *ours* returns the rate of a download through the tunnel from the rates of both paths alone. *changed_rate*:
    rate after the paths changed to 10; *call*: 99th percentile of the delay, and share of lost packets; *split*: the
    second path's share with fixed shares of 50/50.
    """
    part = turn.cell.part
    if turn.number > runs:
        return None
    if part == "call":
        p99, loss = dict(zip(CALLS, ((0.011, 0.0), (0.061, 0.01), call), strict=True))[turn.variant]
        return Call(p99, p99, loss)
    if part not in tunnel.DOWNLOADS:
        return {"silence": silence, "change": AfterChange(changed_rate, 10.0), "cost": cost}[part]
    over = zip(turn.cell.over.rates, turn.cell.over.losses, strict=True)
    rates = [rate * MBIT * (0.9 if loss is None else LOSSY_SHARE) for rate, loss in over]
    rate = {"a alone": rates[0], "b alone": rates[1]}.get(turn.variant, ours(rates))
    vpn = tunnel.VPNS[turn.variant]
    way = WAYS[vpn.way]
    second = split if turn.variant == "weights" else 0.4 if way.share is None else way.share
    found = Point(rate, second, joined=way.joined, fallbacks=0)
    return found if wrong(vpn, found) is None else None


TUNNEL = VerdictCases(
    tunnel.SCENARIO,
    {},
    tunnel_run,
    {
        "second path unused": {"ours": lambda rates: rates[0]},
        "50/50 over unequal paths": {"ours": lambda rates: 2 * min(rates)},
        "a lossy path stalls the other": {"ours": lambda rates: max(rates) / 2},
        "BBR gets little over lossy paths": {"ours": lambda rates: 0.8 * sum(rates)},
        "no byte arrived": {"ours": lambda rates: 0.0},
        "both ends keep using a silent path": {"silence": Silence(inf, inf, 0.1, 3.0)},
        "both ends use a silent path for too long": {"silence": replace(SILENCE, relay=0.6, proxy=0.6)},
        "only the relay stops using a silent path": {"silence": replace(SILENCE, proxy=inf)},
        "only the proxy stops using a silent path": {"silence": replace(SILENCE, relay=inf)},
        "the silent path is used again late": {"silence": replace(SILENCE, back=1.5)},
        "the silent path is never used again": {"silence": replace(SILENCE, back=inf)},
        "the stream loses a second of data": {"silence": replace(SILENCE, lost=1.0)},
        "the tunnel does not adapt to changed rates": {"changed_rate": 5.0},
        "a call waits in a queue": {"call": (0.061, 0.0)},
        "a call loses more than over one path": {"call": (0.025, 0.02)},
        "the shares are not the configured ones": {"split": 0.7},
        "packets are expensive in the kernel": {"cost": replace(COST, splitter=250, joiner=100)},
        "packets are expensive in the resequencer": {"cost": replace(COST, resequencer=28.6)},
        "the tunnel carries little": {"cost": replace(COST, carried=300 * MBIT)},
        "a run is missing": {"runs": 2},
    },
)
