# SPDX-License-Identifier: GPL-2.0-or-later
"""Sound results and mutants of the experiment scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge

from mptcp_bench.experiments import scale_judging
from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.scale_judging import Held, ProcessorShares, Rig, Stop

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
