# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiment steering, for its modes and its outages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from mutants import Judge, Load, constant, rehearsed, series

from mptcp_bench.experiments import steering as modes
from mptcp_bench.experiments import steering_outages as outages
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.steering import AFTER, EVENT, SCENARIO, WARM, Download, Finding
from mptcp_bench.experiments.steering_outages import Outage

Loads = tuple[Load, Load]
"""Rates in Mbit/s over Ethernet and Wi-Fi."""
RUNS = 2
RESTORED, END = WARM + EVENT, WARM + EVENT + AFTER


def between(start: float, end: float, then: float, otherwise: float) -> Load:
    return lambda time: then if start <= time < end else otherwise


def steady(ethernet: float, wifi: float) -> Loads:
    return constant(ethernet), constant(wifi)


def taken_over(late: float = 0.5, back: float = 1.0) -> Loads:
    """Wi-Fi is silent for a while.

    Ethernet takes over *late* seconds after the silence begins, and Wi-Fi is used again *back* seconds after it ends.
    """
    return between(WARM + late, RESTORED + back, 100, 0), between(WARM, RESTORED + back, 0, 30)


def slow_origin(ethernet: float, wifi: float) -> Loads:
    """Both paths are full, except while the origin is slow and they carry *ethernet* and *wifi*."""
    return between(WARM + 0.5, RESTORED, ethernet, 100), between(WARM + 0.5, RESTORED, wifi, 30)


SOUND: Mapping[str, Loads] = {
    "active-standby": taken_over(),
    "priority-based": slow_origin(0, 15),
    "load-balancing 70/30": steady(69, 30),
    "load-balancing 50/50": steady(30, 30),
    "load-balancing 60/40, paced": steady(12, 8),
    "load-balancing 85/15, paced": steady(10.2, 1.8),
    "smallest-delay": steady(99, 29),
    "no rule": steady(99, 29),
}
ACTIVE, ORDER, LOWEST = "active-standby", "priority-based", "smallest-delay"
BALANCING = tuple(kind for kind in SOUND if kind.startswith("load-balancing"))
PACED = tuple(modes.PACED)
UNSTEERED: Mapping[str, Loads] = {
    ACTIVE: (constant(100), between(WARM, RESTORED, 0, 30)),
    ORDER: slow_origin(15, 0),
    **dict.fromkeys(BALANCING, steady(100, 30)),
    PACED[0]: steady(20, 0),
    PACED[1]: steady(12, 0),
}
"""Rates without steering, by the kernel itself."""


def scaled(loads: Loads, ethernet: float, wifi: float) -> Loads:
    return lambda time: ethernet * loads[0](time), lambda time: wifi * loads[1](time)


def steered(
    changed: Mapping[str, Loads] | None = None, *, runs: int = RUNS, left_out: str = ""
) -> Callable[[], Sequence[Aim]]:
    """Judge *runs* runs of each mode, with the loads of *changed*."""
    loads = {**SOUND, **(changed or {})}

    @cache
    def found(kind: str) -> dict[str, Finding]:
        ethernet, wifi = loads[kind]
        download = Download(tuple(series({"eth0": ethernet, "wlan0": wifi}, END)), WARM)
        return {what: Finding(value) for what, value in download.findings(kind).items()}

    def judged() -> Sequence[Aim]:
        options = {"part": "modes", "rtt": "20/20", "runs": str(RUNS)}

        def measure(turn: Turn[modes.Cell]) -> dict[str, Finding] | None:
            return None if turn.cell.kind == left_out or turn.number > runs else found(turn.cell.kind)

        return SCENARIO.aims(rehearsed(SCENARIO, options, measure))

    return judged


def everywhere(ethernet: float, wifi: float) -> Callable[[], Sequence[Aim]]:
    return steered({kind: scaled(loads, ethernet, wifi) for kind, loads in SOUND.items()})


GOOD = Outage(before=28, during=19, still=0.6, back=3, after=28)


