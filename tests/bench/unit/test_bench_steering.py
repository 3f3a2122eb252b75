# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment steering: its plan, and how samples are judged for modes and outages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from mutants import rehearsed
from mutants_of_steering import GOOD, in_outages

from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.steering import SCENARIO
from mptcp_bench.experiments.steering_outages import APPLICATION, MODES, Cell, Watched, outage
from mptcp_lab.testbed.recorder import Sample

FAILED, OUTAGE, AFTER = 8.0, 8.0, 12.0


def watched(still: float = 0.5, back: float = 3.0, burst: int = 0) -> Watched:
    """Return a transfer whose application stalls for *still* seconds and whose path is back after *back* seconds.

    *burst*: bytes that the lost path carries a second after the failure's end.
    """
    lost = other = application = 0.0
    samples = []
    for tick in range(round(10 * (FAILED + OUTAGE + AFTER)) + 1):
        time = tick / 10
        seen = {"eth0": int(lost) + burst * (time >= 17), "wlan0": int(other), APPLICATION: int(application)}
        samples.append(Sample(time, seen))
        first = time < FAILED or time >= FAILED + OUTAGE + back
        step = 0.1 * 1e6 / 8
        lost += 30 * step if first else 0
        other += 0 if first else 20 * step
        application += 0 if FAILED <= time < FAILED + still else (30 if first else 20) * step
    return Watched(tuple(samples), FAILED, FAILED + OUTAGE)


def test_what_is_read_from_samples() -> None:
    found = outage(watched())
    assert (found.before, found.during) == pytest.approx((30, 20), rel=0.01)
    assert (found.still, found.back) == pytest.approx((0.5, 3.0), abs=0.11)
    assert outage(watched(back=100)).back == math.inf
    assert outage(watched(burst=400_000)).back == pytest.approx(3.0, abs=0.11), "a burst is no return"


@pytest.mark.parametrize(("still", "is_missed"), [(0.6, True), (1.4, False)])
def test_a_mode_without_an_order_may_stand_still_for_as_long_as_without_a_mode(still: float, is_missed: bool) -> None:
    options = {"part": "outages", "mode": "none,smallest-delay", "fault": "silent", "outage": "8", "load": "full"}
    found = {"none": replace(GOOD, still=still), "smallest-delay": replace(GOOD, still=1.4)}
    results = rehearsed(SCENARIO, {**options, "runs": "1"}, lambda turn: found[turn.cell.mode])
    assert bool(missed(SCENARIO.aims(results))) is is_missed


def test_one_run_has_a_bound_and_several_are_compared_with_those_without_a_mode() -> None:
    [slower] = missed(in_outages(once={"during": 0.79 * GOOD.during}))
    assert "Mbit/s, × without a mode, lower bound" in slower, "0.895 by the mean"
    assert not missed(in_outages(1, unsteered=1, planned=1, during=0.86 * GOOD.during))
    [slower] = missed(in_outages(1, unsteered=1, planned=1, during=0.84 * GOOD.during))
    assert "Mbit/s: " in slower
    assert not [aim for aim in in_outages(2, unsteered=0) if "Mbit/s, ×" in aim.what], "nothing to compare with"


def test_outages_are_combinations_of_the_options() -> None:
    def cells(quick: bool = False, **options: str) -> list[Cell]:
        found = SCENARIO.cells(SCENARIO.chosen({"part": "outages", **options}, quick))
        return [each for each in found if isinstance(each, Cell)]

    assert len(cells()) == len(MODES) * 3 * 3 * 3
    assert {each.mode for each in cells(quick=True)} == {"none", "active-standby", "priority-based"}
    [one] = cells(mode="priority-based", fault="link", outage="2", load="upload")
    assert one == Cell("priority-based", "link", 2, "upload")
    assert one.rule == "[{name: steered, steer: {mode: priority-based, order: [ethernet, wifi]}}]"
    assert one.unsteered.rule == "[]"
