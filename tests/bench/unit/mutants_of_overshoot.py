# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment overshoot, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from mutants import Judge, Load, constant, rehearsed, series

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.overshoot import AGAIN, FIRST, SCENARIO, Cell, Outcome, judge

BEGIN, SECONDS, REPEATED = 0.5, 42.0, 12.0
PHASE, RUNS = 15.0, 2
"""The only phase of a poller is half of its period."""
CAPPED, WIFI, FULL = constant(5), constant(20), constant(48)


def until(phase: float, before: float = 48, then: float = 5) -> Load:
    return lambda time: before if time < phase else then


def outcome(ethernet: Load, wifi: Load = WIFI, seconds: float = SECONDS) -> Outcome:
    """Judge a transfer that begins after half a second; the loads are functions of the time since its start."""

    def begun(load: Load) -> Load:
        return lambda time: load(time - BEGIN) if time >= BEGIN else 0

    return judge(series({"eth0": begun(ethernet), "wlan0": begun(wifi)}, BEGIN + seconds), 5_000_000, BEGIN + seconds)


@cache
def transfers(first: Load, again: Load, wifi: Load) -> dict[str, Outcome]:
    return {FIRST: outcome(first, wifi), AGAIN: outcome(again, wifi, REPEATED)}


SOUND: dict[str, tuple[Load, Load, Load]] = {
    "none": (FULL, FULL, WIFI), "ours": (CAPPED, CAPPED, WIFI), "budget": (CAPPED, CAPPED, WIFI),
    "static": (CAPPED, CAPPED, WIFI), "poller": (until(PHASE), CAPPED, WIFI),
}  # fmt: skip
"""Loads of each variant: of a first transfer, a repeated one, and the other path."""


def overshoot(left_out: str = "", runs: int = RUNS, **changed: tuple[Load, Load, Load]) -> Callable[[], Sequence[Aim]]:
    """Judge *runs* equal runs of each variant, and one of the poller, some with *changed* loads."""

    def measure(turn: Turn[Cell]) -> dict[str, Outcome] | None:
        variant = turn.cell.variant
        if turn.number > runs or left_out in (variant, "all"):
            return None
        return transfers(*{**SOUND, **changed}[variant])

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, {"runs": str(RUNS), "phases": "1"}, measure))


def both(first: Load, again: Load, wifi: Load = WIFI) -> Callable[[], Sequence[Aim]]:
    """Judge these loads under our cap and our budget."""
    return overshoot(ours=(first, again, wifi), budget=(first, again, wifi))


def everywhere(load: Load, wifi: Load = WIFI) -> Callable[[], Sequence[Aim]]:
    return both(load, load, wifi)


def in_class(load: Load, wifi: Load = WIFI) -> Callable[[], Sequence[Aim]]:
    return overshoot(static=(load, load, wifi))


def polled(load: Load) -> Callable[[], Sequence[Aim]]:
    return overshoot(poller=(load, CAPPED, WIFI))


OVERSHOOT = Judge(
    overshoot(),
    {
        "dead throttler: the cap never comes": everywhere(FULL),
        "the wrong path is capped": everywhere(FULL, constant(5)),
        "the cap is late for a new client": both(until(1.5), CAPPED),
        "it is for a known one": both(CAPPED, until(1.5)),
        "it is a tenth too high": everywhere(constant(5.5)),
        "a new client gets seven percent more than a known one": both(until(12, 5.24, 4.9), constant(4.9)),
        "no static class": in_class(FULL),
        "it is on the wrong path": in_class(FULL, constant(5)),
        "it is late": overshoot(static=(until(1.5), CAPPED, WIFI)),
        "it lets hardly anything pass": in_class(constant(3)),
        "second path unused beside it": in_class(CAPPED, constant(0)),
        "a burst that the rest makes good": everywhere(lambda t: 40 if t < 0.5 else 4.6),
        "a burst in the middle": everywhere(lambda t: 40 if 8 < t < 9.5 else 4.6),
        "second path unused": everywhere(CAPPED, constant(0)),
        "fallback to TCP": everywhere(FULL, constant(0)),
        "the capped path is hardly used": everywhere(constant(3)),
        "emulator off": everywhere(CAPPED, constant(900)),
        "emulator off beside the class": in_class(CAPPED, constant(900)),
        "the link is as slow as the cap": overshoot(none=(CAPPED, CAPPED, WIFI)),
        "the poller caps from the beginning": polled(CAPPED),
        **{f"without {what}": overshoot(left_out=what) for what in SOUND},
        "one run of each cannot be compared": overshoot(runs=1),
        "nothing measured": overshoot(left_out="all"),
        "no byte came": everywhere(constant(0)),
    },
    refused={
        "no byte came": "nothing came over eth0",
    },
)
