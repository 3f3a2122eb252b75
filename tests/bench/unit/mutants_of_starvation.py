# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment starvation, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mutants import Judge, constant, rehearsed, series

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.starvation import SCENARIO, Carried, Layout, judge

OPTIONS = {"layout": "families", "runs": "2"}
"""Two paths of 30 and 20 Mbit/s. The second one has a cap of 3 Mbit/s."""


def carried(
    capped: float = 3.0, other: float = 30.0, *, runs: int = 2, last: float | None = None
) -> Callable[[], Sequence[Aim]]:
    """Judge runs in which path *b* carries *capped* Mbit/s, the other one *other*, in the last run *last*."""

    def measure(turn: Turn[Layout]) -> Mapping[str, Carried] | None:
        if turn.number > runs:
            return None
        each = other if last is None or turn.number < runs else last
        return judge(series({"eth0": constant(each), "wlan0": constant(capped)}, 10), turn.cell, 1.0)

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, measure))


STARVATION = Judge(
    carried(),
    {
        "dead throttler": carried(20),
        "the wrong path is capped": carried(20, 3),
        "the capped path starves": carried(2.8),
        "the other does in one of two runs": carried(last=24),
        "second path unused": carried(other=0),
        "emulator off": carried(other=1000),
        "fallback to TCP": carried(20, 0),
        "nothing measured": carried(runs=0),
    },
)
