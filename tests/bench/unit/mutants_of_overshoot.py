# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment overshoot, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from mutants import Judge, Load, constant, rehearsed, series

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Results, Turn
from mptcp_bench.experiments.overshoot import AGAIN, FIRST, SCENARIO, Cell, Outcome, judge

BEGIN, SECONDS, REPEATED = 0.5, 42.0, 12.0
PHASE, RUNS = 15.0, 2
"""The only phase of a poller is half of its period."""
VARIANTS = ("none", "ours", "budget", "static", "poller")
CAPPED, WIFI, FULL = constant(5), constant(20), constant(48)


def until(phase: float, before: float = 48, then: float = 5) -> Load:
    return lambda time: before if time < phase else then


def outcome(ethernet: Load, wifi: Load = WIFI, seconds: float = SECONDS, phase: float | None = None) -> Outcome:
    """Judge a transfer that begins after half a second; the loads are functions of the time since its start."""

    def begun(load: Load) -> Load:
        return lambda time: load(time - BEGIN) if time >= BEGIN else 0

    samples = series({"eth0": begun(ethernet), "wlan0": begun(wifi)}, BEGIN + seconds)
    capped_at = None if phase is None else BEGIN + phase
    return judge(samples, 5_000_000, BEGIN + seconds, capped_at)


@cache
def transfers(first: Load, again: Load, wifi: Load, phase: float | None) -> dict[str, Outcome]:
    return {FIRST: outcome(first, wifi, SECONDS, phase), AGAIN: outcome(again, wifi, REPEATED)}


def results(loads: Mapping[str, tuple[Load, Load, Load]], runs: int, left_out: str = "") -> Results[Cell, Outcome]:
    """Return *runs* runs of each variant under *loads*: of a first transfer, a repeated one, and the other path."""

    def measure(turn: Turn[Cell]) -> dict[str, Outcome] | None:
        variant = turn.cell.variant
        if turn.number > runs or left_out in (variant, "all"):
            return None
        return transfers(*loads[variant], turn.cell.phase)

    return rehearsed(SCENARIO, {"runs": str(RUNS), "phases": "1"}, measure)


def overshoot(
    *,
    ours: Load = CAPPED,
    ours_repeated: Load = CAPPED,
    budget: Load = CAPPED,
    budget_repeated: Load = CAPPED,
    static: Load = CAPPED,
    static_repeated: Load = CAPPED,
    wifi: Load = WIFI,
    beside_static: Load = WIFI,
    none: Load = FULL,
    poller: Load | None = None,
    left_out: str = "",
    runs: int = RUNS,
) -> Callable[[], Sequence[Aim]]:
    """Judge *runs* equal runs of each variant, and one of the poller. *wifi*: load beside our cap and our budget."""

    def judged() -> Sequence[Aim]:
        loads = {
            "none": (none, none, WIFI),
            "ours": (ours, ours_repeated, wifi),
            "budget": (budget, budget_repeated, wifi),
            "static": (static, static_repeated, beside_static),
            "poller": (poller or until(PHASE), CAPPED, WIFI),
        }
        return SCENARIO.aims(results(loads, runs, left_out))

    return judged


def everywhere(load: Load, wifi: Load = WIFI) -> Callable[[], Sequence[Aim]]:
    return overshoot(ours=load, ours_repeated=load, budget=load, budget_repeated=load, wifi=wifi)


def in_class(load: Load, wifi: Load = WIFI) -> Callable[[], Sequence[Aim]]:
    return overshoot(static=load, static_repeated=load, beside_static=wifi)


OVERSHOOT = Judge(
    overshoot(),
    {
        "dead throttler: the cap never comes": everywhere(FULL),
        "the wrong path is capped": everywhere(FULL, constant(5)),
        "the cap is late for a new client": overshoot(ours=until(1.5), budget=until(1.5)),
        "it is for a known one": overshoot(ours_repeated=until(1.5), budget_repeated=until(1.5)),
        "it is a tenth too high": everywhere(constant(5.5)),
        "a new client gets seven percent more than a known one": overshoot(
            ours=until(12, 5.24, 4.9),
            ours_repeated=constant(4.9),
            budget=until(12, 5.24, 4.9),
            budget_repeated=constant(4.9),
        ),
        "no static class": in_class(FULL),
        "it is on the wrong path": in_class(FULL, constant(5)),
        "it is late": overshoot(static=until(1.5)),
        "it lets hardly anything pass": in_class(constant(3)),
        "second path unused beside it": in_class(CAPPED, constant(0)),
        "a burst that the rest makes good": everywhere(lambda t: 40 if t < 0.5 else 4.6),
        "a burst in the middle": everywhere(lambda t: 40 if 8 < t < 9.5 else 4.6),
        "second path unused": everywhere(CAPPED, constant(0)),
        "fallback to TCP": everywhere(FULL, constant(0)),
        "the capped path is hardly used": everywhere(constant(3)),
        "emulator off": overshoot(
            none=constant(900), poller=until(PHASE, 900), wifi=constant(900), beside_static=constant(900)
        ),
        "the link is as slow as the cap": overshoot(none=CAPPED, poller=CAPPED),
        "the poller caps later than it says": overshoot(poller=until(2 * PHASE)),
        "it caps from the beginning": overshoot(poller=until(0.2)),
        "it caps sooner than it says": overshoot(poller=until(PHASE / 2)),
        "little came before its reading": overshoot(poller=lambda t: 0.1 if t < 10 else 48 if t < PHASE else 5),
        **{f"without {what}": overshoot(left_out=what) for what in VARIANTS},
        "one run of each cannot be compared": overshoot(runs=1),
        "nothing measured": overshoot(left_out="all"),
        "no byte came": everywhere(constant(0)),
    },
    refused={
        "no byte came": "nothing came over eth0",
    },
)
