# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment overshoot, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from mutants import Judge, Load, constant, rehearsed, series

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.overshoot import SCENARIO, Cell, Outcome, judge

BEGIN, SECONDS = 0.5, 42.0
PHASE, RUNS = 15.0, 2
"""Seconds from the start to the poller's check (half of its period), and number of runs."""
CAPPED, WIFI, FULL = constant(5), constant(20), constant(48)


def until(phase: float, before: float = 48, then: float = 5) -> Load:
    return lambda time: before if time < phase else then


@cache
def outcome(ethernet: Load, wifi: Load = WIFI, seconds: float = SECONDS) -> Outcome:
    """Judge a transfer that begins after half a second. The loads are functions of the time since its start."""

    def begun(load: Load) -> Load:
        return lambda time: load(time - BEGIN) if time >= BEGIN else 0

    return judge(series({"eth0": begun(ethernet), "wlan0": begun(wifi)}, BEGIN + seconds), 5_000_000, BEGIN + seconds)


SOUND: dict[str, tuple[Load, Load]] = {
    "none": (FULL, WIFI), "ours": (CAPPED, WIFI), "budget": (CAPPED, WIFI), "static": (CAPPED, WIFI),
    "poller": (until(PHASE), WIFI),
}  # fmt: skip
"""Loads of the capped path and of the other path, for each variant."""


def overshoot(left_out: str = "", runs: int = RUNS, **changed: tuple[Load, Load]) -> Callable[[], Sequence[Aim]]:
    """Judge *runs* equal runs of each variant, some with *changed* loads."""

    def measure(turn: Turn[Cell]) -> Outcome | None:
        variant = turn.cell.variant
        if turn.number > runs or left_out in (variant, "all"):
            return None
        return outcome(*{**SOUND, **changed}[variant])

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, {"runs": str(RUNS)}, measure))


def everywhere(load: Load, wifi: Load = WIFI) -> Callable[[], Sequence[Aim]]:
    """Judge these loads under our cap and our budget."""
    return overshoot(ours=(load, wifi), budget=(load, wifi))


def in_class(load: Load, wifi: Load = WIFI) -> Callable[[], Sequence[Aim]]:
    return overshoot(static=(load, wifi))


OVERSHOOT = Judge(
    overshoot(),
    {
        "dead throttler: the cap never comes": everywhere(FULL),
        "the wrong path is capped": everywhere(FULL, constant(5)),
        "the cap is late for a new client": everywhere(until(1.5)),
        "it is a tenth too high": everywhere(constant(5.5)),
        "no static class": in_class(FULL),
        "it is on the wrong path": in_class(FULL, constant(5)),
        "it is late": in_class(until(1.5)),
        "it lets hardly anything pass": in_class(constant(3)),
        "second path unused beside it": in_class(CAPPED, constant(0)),
        "a burst that the rest makes good": everywhere(lambda t: 40 if t < 0.5 else 4.6),
        "a burst in the middle": everywhere(lambda t: 40 if 8 < t < 9.5 else 4.6),
        "second path unused": everywhere(CAPPED, constant(0)),
        "fallback to TCP": everywhere(FULL, constant(0)),
        "the capped path is hardly used": everywhere(constant(3)),
        "emulator off": everywhere(CAPPED, constant(900)),
        "emulator off beside the class": in_class(CAPPED, constant(900)),
        "the link is as slow as the cap": overshoot(none=(CAPPED, WIFI)),
        "the poller caps from the beginning": overshoot(poller=(CAPPED, WIFI)),
        **{f"without {what}": overshoot(left_out=what) for what in SOUND},
        "a run of each is missing": overshoot(runs=1),
        "nothing measured": overshoot(left_out="all"),
        "no byte came": everywhere(constant(0)),
    },
    refused={
        "no byte came": "nothing came over eth0",
    },
)
