# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment starvation, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mutants import Judge, constant, rehearsed, series

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.starvation import SCENARIO, Carried, Case, judge

OPTIONS = {"layout": "families", "runs": "2"}
"""Two paths of 30 and 20 Mbit/s. The second one has a cap of 3 Mbit/s."""


def carried(
    capped: float = 3.0, other: float = 30.0, *, runs: int = 2, last: float | None = None, links: bool = True
) -> Callable[[], Sequence[Aim]]:
    """Judge runs in which path *b* carries *capped* Mbit/s, the other one *other*, in the last run *last*."""

    def measure(turn: Turn[Case]) -> Mapping[str, Carried] | None:
        if turn.number > runs or (turn.cell.variant == "link" and not links):
            return None
        each = other if last is None or turn.number < runs else last
        samples = series({"a": constant(each), "b": constant(capped)}, 10)
        return judge(samples, turn.cell.layout, 1.0, 1.0)

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
        "no real links to compare with": carried(links=False),
        "nothing measured": carried(runs=0),
    },
)
