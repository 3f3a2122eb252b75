# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result and mutants of the experiment middleboxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mutants import Judge, rehearsed

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.middleboxes import OF_THE_REQUEST, PLACES, SCENARIO, SURVIVED, Download, Look

TIMES = [0.25 * step for step in range(17)]
BOTH = {"ethernet": 2_000_000, "wifi": 6_000_000}
ALONE = {"ethernet": 8_000_000, "wifi": 1_000}


def looks(kernel: int, status: int, capped: int) -> list[Look]:
    return [Look(time, kernel, status, capped) for time in TIMES]


def sound(turn: Turn[str]) -> Download:
    behaviour, place = turn.cell, turn.variant
    boxed = () if behaviour == "nothing" else PLACES[place]
    changed = {
        path: 1 if path in boxed and (path == "ethernet" or behaviour not in OF_THE_REQUEST) else 0 for path in BOTH
    }
    if behaviour in SURVIVED:
        return Download(behaviour, place, True, 4.0, 0, 1, BOTH, looks(2, 2, 1), changed)
    return Download(behaviour, place, True, 4.0, 1, 0, ALONE, looks(1, 1, 0), changed)


def judged(keep: Callable[[Turn[str]], bool] = lambda turn: True, **change: Any) -> Callable[[], Sequence[Aim]]:
    def aims() -> Sequence[Aim]:
        found = rehearsed(SCENARIO, {}, lambda turn: replace(sound(turn), **change) if keep(turn) else None)
        return SCENARIO.aims(found)

    return aims


MIDDLEBOXES = Judge(
    judged(),
    {
        "downloads are cut short or changed": judged(whole=False),
        "the second path is not used": judged(carried=ALONE),
        "all falls back": judged(fallbacks=1),
        "plain TCP": judged(looks=looks(0, 0, 0)),
        "dead throttler": judged(looks=looks(2, 0, 0)),
        "a connection that fell back is said to have two subflows": judged(looks=looks(1, 2, 0)),
        "the tracker is blinded after a second": judged(
            looks=[Look(time, 2, 2 if time < 1 else 1, 0) for time in TIMES]
        ),
        "a client with one path is capped": judged(looks=looks(1, 1, 1)),
        "the emulation has no box": judged(changed=dict.fromkeys(BOTH, 0)),
        "the box of one path is missing": judged(changed={"ethernet": 1, "wifi": 0}),
        "nobody looked": judged(looks=[]),
        "nothing measured": judged(lambda turn: False),
        "one place left out": judged(lambda turn: turn.variant != "wifi"),
    },
)
