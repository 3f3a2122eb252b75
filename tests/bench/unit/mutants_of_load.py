# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment load, and its mutants: in each mutant, one part has wrong measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge, rehearsed

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.load import SCENARIO
from mptcp_bench.experiments.load_held import NO_REACTIONS, Held, HeldCell
from mptcp_bench.experiments.load_joins import JoinsCell, Reactions
from mptcp_bench.experiments.load_rate import Followed, RateCell

OPTIONS = {"n": "1000,10000", "rate": "500,1000", "netfilter": "nftables"}
REACTIONS = Reactions(200, 200, 0, median=1.2, p99=4.0, greatest=6.0)


def sound(turn: Turn[Any]) -> Any:
    """Return the measurement of a throttler that keeps up with 500 connections per second, but not with more."""
    cell = turn.cell
    if isinstance(cell, JoinsCell):
        return REACTIONS
    if isinstance(cell, RateCell):
        if cell.rate <= 500:
            return Followed(cell.rate, 1.0, 0, 0, lost=0, events_lost=0, dropped=0, core=75.0)
        return Followed(cell.rate / 2, 0.5, -1, -1, lost=1, events_lost=1, dropped=1, core=110.0)
    tunnels = cell.tunnels
    return Held(
        two_subflows=tunnels, shown=tunnels, ended=0, idle=0.02, busy=0.2, trickled=1.0,
        reload=tunnels / 7500, released=0.9, lag=0.03, command=0.3, alone=REACTIONS,
        beside=replace(REACTIONS, p99=6.0), asked=replace(REACTIONS, joined=100, capped=100), resident=140.0, stop=0.8,
        lag_alone=0.02, lag_beside=0.025, scrape=1.0, console=70.0,
    )  # fmt: skip


def changed(measured: Any, change: Mapping[str, Any]) -> Any:
    """Return *measured* with *change* applied; a nested dictionary changes fields of the named field."""
    there = {
        name: changed(getattr(measured, name), value) if isinstance(value, dict) else value
        for name, value in change.items()
    }
    return replace(measured, **there)


def loaded(part: type | None = None, **change: Any) -> Callable[[], Sequence[Aim]]:
    """Judge a result in which the cells of *part* are changed."""

    def measure(turn: Turn[Any]) -> Any:
        return changed(sound(turn), change) if part is not None and isinstance(turn.cell, part) else sound(turn)

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, measure))


def of(part: type, name: str, mutants: Mapping[str, Mapping[str, Any]]) -> dict[str, Callable[[], Sequence[Aim]]]:
    return {f"{name}: {fault}": loaded(part, **change) for fault, change in mutants.items()}


LOAD = Judge(
    loaded(),
    {
        "nothing measured": lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, lambda turn: None)),
        **of(JoinsCell, "joins", {
            "a dead throttler never caps": {"capped": 0, "median": math.inf, "p99": math.inf, "greatest": math.inf},
            "one is not capped": {"capped": 199},
            "one was not joined": {"joined": 199},
            "one was capped before": {"capped_before": 1, "capped": 199},
            "some wait": {"p99": 5.1},
        }),
        **of(RateCell, "rate", {
            "dead throttler": {"opened_less_made": -9_000, "activated_less_made": -18_000, "lost": 9_000, "core": 0.0},
            "the client is too slow": {"rate": 489.0},
            "some connections have no join": {"joins": 0.979},
            "a connection was missed": {"opened_less_made": -1},
            "a connection was invented": {"opened_less_made": 1},
            "a subflow was missed": {"activated_less_made": -1},
            "a subflow was invented": {"activated_less_made": 1},
            "an entry stayed": {"lost": 1},
            "there were entries of nobody": {"lost": -1},
            "an event was lost": {"events_lost": 1},
            "a segment was dropped": {"dropped": 1},
            "more than a core": {"core": 101.0},
        }),
        **of(HeldCell, "held", {
            "the throttler died": {
                "shown": 0, "reload": math.inf, "released": math.inf, "lag": math.nan, "command": math.inf,
                "beside": NO_REACTIONS, "asked": NO_REACTIONS, "resident": math.nan, "stop": math.inf,
                "lag_alone": math.inf, "lag_beside": math.inf,
            },
            "the cap comes late": {"reload": 5.1},
            "caps are never lifted": {"released": math.inf},
            "no join is capped": {"beside": NO_REACTIONS, "asked": NO_REACTIONS},
            "one join is not capped": {"beside": {"capped": 199}, "alone": {"capped": 199}, "asked": {"capped": 99}},
            "joins wait": {"beside": {"p99": 8.1}, "asked": {"p99": 8.1}},
            "joins wait with none held": {"alone": {"p99": 5.1}},
            "status lacks a connection": {"shown": 999},
            "status takes too long": {"command": 0.6},
            "the event loop stands": {"lag": 0.051, "lag_alone": 0.051},
            "the loop's gauge stands": {"lag": 0.0, "lag_alone": 0.0, "lag_beside": 0.0},
            "too busy": {"busy": 0.26, "idle": 0.06},
            "no second subflow": {"two_subflows": 0},
            "the tunnels do not trickle": {"trickled": 0.5},
            "a tunnel ends": {"ended": 1},
            "too much memory": {"resident": 151.0, "console": 101.0},
            "no memory": {"resident": 0.0, "console": 0.0},
            "it ends late": {"stop": 3.1},
            "something is left": {"left": ("tc",)},
            "the console delays the loop": {"lag_beside": 0.031},
            "scrapes are slow": {"scrape": 2.1},
        }),
    },
)  # fmt: skip
