# SPDX-License-Identifier: GPL-2.0-or-later
"""A sound result of the experiment pages, and its mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache

from mutants import Judge, Load, constant, rehearsed, series

from mptcp_bench.experiments.aims import Aim
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.pages import NEW, OURS, SCENARIO
from mptcp_bench.experiments.pages_cells import Cell
from mptcp_bench.experiments.pages_judging import Batch, Download, judge

OPTIONS = {"size": "100k", "client": "two,lone", "at_once": "1", "runs": "2"}
"""A client with two paths, and a client with one path."""


@cache
def batch(cell: Cell, capped: Load, other: Load, seconds: float) -> Batch:
    """Return a batch that takes *seconds*. The paths carry *capped* and *other*, from 0.1 s after the first sample."""
    samples = series({"eth0": capped, "wlan0": other}, seconds + 1, 0.02)
    return judge(samples, cell, [Download(0.1, 0.12, 0.3), Download(0.2, 0.22, 0.1 + seconds)], joins=150)


Rates = tuple[Load, Load, float]
"""Rates of both paths in Mbit/s, and the batch's duration in seconds."""
KEPT: Rates = (constant(5), constant(20), 4.0)
FREE: Rates = (constant(45), constant(15), 1.5)
STATIC: Rates = (constant(5), constant(10), 8.0)
FAST = (0.1, 0.12, 0.1)
"""Seconds of downloads by a client with one path: mean and longest of its first ones, and mean of the later ones."""
SOUND: dict[str, Rates] = {"none": FREE, NEW: KEPT, OURS: KEPT, "static": STATIC}


def pages(
    changed: Mapping[str, Rates] | None = None, *, first: Sequence[float] = FAST, known: Sequence[float] = FAST,
    runs: int = 2,
) -> Callable[[], Sequence[Aim]]:  # fmt: skip
    """Judge batches, with the rates in *changed* for some variants.

    *first* and *known* are the times of a client with one path, as in ``FAST``, when it is new and when it is known.
    """

    def measure(turn: Turn[Cell]) -> Batch | None:
        if turn.number > runs:
            return None
        found = batch(turn.cell, *{**SOUND, **(changed or {})}[turn.variant])
        if not turn.cell.lone:
            return found
        times = first if turn.variant == NEW else known if turn.variant == OURS else FAST
        return replace(found, first=times[0], first_longest=times[1], later=times[2])

    return lambda: SCENARIO.aims(rehearsed(SCENARIO, OPTIONS, measure))


def ours(capped: Load, other: Load = KEPT[1], seconds: float = 4.0) -> Callable[[], Sequence[Aim]]:
    return pages({OURS: (capped, other, seconds)})


PAGES = Judge(
    pages(),
    {
        "dead throttler": pages({NEW: FREE, OURS: FREE}),
        "the wrong path is capped": ours(constant(45), constant(5), 3.0),
        "fallback to TCP": pages(dict.fromkeys((NEW, OURS), (constant(45), constant(0), 4.0))),
        "the cap never comes for a new client": pages({NEW: FREE}),
        "it comes a second late": ours(lambda t: 50 if t < 1.1 else 5),
        "a burst that the rest makes good": ours(lambda t: 20 if t < 0.6 else 2),
        "second path unused": ours(constant(5), constant(0), 24.0),
        "both paths are capped": ours(constant(5), constant(5), 12.0),
        "a client with one path waits at first": pages(first=(0.5, 0.7, 0.1)),
        "it is never released": pages(first=(0.3, 0.3, 0.3), known=(0.3, 0.3, 0.3)),
        "a batch is missing": pages(runs=1),
        "nothing measured": pages(runs=0),
    },
)
