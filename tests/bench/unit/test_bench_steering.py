# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment steering: its plan, and how samples are judged for modes and outages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from mutants import Load, constant, rehearsed, series
from mutants_of_steering import END, GOOD, SOUND, in_outages, overflowed

from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.steering import SCENARIO
from mptcp_bench.experiments.steering_modes import WARM, Download, Finding
from mptcp_bench.experiments.steering_outages import APPLICATION, MODES, Cell, Watched, outage
from mptcp_lab.testbed.recorder import Sample

FAILED, OUTAGE, AFTER = 8.0, 8.0, 12.0
STANDBY, ACTIVE = SOUND["active-standby"]


def watched(still: float = 0.5, back: float = 3.0, flips: Sequence[float] = (8.7, 19.5)) -> Watched:
    """Return a transfer whose application stalls for *still* seconds and whose path is back after *back* seconds."""
    lost = other = application = 0.0
    samples = []
    flags = []
    backup = False
    for tick in range(round(10 * (FAILED + OUTAGE + AFTER)) + 1):
        time = tick / 10
        samples.append(Sample(time, {"eth0": int(lost), "wlan0": int(other), APPLICATION: int(application)}))
        backup ^= any(abs(time - each) < 0.01 for each in flips)
        flags.append((time, {"ethernet": backup, "wifi": not backup}))
        first = time < FAILED or time >= FAILED + OUTAGE + back
        step = 0.1 * 1e6 / 8
        lost += 30 * step if first else 0
        other += 0 if first else 20 * step
        application += 0 if FAILED <= time < FAILED + still else (30 if first else 20) * step
    return Watched(tuple(samples), tuple(flags), FAILED, FAILED + OUTAGE, "eth0")


def test_what_is_read_from_samples() -> None:
    found = outage(watched())
    assert found.before == pytest.approx(30, rel=0.01)
    assert found.during == pytest.approx(20, rel=0.01)
    assert found.still == pytest.approx(0.5, abs=0.11)
    assert found.back == pytest.approx(3.0, abs=0.11)
    assert found.flips == 2
    assert outage(watched(flips=(1.0, 2.0, 3.0, 8.7))).flips == 1, "those before the failure do not count"
    assert outage(watched(back=100)).back == math.inf


def test_a_transfer_of_nothing_is_not_compared() -> None:
    there = watched()
    nothing = tuple(Sample(each.time, {**each.octets, APPLICATION: 0}) for each in there.samples)
    with pytest.raises(ValueError, match="the application had nothing before the failure"):
        outage(replace(there, samples=nothing))


def test_a_burst_on_the_lost_path_is_no_return() -> None:
    before = watched()
    bumped = [
        Sample(each.time, {**each.octets, "eth0": each.octets["eth0"] + (400_000 if each.time >= 17 else 0)})
        for each in before.samples
    ]
    assert outage(replace(before, samples=tuple(bumped))).back == pytest.approx(3.0, abs=0.11)


def test_a_mode_without_an_order_may_stand_still_for_as_long_as_without_a_mode() -> None:
    options = {"part": "outages", "mode": "none,smallest-delay", "fault": "silent", "outage": "8", "load": "full"}

    def missed_if(still: float) -> tuple[str, ...]:
        """Return the missed aims if the mode stands still for 1.4 s, and the kernel without a mode *still* seconds."""
        found = {"none": replace(GOOD, still=still), "smallest-delay": replace(GOOD, still=1.4)}
        return missed(SCENARIO.aims(rehearsed(SCENARIO, {**options, "runs": "1"}, lambda turn: found[turn.cell.mode])))

    assert missed_if(0.6)
    assert not missed_if(1.4)


@pytest.mark.parametrize(
    ("mode", "load", "alone"),
    [
        ("active-standby", "full", True),
        ("active-standby", "paced", True),
        ("active-standby", "upload", True),
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
    assert all(aim.wanted for aim in in_outages())


def test_the_table_of_outages_shows_what_never_came_back() -> None:
    options = {"part": "outages", "mode": "none,active-standby", "fault": "silent", "outage": "8", "load": "full"}
    found = rehearsed(
        SCENARIO, {**options, "runs": "2"}, lambda turn: replace(GOOD, back=math.inf) if turn.number == 2 else GOOD
    )
    [table, *_] = SCENARIO.findings(found.turns, found.runs).tables
    assert [list(column.cells) for column in table.columns][-2:] == [
        ["never in 1 of 2", "never in 1 of 2"],
        ["", "[green]2[/]"],
    ]


def findings(ethernet: Load, wifi: Load, kind: str = "active-standby") -> dict[str, float]:
    samples = tuple(series({"eth0": ethernet, "wlan0": wifi}, END))
    return Download(samples, WARM).findings(kind)


def test_a_mode_is_judged_by_when_its_standby_takes_over_and_gives_back() -> None:
    assert findings(STANDBY, ACTIVE) == {
        "standby's share before": 0,
        "taken over after s": pytest.approx(0.6),
        "back after s": pytest.approx(1.1),
        "standby's share after": 0,
    }
    nothing = findings(constant(0), constant(0))
    assert (nothing["taken over after s"], nothing["back after s"]) == (math.inf, math.inf)
    with pytest.raises(ValueError, match="no two samples between"):
        Download(tuple(series({"eth0": STANDBY, "wlan0": ACTIVE}, 1)), WARM).findings("priority-based")


def test_modes_are_shown_by_means() -> None:
    found = findings(constant(60), constant(40), "no rule")
    results = rehearsed(
        SCENARIO,
        {"part": "modes", "rtt": "20/20", "kind": "no rule", "runs": "2"},
        lambda turn: {what: Finding(value, WARM) for what, value in found.items()},
    )
    [table] = SCENARIO.findings(results.turns, results.runs).tables
    assert [list(column.cells) for column in table.columns] == [
        ["20/20", ""], ["no rule", "no rule"], ["Ethernet's share", "Mbit/s"], ["0.600 ± 0.000", "100.000 ± 0.000"],
    ]  # fmt: skip


def cells(quick: bool = False, **options: str) -> Sequence[Any]:
    return SCENARIO.cells(SCENARIO.chosen({"part": "outages", **options}, quick))


def test_outages_are_chosen_and_mistakes_refused() -> None:
    assert len(cells()) == len(MODES) * 3 * 3 * 3
    assert {each.mode for each in cells(quick=True)} == {"none", "active-standby", "priority-based"}
    (one,) = cells(mode="priority-based", fault="link", outage="2", load="upload")
    assert one == Cell("priority-based", "link", 2, "upload")
    assert one.rule == "[{name: steered, steer: {mode: priority-based, order: [ethernet, wifi]}}]"
    assert one.unsteered.rule == "[]"
    for name, wrong in {"mode": "redundant", "outage": "soon", "lost": "both", "links": "15/0", "demand": "-1"}.items():
        with pytest.raises(OptionError, match=f"^--set {name}={wrong}: allowed"):
            cells(False, **{name: wrong})


@pytest.mark.parametrize(
    ("outcome_of", "wrong"),
    [
        ((14.6, 15, 1, 2), []),
        ((2.5, 27, 1, 2), ["first path", "excess, points"]),
        ((14.6, 15, 4, 2), ["opened s"]),
        ((14.6, 0, 1, 2), ["opened s"]),
        ((14.6, 15, 1, 9), ["closed s"]),
    ],
)
def test_where_the_overflow_went(outcome_of: tuple[float, float, float, float], wrong: list[str]) -> None:
    assert [each.split(": ")[1] for each in missed(overflowed(*outcome_of))] == wrong
