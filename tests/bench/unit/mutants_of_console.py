# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment console, and its mutants."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.console_load_judging import (
    AFTER,
    BEFORE,
    HUNG,
    KILLED,
    PHASES,
    WITH,
    Ended,
    Phase,
    Plan,
    Pushed,
    Reloads,
    Top,
    UnderLoad,
    judge,
)

TUNNELS, BROWSERS, RELOADS, SCRAPES, PAGES, REFRESHES = 10_000, 10, 10, 12, 5, 10
PLAN = Plan(TUNNELS, 6, BROWSERS, RELOADS, PAGES, REFRESHES)
LAG = 0.02
BOUND = 1.25 * LAG + 0.005
SOUND = Phase((0.012, LAG, 0.011), 0, TUNNELS, TUNNELS, 0.97, 1.7)
SOUND_RELOADS = Reloads((0.03, 0.031, 0.06, 0.028, 0.03, 0.033, 0.029, 0.03, 0.035, 0.03), 1)
RELOAD_BOUND = 1.25 * 0.03 + 0.005
PUSHED = Pushed((3_000.0,) * BROWSERS, (1.1,) * BROWSERS)


def load(**change: Any) -> UnderLoad:
    sound = UnderLoad(
        tunnels=TUNNELS,
        two_subflows=TUNNELS,
        phases=dict.fromkeys(PHASES, SOUND),
        reloads=dict.fromkeys((BEFORE, WITH), SOUND_RELOADS),
        pushed=PUSHED,
        reloading=replace(PUSHED, octets=(12_000.0,) * BROWSERS),
        shown=(0.8,) * RELOADS,
        scrapes=(0.3,) * SCRAPES,
        rows=(0.4,) * 30,
        largest=40_000.0,
        pages=(1.5,) * PAGES,
        top=Top(1.1, (1.2,) * REFRESHES),
        resident=70.0,
        ended=Ended(0.3, 0),
        tunnels_ended=0,
    )
    return replace(sound, **change)


def judged(**change: Any) -> Callable[[], Sequence[Aim]]:
    return lambda: judge(load(**change), PLAN)


def in_phases(*names: str, **change: Any) -> Callable[[], Sequence[Aim]]:
    """Judge a sound result with changes in these phases."""
    changed = {name: replace(SOUND, **change) for name in names}
    return judged(phases=dict.fromkeys(PHASES, SOUND) | changed)


def in_reloads(*names: str, **change: Any) -> Callable[[], Sequence[Aim]]:
    """Judge a sound result with changes in the reloads of these phases."""
    changed = {name: replace(SOUND_RELOADS, **change) for name in names}
    return judged(reloads=dict.fromkeys((BEFORE, WITH), SOUND_RELOADS) | changed)


def one(values: Sequence[float], value: float) -> tuple[float, ...]:
    """Return *values* with the first one replaced by *value*."""
    return (value, *values[1:])


CONSOLE = Judge(
    judged(),
    {
        "the console holds the loop up": in_phases(WITH, lags=(0.012, BOUND + 0.001, 0.011)),
        "it does so in most reloads": in_reloads(WITH, lags=(0.01,) * 4 + (RELOAD_BOUND + 0.001,) * 6),
        "in reloads the loop is late oftener beside it": in_reloads(WITH, late=7),
        "nobody tells of the loop in reloads with it": in_reloads(WITH, lags=(math.inf,) * RELOADS, late=None),
        "nor in those without it": in_reloads(BEFORE, lags=(math.inf,) * RELOADS, late=None),
        "its gauge stands in reloads": in_reloads(BEFORE, WITH, lags=(0.0,) * RELOADS),
        "no reload without a console to compare with": judged(reloads={WITH: SOUND_RELOADS}),
        "one that hangs does": in_phases(HUNG, lags=(BOUND + 0.001,)),
        "one that was killed leaves something that does": in_phases(KILLED, lags=(BOUND + 0.001,)),
        "the loop is held up anyway": in_phases(BEFORE, lags=(0.051,)),
        "it stays so after the console's end": in_phases(AFTER, lags=(0.051,)),
        "dead throttler: nobody tells of the loop": in_phases(*PHASES, lags=(math.inf,), late=None),
        "it dies when the console does": in_phases(KILLED, lags=(math.inf,), late=None, fewest=0),
        "its gauge stands": in_phases(*PHASES, lags=(0.0,)),
        "one cap is gone for a moment": in_phases(*PHASES, fewest=TUNNELS - 1),
        "the wrong path is capped as well": in_phases(*PHASES, most=2 * TUNNELS),
        "the tunnels do not trickle": in_phases(*PHASES, trickled=0.5),
        "a phase is missing": judged(phases={BEFORE: SOUND, WITH: SOUND}),
        "plain TCP, second path unused": judged(two_subflows=0),
        "tunnels end": judged(tunnels_ended=1),
        "a browser gets no stream": judged(pushed=Pushed(one(PUSHED.octets, 0.0), one(PUSHED.updates, 0.0))),
        "updates come late": judged(pushed=replace(PUSHED, updates=one(PUSHED.updates, 0.4))),
        "full lists are pushed": judged(pushed=replace(PUSHED, octets=one(PUSHED.octets, 4e6))),
        "full lists are pushed in a reload": judged(reloading=replace(PUSHED, octets=one(PUSHED.octets, 4e6))),
        "nothing came in a reload": judged(reloading=Pushed((), ()), shown=()),
        "caps are shown late": judged(shown=(1.1,) * RELOADS),
        "once they are too late": judged(shown=one((0.8,) * RELOADS, 1.1)),
        "once they are not shown": judged(shown=one((0.8,) * RELOADS, math.inf)),
        "a scrape lacks the throttler": judged(scrapes=one((0.3,) * SCRAPES, math.inf)),
        "scrapes are slow": judged(scrapes=(0.6,) * SCRAPES),
        "none came": judged(scrapes=()),
        "the table is slow over HTTP": judged(rows=(3.1,) * 30),
        "the table has every connection": judged(largest=9e6),
        "the table is empty": judged(largest=80.0),
        "the table never stands in Chromium": judged(pages=(math.inf,) * PAGES),
        "Chromium failed": judged(pages=()),
        "top never shows a table": judged(top=Top(math.inf, ())),
        "top stands still for a while": judged(top=Top(1.1, one((1.2,) * REFRESHES, 3.1))),
        "the console is too large": judged(resident=101.0),
        "the console is dead": judged(resident=1.0),
        "the console does not end": judged(ended=Ended(30.0, -9)),
        "nothing measured": judged(tunnels=0),
    },
    refused={
        "nothing measured": "no tunnels were held",
    },
)
