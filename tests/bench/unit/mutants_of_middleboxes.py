# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result and mutants of the experiment middleboxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mutants import VerdictCases, simulated_results

from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.findings import Aim
from mptcp_bench.experiments.middleboxes import REQUEST_BEHAVIOURS, SCENARIO, SURVIVED, Download, StatusCheck

TIMES = [0.25 * step for step in range(17)]
BOTH, FIRST = {"ethernet": 2_000_000, "wifi": 6_000_000}, {"ethernet": 8_000_000, "wifi": 1_000}


def checks(kernel: int, status: int, capped: int) -> list[StatusCheck]:
    return [StatusCheck(time, kernel, status, capped) for time in TIMES]


def sound(turn: Turn[str]) -> Download:
    changed = int(turn.cell != "nothing" and (turn.variant != "wifi" or turn.cell not in REQUEST_BEHAVIOURS))
    if turn.cell in SURVIVED:
        return Download(True, 4.0, 0, BOTH, checks(2, 2, 1), changed)
    return Download(True, 4.0, 1, FIRST, checks(1, 1, 0), changed)


def judged(keep: Callable[[Turn[str]], bool] = lambda turn: True, **change: Any) -> Callable[[], Sequence[Aim]]:
    def measure(turn: Turn[str]) -> Download | None:
        return replace(sound(turn), **change) if keep(turn) else None

    return lambda: SCENARIO.aims(simulated_results(SCENARIO, {}, measure))


MIDDLEBOXES = VerdictCases(
    judged(),
    {
        "downloads are cut short or changed": judged(whole=False),
        "the second path is not used": judged(carried=FIRST),
        "all falls back": judged(fallbacks=1),
        "plain TCP": judged(checks=checks(0, 0, 0)),
        "dead throttler": judged(checks=checks(2, 0, 0)),
        "a connection that fell back has two subflows in the status": judged(checks=checks(1, 2, 0)),
        "the tracker is blinded after a second": judged(
            checks=[StatusCheck(t, 2, 2 if t < 1 else 1, 0) for t in TIMES]
        ),
        "a client with one path is capped": judged(checks=checks(1, 1, 1)),
        "the emulation has no middlebox": judged(changed=0),
        "no check of the status": judged(checks=[]),
        "nothing measured": judged(lambda turn: False),
        "one place left out": judged(lambda turn: turn.variant != "wifi"),
    },
)
