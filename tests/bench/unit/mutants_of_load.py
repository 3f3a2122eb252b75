# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments load, soak and crowds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge, rehearsed

from mptcp_bench.experiments import crowds, load, soak
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.load import JoinsCell, RateCell, RateResult
from mptcp_bench.experiments.load_crowd import CAP, Reactions
from mptcp_bench.experiments.load_held import Held, HeldCell
from mptcp_bench.experiments.soak import SIZES, Reading

Judged = Callable[[], Sequence[Aim]]


def sound(cell: load.Cell) -> Any:
    """Return the measurement of a throttler that keeps up with 500 connections per second, but not with more."""
    if isinstance(cell, JoinsCell):
        return Reactions(200, 200, 0, median=1.2, p99=4.0, greatest=6.0)
    if isinstance(cell, RateCell):
        if cell.rate <= 500:
            return RateResult(cell.rate, 1.0, 0, 0, lost=0, events_lost=0, dropped=0, core=75.0)
        return RateResult(cell.rate / 2, 0.5, -1, -1, lost=1, events_lost=1, dropped=1, core=110.0)
    return Held(
        (), two_subflows=cell.tunnels, in_status=cell.tunnels, ended=0, received=1.0, reload=1.3, released=0.9,
        lag=0.03, command=0.3, busy=0.2, idle=0.02, joins_without=200, p99_without=4.0, joins=200, median=1.2, p99=6.0,
        joins_polled=100, p99_polled=7.0, resident=140.0, lag_without=0.02, lag_with=0.025, scrape=1.0, console=70.0,
        stop=0.8,
    )  # fmt: skip


def load_run(part: type | None = None, measured: bool = True, **change: Any) -> Judged:
    """Judge a result in which the cells of *part* are changed."""

    def measure(turn: Turn[load.Cell]) -> Any:
        if not measured:
            return None
        is_changed = part is not None and isinstance(turn.cell, part)
        return replace(sound(turn.cell), **change) if is_changed else sound(turn.cell)

    options = {"n": "1000,10000", "rate": "500,1000", "netfilter": "nftables"}
    return lambda: load.SCENARIO.aims(rehearsed(load.SCENARIO, options, measure))


def mutants_of_cells(part: type, name: str, mutants: Mapping[str, Mapping[str, Any]]) -> dict[str, Judged]:
    return {f"{name}: {fault}": load_run(part, **change) for fault, change in mutants.items()}


LOAD = Judge(
    load_run(),
    {
        "nothing measured": load_run(measured=False),
        **mutants_of_cells(JoinsCell, "joins", {
            "a dead throttler never caps": {"capped": 0, "median": math.inf, "p99": math.inf, "greatest": math.inf},
            "a connection is not capped": {"capped": 199},
            "a connection was not joined": {"joined": 199},
            "a connection was capped before": {"capped_before": 1, "capped": 199},
            "some joins wait": {"p99": 5.1},
        }),
        **mutants_of_cells(RateCell, "rate", {
            "dead throttler": {"opened_minus_actual": -9_000, "activated_minus_actual": -18_000, "lost": 9_000},
            "the client is too slow": {"rate": 489.0},
            "some connections have no join": {"joins": 0.979},
            "the tracker opens a connection too many": {"opened_minus_actual": 1, "activated_minus_actual": 1},
            "an entry is not removed": {"lost": 1},
            "an entry has no connection": {"lost": -1},
            "an event was lost": {"events_lost": 1},
            "a segment was dropped": {"dropped": 1},
            "more than a core": {"core": 101.0},
        }),
        **mutants_of_cells(HeldCell, "held", {
            "the cap comes late": {"reload": 5.1},
            "caps are never lifted": {"released": math.inf},
            "one join is not capped": {"joins": 199, "joins_without": 199, "joins_polled": 99},
            "joins wait": {"p99": 8.1, "p99_polled": 8.1},
            "joins wait without tunnels": {"p99_without": 5.1},
            "status lacks a connection": {"in_status": 999},
            "status takes too long": {"command": 0.6},
            "the event loop is blocked": {"lag": 0.051, "lag_without": 0.051},
            "the loop's gauge does not change": {"lag": 0.0, "lag_without": 0.0, "lag_with": 0.0},
            "too busy": {"busy": 0.26, "idle": 0.06},
            "no second subflow": {"two_subflows": 0},
            "the tunnels carry little data": {"received": 0.5},
            "a tunnel ends": {"ended": 1},
            "too much memory": {"resident": 151.0, "console": 101.0},
            "no memory": {"resident": 0.0, "console": 0.0},
            "the throttler ends late": {"stop": 3.1},
            "kernel state remains": {"remnants": ("tc",)},
            "the console delays the loop": {"lag_with": 0.031},
            "scrapes are slow": {"scrape": 2.1},
        }),
    },
)  # fmt: skip

TUNNELS, CHURN, INTERVAL, COUNT = 1_000, 50, 30.0, 120


def reading(number: int) -> Reading:
    """Return a reading of a throttler that meets every aim: it warms up for a while and is then stable."""
    time = INTERVAL * (number + 1)
    counts = {"open": TUNNELS - 10, "opened": TUNNELS + round(CHURN * time), "missed": 0, "invented": 0}
    sizes = {name: 1_000.0 * min(1.0, 0.8 + number / 100) for name in SIZES}
    return {"time": time, **counts, "checked": 500, "wrong": 0, "ceil": CAP, **sizes}


