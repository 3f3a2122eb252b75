# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiments scale and emulation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from mutants import Judge

from mptcp_bench.experiments import emulation_judging, scale_judging
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.emulation_judging import Distribution
from mptcp_bench.experiments.scale_judging import Held, ProcessorShares, Rig, Stop
from mptcp_lab.emulation.model import Direction, EmulatedPath, UniformLoss

REACTIONS, ASKED = 200, 100
NONE = (1.0,) * REACTIONS
QUIET = ProcessorShares(daemon=0.01, proxy=0.5, client=0.05, origin=0.25, machine=0.9, trickled=1.0)
FEW, MANY = 1_000, 10_000


def rig(tunnels: int) -> Rig:
    return Rig(tunnels, set_up=tunnels / 300, two_subflows=tunnels, alone=QUIET)


STOPPED = ("idle", "just started", "as a reload begins", "in mid-reload")


def held(tunnels: int) -> Held:
    """Return the readings of a throttler that meets every aim."""
    return Held(
        tunnels=tunnels,
        shown=tunnels,
        half=tunnels / 5000,
        reload=tunnels / 2500,
        released=0.5,
        longest=0.02,
        late=0,
        silence=0.1,
        commands=(0.3, 0.3, 0.9),
        answers=(0.1, 0.1, 0.2),
        busy=replace(QUIET, daemon=0.2),
        reactions=(1.5,) * REACTIONS,
        asked=(1.6,) * ASKED,
        stops=tuple(Stop(when, 0.5, ()) for when in STOPPED),
        resident=100.0,
        proportional=90.0,
        kept_limits=0,
        ended=0,
    )


def scaled(
    change: dict[str, Any] | None = None,
    *,
    crowd: dict[str, Any] | None = None,
    alone: dict[str, Any] | None = None,
    none: Sequence[float] = NONE,
    soft: Sequence[float] = (0.99,),
) -> Callable[[], Sequence[Aim]]:
    """Judge 1,000 and 10,000 tunnels, each with the given readings."""

    def judged() -> Sequence[Aim]:
        rigs = [replace(rig(n), alone=replace(QUIET, **(alone or {})), **(crowd or {})) for n in (FEW, MANY)]
        found = [replace(held(n), **(change or {})) for n in (FEW, MANY)]
        aims = scale_judging.judge(rigs, none, found, REACTIONS, ASKED)
        return [*aims, *scale_judging.judge_soft(5_000, (1.0,), soft)]

    return judged


def dead() -> Sequence[Aim]:
    rigs = [replace(rig(n), alone=replace(QUIET, daemon=math.nan)) for n in (FEW, MANY)]
    return scale_judging.judge(rigs, (), [scale_judging.nothing(n) for n in (FEW, MANY)], REACTIONS, ASKED)


def grown() -> Sequence[Aim]:
    few, many = replace(held(FEW), reload=0.1), replace(held(MANY), reload=1.3)
    return scale_judging.judge([rig(FEW), rig(MANY)], NONE, [few, many], REACTIONS, ASKED)


