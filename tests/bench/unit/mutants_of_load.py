# SPDX-License-Identifier: GPL-2.0-or-later
"""Correct results and mutants of the experiments load, soak and crowds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mutants import VerdictCases

from mptcp_bench.experiments import crowds, load, soak
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.load import Held, HeldCell, JoinsCell, RateCell, RateResult, Reactions
from mptcp_bench.experiments.load_crowd import CAP
from mptcp_bench.experiments.soak import SIZES, Reading


def correct_result(cell: load.Cell) -> Any:
    """Return the measurement of a throttler that keeps up with 500 connections per second, but not with more."""
    if isinstance(cell, JoinsCell):
        return Reactions(200, p99=4.0)
    if isinstance(cell, RateCell):
        if cell.rate <= 500:
            return RateResult(cell.rate, 1.0, 0, 0, lost=0, events_lost=0, dropped=0, core=75.0)
        return RateResult(cell.rate / 2, 0.5, -1, -1, lost=1, events_lost=1, dropped=1, core=110.0)
    return Held(
        in_status=cell.tunnels, ended=0, reload=1.3, released=0.9,
        lag=0.03, command=0.3, busy=0.2, idle=0.02, capped=200, p99=6.0, capped_polled=100, p99_polled=7.0,
        resident=140.0, lag_without=0.02, lag_with=0.025, scrape=1.0, console=70.0,
    )  # fmt: skip


def load_run(turn: Turn[load.Cell], part: type | None = None, **change: Any) -> Any:
    """Return a measurement, with *change* in cells of the type *part*."""
    found = correct_result(turn.cell)
    return replace(found, **change) if part is not None and isinstance(turn.cell, part) else found


LOAD = VerdictCases(
    load.SCENARIO,
    {"n": "1000,10000", "rate": "500,1000", "netfilter": "nftables"},
    load_run,
    {
        "joins are missed or late": {"part": JoinsCell, "capped": 199, "p99": 5.1},
        "the tracker counts too little": {
            "part": RateCell, "rate": 489.0, "joins": 0.979, "opened_minus_actual": -1, "activated_minus_actual": -1,
            "lost": -1,
        },
        "the tracker counts too much": {
            "part": RateCell, "opened_minus_actual": 1, "activated_minus_actual": 1, "lost": 1, "events_lost": 1,
            "dropped": 1, "core": 101.0,
        },
        "dead throttler": {
            "part": HeldCell, "in_status": 999, "lag": 0.0, "capped": 199,
            "capped_polled": 99,
        },
        "slow throttler": {
            "part": HeldCell, "ended": 1, "reload": 5.1, "released": math.inf, "p99": 10.1, "p99_polled": 10.1,
            "command": 0.6, "lag": 0.051, "busy": 0.26, "idle": 0.06, "resident": 151.0, "console": 101.0,
            "lag_with": 0.07, "scrape": 2.1,
        },
    },
)  # fmt: skip

TUNNELS, CHURN, INTERVAL, COUNT = 1_000, 50, 30.0, 120
"""Number of tunnels, tunnels replaced per second, seconds between two readings, number of readings."""


def reading(number: int) -> Reading:
    """Return a reading that meets every aim: the sizes grow at first, and are then constant."""
    time = INTERVAL * (number + 1)
    counts = {"open": TUNNELS - 10, "opened": TUNNELS + round(CHURN * time), "missed": 0, "phantom": 0}
    sizes = {name: 1_000.0 * min(1.0, 0.8 + number / 100) for name in SIZES}
    return {"time": time, **counts, "checked": 500, "misclassified": 0, "ceil": CAP, **sizes}


def soak_run(turn: Turn[soak.Settings], change: Callable[[int], Reading] = lambda number: {}, **more: Any) -> soak.Soak:
    """Return the readings. *change* returns changed values of the reading with a number; *more*: other fields."""
    readings = tuple({**reading(number), **change(number)} for number in range(COUNT))
    return soak.Soak(readings, **{"remnants": (), "ended": 0, "cores": 0.1, **more})


SOAK = VerdictCases(
    soak.SCENARIO,
    {},
    soak_run,
    {
        "all sizes grow": {"change": lambda number: dict.fromkeys(SIZES, 1_000 * (1 + 0.006 * number))},
        "the proxy ends tunnels, and kernel state remains": {"ended": 1, "remnants": ("tc",)},
        "no tunnel is replaced": {"change": lambda number: {"opened": TUNNELS}},
        "once, status and caps are wrong": {
            "change": lambda number: {"missed": 1, "phantom": 1, "misclassified": 500} if number == 70 else {}
        },
        "once, connections have one subflow": {
            "change": lambda number: {"checked": 0, "open": 900} if number == 70 else {}
        },
        "the cap is half of the wanted one for much of the time": {
            "change": lambda number: {"ceil": CAP / (1 + number % 2)}
        },
        "the cap is twice the wanted one": {"change": lambda number: {"ceil": 2 * CAP}},
    },
)

REQUESTS, ANSWERS = 100, 800.0
"""Number of the client's requests, and answers per second of a busy client: four connections get one every 5 ms."""


def crowds_run(turn: Turn[str], factor: float = 1.07, only_busy: bool = True, **change: Any) -> crowds.Measured:
    """Return the measurement of an arm, with *change* in the arms with a busy client or, unless *only_busy*, in all.

    With a busy client, requests take *factor* times as long as without. Both become slower from round to round.
    """
    is_busy = turn.cell != crowds.ALONE
    latency = (0.004 + turn.number / 1000) * (factor + turn.number / 100 if is_busy else 1)
    found = crowds.Measured((latency,) * REQUESTS, 0, REQUESTS, 4 * is_busy)
    if is_busy:
        found = replace(found, busy_bytes=1e6, busy_answers=ANSWERS if turn.cell in crowds.COMPARED else 0.0)
    return replace(found, **change) if is_busy or not only_busy else found


CROWDS = VerdictCases(
    crowds.SCENARIO,
    {"runs": "3"},
    crowds_run,
    {
        "the ratio's mean is below two, its upper bound is not": {"factor": 1.97},
        "a busy client's requests have priority": {"busy_answers": 3 * ANSWERS},
        "nothing is answered": {"latencies": (), "failures": REQUESTS, "only_busy": False},
        "one connection falls back": {"multipath_connections": REQUESTS - 1, "only_busy": False},
    },
)