def soak_run(
    change: Callable[[int], Reading] = lambda number: {}, *, count: int = COUNT, ended: int = 0,
    remnants: Sequence[str] = (), measured: bool = True,
) -> Judged:  # fmt: skip
    """Judge *count* readings, each with the values that *change* returns for its number."""
    readings = tuple({**reading(number), **change(number)} for number in range(count))
    found = soak.Soak(readings, tuple(remnants), ended, 0.1) if measured else None
    return lambda: soak.SCENARIO.aims(rehearsed(soak.SCENARIO, {}, lambda turn: found))


def growing(name: str) -> Judged:
    """Judge readings in which the size *name* increases by a fifth from the second third to the last."""
    return soak_run(lambda number: {name: 1_000 * (1 + 0.006 * number)})


SOAK = Judge(
    soak_run(),
    {
        "dead throttler": soak_run(count=0),
        "the throttler died after half of the time": soak_run(count=60),
        "its sizes cannot be read": soak_run(lambda number: dict.fromkeys(SIZES, math.nan)),
        **{f"growing: {name}": growing(name) for name in SIZES},
        "the proxy ends tunnels": soak_run(ended=1),
        "plain TCP, second path unused: no connection has two subflows": soak_run(lambda number: {"checked": 0}),
        "tunnels are not open": soak_run(lambda number: {"open": 900}),
        "no tunnel is replaced": soak_run(lambda number: {"opened": TUNNELS}),
        "status lacks a connection once": soak_run(lambda number: {"missed": int(number == 70)}),
        "status lists a connection that does not exist": soak_run(lambda number: {"invented": int(number == 70)}),
        "the cap is on the other path, or never came": soak_run(lambda number: {"wrong": 500}),
        "the cap is half of the wanted one for much of the time": soak_run(
            lambda number: {"ceil": CAP / (1 + number % 2)}
        ),
        "the cap is twice the wanted one": soak_run(lambda number: {"ceil": 2 * CAP}),
        "kernel state remains": soak_run(remnants=("tc",)),
        "nothing measured": soak_run(measured=False),
    },
)

REQUESTS, ANSWERS = 100, 800.0
"""Number of the client's requests, and answers per second of a busy client: four connections get one every 5 ms."""


def seconds(factor: float = 1.0, slow: float = 0.006) -> tuple[float, ...]:
    """Return latencies of requests in seconds: nine in ten take *factor* × 4 ms, one in ten takes *factor* × *slow*."""
    return tuple(factor * (slow if number % 10 == 0 else 0.004) for number in range(REQUESTS))


def crowds_run(
    change: Mapping[str, Any] | None = None, *, rounds: Sequence[int] = (1, 2, 3), alone: bool = True, runs: int = 3,
    without: str = "", factors: Sequence[float] = (1.06, 1.07, 1.08),
) -> Judged:  # fmt: skip
    """Judge *runs* rounds, in *rounds* of which *change* applies to all arms but, if *alone*, to the one without load.

    With a busy client, requests take *factors* times as long as without. Both become slower from round to round.
    """

    def measure(turn: Turn[str]) -> crowds.Measured | None:
        arm, number = turn.cell, turn.number
        if number > runs or arm == without:
            return None
        busy = arm != crowds.ALONE
        latency = seconds((1 + number / 10) * (factors[number - 1] if busy else 1))
        found = crowds.Measured(latency, 0, REQUESTS, 4 * busy, 0.001, 70_000_000 + 120_000 * busy)
        if busy:
            found = replace(found, octets=1e6, answers=ANSWERS if arm in crowds.COMPARED else 0.0)
        return replace(found, **(change or {})) if number in rounds and (busy or not alone) else found

    return lambda: crowds.SCENARIO.aims(rehearsed(crowds.SCENARIO, {"runs": "3"}, measure))


CROWDS = Judge(
    crowds_run(),
    {
        "each request waits": crowds_run({"seconds": seconds(3)}),
        "one request in ten waits": crowds_run({"seconds": seconds(slow=0.024)}),
        "each waits in one round of three": crowds_run({"seconds": seconds(8)}, rounds=[1]),
        "the ratio's mean is below two, its upper bound is not": crowds_run(factors=(1.9, 2.0, 1.8)),
        "a busy client's requests go first": crowds_run({"answers": 3 * ANSWERS}),
        "no client is busy": crowds_run({"answers": 0.0, "octets": 0.0}, rounds=[1]),
        "nothing is answered": crowds_run({"seconds": (), "failed": REQUESTS}, alone=False),
        "one request is refused": crowds_run({"failed": 1}, alone=False, rounds=[2]),
        "fallback to TCP": crowds_run({"multipath": 0}, alone=False),
        "one connection falls back": crowds_run({"multipath": REQUESTS - 1}, alone=False, rounds=[1]),
        "descriptors are nearly exhausted": crowds_run({"descriptors": 0.95}, alone=False),
        "too much memory": crowds_run({"memory": 600_000_000}),
        "memory grows from round to round": crowds_run({"memory": 450_000_000}, rounds=[3]),
        "one round has no interval": crowds_run(runs=1),
        **{f"without {arm}": crowds_run(without=arm) for arm in crowds.ARMS},
        "nothing measured": crowds_run(runs=0),
    },
)