def in_outages(
    runs: int = RUNS,
    *,
    unsteered: int = RUNS,
    planned: int = RUNS,
    mode: str = "active-standby",
    load: str = "full",
    once: Mapping[str, Any] | None = None,
    **change: Any,
) -> Sequence[Aim]:
    """Judge *runs* runs of an outage under a mode, changed by *change*, and *unsteered* runs without a mode.

    *once* changes only the last run.
    """

    def measure(turn: Turn[outages.Cell]) -> Outage | None:
        if turn.cell.mode == outages.NONE:
            return GOOD if turn.number <= unsteered else None
        last = once if once and turn.number == runs else {}
        return replace(GOOD, **change, **last) if turn.number <= runs else None

    options = {"part": "outages", "mode": f"none,{mode}", "fault": "silent", "outage": "8", "load": load}
    return SCENARIO.aims(rehearsed(SCENARIO, {**options, "runs": str(planned)}, measure))


def outage(runs: int = RUNS, **change: Any) -> Callable[[], Sequence[Aim]]:
    return lambda: in_outages(runs, **change)


STEERING = Judge(
    lambda: [*steered()(), *in_outages(), *in_outages(load="upload")],
    {
        "modes: dead throttler": steered(UNSTEERED),
        "modes: the other path is preferred": steered(
            {
                ACTIVE: (between(WARM, RESTORED, 0, 100), between(WARM + 0.5, RESTORED, 30, 0)),
                ORDER: slow_origin(15, 0),
                **{kind: SOUND[kind][::-1] for kind in BALANCING},
            }
        ),
        "modes: Ethernet is unused": everywhere(0, 1),
        "modes: Wi-Fi is unused": everywhere(1, 0),
        "modes: plain TCP over Ethernet": steered({kind: steady(100, 0) for kind in SOUND}),
        "modes: emulator off": everywhere(9, 9),
        "modes: nothing arrives": everywhere(0, 0),
        "modes: the standby is late": steered({ACTIVE: taken_over(late=1.5)}),
        "modes: it never takes over": steered({ACTIVE: (constant(0), between(WARM, RESTORED, 0, 30))}),
        "modes: the active path is never used again": steered({ACTIVE: taken_over(back=AFTER)}),
        "modes: the standby carries a little before": steered({ACTIVE: (constant(1), SOUND[ACTIVE][1])}),
        "modes: the second path stays in use": steered({ORDER: slow_origin(1, 14)}),
        "modes: the first path gets less than the origin sends": steered({ORDER: slow_origin(0, 10)}),
        "modes: paced downloads get less than the origin sends": steered(
            {k: scaled(SOUND[k], 0.8, 0.8) for k in PACED}
        ),
        "modes: shares swing for longer than ten seconds": steered(
            {kind: (between(0, END / 2, 0, 2), between(0, END / 2, 2, 0)) for kind in BALANCING}
        ),
        **{f"modes: no run of {kind}": steered(left_out=kind) for kind in SOUND},
        "modes: a run of each is missing": steered(runs=RUNS - 1),
        "modes: nothing measured": steered(runs=0),
        "outages: dead throttler, second path unused": outage(during=0, still=8),
        "outages: slower than without a mode": outage(during=15),
        "outages: two runs leave open whether it is slower": outage(once={"during": 15}),
        "outages: in a single run of each": outage(1, unsteered=1, planned=1, during=15),
        "outages: an upload is slower than without a mode": outage(load="upload", during=15),
        "outages: the application stands still": outage(still=1.4),
        "outages: the standby carries as well": outage(before=47),
        "outages: an upload has both paths": outage(load="upload", before=47),
        "outages: one in an order does": outage(load="upload", before=47, mode="priority-based"),
        "outages: a run is missing": outage(RUNS - 1),
        "outages: one without a mode is": outage(unsteered=RUNS - 1),
        "outages: nothing measured": outage(0, unsteered=0),
        "outages: no upload measured": outage(0, unsteered=0, load="upload"),
    },
)
