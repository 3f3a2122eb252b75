# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment steering: its plan, and how samples are judged for modes and outages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from mutants import constant, rehearsed, series
from mutants_of_steering import END, GOOD, SOUND, in_outages

from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.steering import SCENARIO
from mptcp_bench.experiments.steering_modes import WARM, Download
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


def test_a_transfer_of_nothing_is_not_compared() -> None:
    there = watched()
    nothing = tuple(Sample(each.time, {**each.octets, APPLICATION: 0}) for each in there.samples)
    with pytest.raises(ValueError, match="the application had nothing before the failure"):
        outage(replace(there, samples=nothing))


@pytest.mark.parametrize(("still", "is_missed"), [(0.6, True), (1.4, False)])
def test_a_mode_without_an_order_may_stand_still_for_as_long_as_without_a_mode(still: float, is_missed: bool) -> None:
    options = {"part": "outages", "mode": "none,smallest-delay", "fault": "silent", "outage": "8", "load": "full"}
    found = {"none": replace(GOOD, still=still), "smallest-delay": replace(GOOD, still=1.4)}
    results = rehearsed(SCENARIO, {**options, "runs": "1"}, lambda turn: found[turn.cell.mode])
    assert bool(missed(SCENARIO.aims(results))) is is_missed


@pytest.mark.parametrize(
    ("mode", "load", "alone"),
    [
        ("active-standby", "full", True),
        ("priority-based", "upload", True),
        ("priority-based", "full", False),
        ("load-balancing", "upload", False),
    ],
)
def test_only_the_first_path_is_used_before_the_failure_where_the_mode_says_so(
    mode: str, load: str, alone: bool
) -> None:
    found = missed(in_outages(mode=mode, load=load, once={"before": 49.2}))
    assert len([each for each in found if "by the first path alone" in each]) == alone


def test_one_run_has_a_bound_and_several_are_compared_with_those_without_a_mode() -> None:
    [slower] = missed(in_outages(once={"during": 0.79 * GOOD.during}))
    assert "Mbit/s, × without a mode, lower bound" in slower, "0.895 by the mean"
    assert not missed(in_outages(1, unsteered=1, planned=1, during=0.86 * GOOD.during))
    [slower] = missed(in_outages(1, unsteered=1, planned=1, during=0.84 * GOOD.during))
    assert "Mbit/s: " in slower
    assert not [aim for aim in in_outages(2, unsteered=0) if "Mbit/s, ×" in aim.what], "nothing to compare with"


def test_a_mode_is_judged_by_when_its_standby_takes_over_and_gives_back() -> None:
    def findings(ethernet: float | None = None, seconds: float = END) -> dict[str, float]:
        loads = SOUND["active-standby"] if ethernet is None else (constant(ethernet), constant(ethernet))
        samples = tuple(series(dict(zip(("eth0", "wlan0"), loads, strict=True)), seconds))
        return Download(samples, WARM).findings("active-standby")

    assert findings() == {
        "standby's share before": 0, "taken over after s": pytest.approx(0.6), "back after s": pytest.approx(1.1)
    }  # fmt: skip
    nothing = findings(0)
    assert (nothing["taken over after s"], nothing["back after s"]) == (math.inf, math.inf)
    with pytest.raises(ValueError, match="no two samples between"):
        findings(seconds=1)


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