WRONG = ("tc",)
SCALE = Judge(
    scaled(),
    {
        "dead throttler": dead,
        "the cap never comes": scaled({"reload": math.inf, "half": math.inf, "reactions": (), "asked": ()}),
        "it comes late": scaled({"reload": 5.1}),
        "caps are never lifted": scaled({"released": math.inf}),
        "late in proportion": grown,
        "the caps of joins never come": scaled({"reactions": ()}),
        "of one join it does not": scaled({"reactions": (1.5,) * (REACTIONS - 1)}),
        "nor while status is asked": scaled({"asked": (1.5,) * (ASKED - 1)}),
        "joins wait": scaled({"reactions": (1.5,) * 197 + (2.1,) * 3}),
        "they do while status is asked": scaled({"asked": (2.1,) * ASKED}),
        "joins wait though none is held": scaled(none=(5.1,) * REACTIONS),
        "no reaction with none held": scaled(none=()),
        "status is empty": scaled({"shown": 0}),
        "status has no answer": scaled({"commands": ()}),
        "its socket takes too long": scaled({"answers": (0.6, math.inf, math.inf)}),
        "the event loop stands": scaled({"longest": 0.051}),
        "its gauge stands": scaled({"longest": 0.0}),
        "it has none": scaled({"longest": None, "late": None}),
        "from outside it is silent": scaled({"silence": 0.6}),
        "too busy": scaled({"busy": replace(QUIET, daemon=0.26)}),
        "too busy with nothing capped": scaled(alone={"daemon": 0.06}),
        "second path unused: no second subflow": scaled(crowd={"two_subflows": 0}),
        "the crowd is slow": scaled(crowd={"set_up": 91.0}),
        "the tunnels do not trickle": scaled(alone={"trickled": 0.5}),
        "they do not under caps": scaled({"busy": replace(QUIET, trickled=0.5)}),
        "tunnels end": scaled({"ended": 1}),
        "too large": scaled({"resident": 151.0}),
        "no memory at all: it is dead": scaled({"resident": 0.0}),
        "late stops": scaled({"stops": tuple(map(Stop, STOPPED, (3.1, 3.1, 3.1, math.inf), ((),) * 4))}),
        "something is left": scaled({"stops": tuple(Stop(when, 0.1, WRONG) for when in STOPPED)}),
        "a soft cap slows the other path down": scaled(soft=(0.9,)),
        "no soft cap was measured": scaled(soft=()),
        "nothing measured": lambda: scale_judging.judge((), NONE, (), REACTIONS, ASKED),
    },
    refused={
        "nothing measured": "no tunnels were held",
    },
)

RATE = 100_000_000
PATH = EmulatedPath("8 ms", Direction(RATE, 8_000, 0), Direction(RATE, 8_000, 0))
LOSS = UniformLoss(0.01)
COUNT = 20_000


@cache
def lost(share: float, seed: int = 1, bursts: int = 1) -> frozenset[int]:
    """Return which of ``COUNT`` packets are lost, in bursts of *bursts*."""
    first = Random(seed).sample(range(COUNT), round(share / bursts * COUNT))
    return frozenset((number + each) % COUNT for number in first for each in range(bursts))


def emulated(
    rtt: float = 16.0,
    spread: float = 0.3,
    *,
    loaded: float | None = None,
    share: float = 0.01,
    bursts: int = 1,
    swapped: bool = False,
    missing: int = 0,
    again: int = 1,
    other: int = 2,
    full: float = 1.0,
    directions: int = 4,
) -> Callable[[], Sequence[Aim]]:
    def judged() -> Sequence[Aim]:
        idle = Distribution(rtt, rtt + spread, rtt + 2 * spread, 300)
        busy = idle if loaded is None else Distribution(loaded, loaded + spread, loaded + 2 * spread, 300)
        gone = lost(share, bursts=bursts)
        arrived = [number for number in range(COUNT) if number not in gone]
        whole = list(range(20_000 - missing))
        if swapped:
            arrived[5], arrived[6] = arrived[6], arrived[5]
            whole[5], whole[6] = whole[6], whole[5]
        name = "uniform down"
        return [
            *emulation_judging.delays(PATH, idle, busy),
            *emulation_judging.order("8 ms down", whole, 20_000),
            *emulation_judging.losses(name, LOSS, arrived, COUNT),
            emulation_judging.repeats(name, sorted(gone), sorted(lost(share, again, bursts=bursts)), True),
            emulation_judging.repeats(name, sorted(gone), sorted(lost(share, other, bursts=bursts)), False),
            *emulation_judging.capacity({f"path {number}": full for number in range(directions)}),
        ]

    return judged


EMULATION = Judge(
    emulated(),
    {
        "emulator off": emulated(0.1, 0.05, share=0.0, full=9.0),
        "delays vary": emulated(spread=3.0),
        "paths are too long": emulated(rtt=17.0),
        "load makes them longer": emulated(loaded=20.0),
        "it loses twice as much": emulated(share=0.02),
        "it loses in bursts": emulated(bursts=2),
        "out of order": emulated(swapped=True),
        "it loses where it should not": emulated(missing=1),
        "it invents packets": emulated(missing=-1),
        "the same seed loses others": emulated(again=3),
        "another seed loses the same": emulated(other=1),
        "too slow": emulated(full=0.9),
        "links are not shaped": emulated(full=1.03),
        "nothing arrives": emulated(share=1.0, full=0.0),
        "nothing measured": emulated(directions=0),
    },
)
