# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the experiment steering: its plan, and how samples are judged for modes and outages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from mutants import constant, late, series
from mutants_of_steering import END, SOUND, overflowed
from rich.console import Console

from mptcp_bench.experiments import steering
from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.steering_cells import MODES, NONE, Cell, cells
from mptcp_bench.experiments.steering_modes_judging import WARM, Measured, by_cell
from mptcp_bench.experiments.steering_modes_judging import table_of as modes_table
from mptcp_bench.experiments.steering_outages_judging import (
    APPLICATION,
    Outcome,
    Watched,
    aims,
    beside_each_other,
    outcome,
    table_of,
)
from mptcp_lab.testbed import EmulationError, TestbedError
from mptcp_lab.testbed.recorder import Sample

FAILED, OUTAGE, AFTER = 8.0, 8.0, 12.0
CELL = Cell("active-standby", "silent", 8, "full")
STANDBY, ACTIVE = SOUND["active-standby"]
GOOD = Outcome(before=28, during=19, still=0.6, back=3, after=28, flips=2)


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
    found = outcome(watched())
    assert found.before == pytest.approx(30, rel=0.01)
    assert found.during == pytest.approx(20, rel=0.01)
    assert found.still == pytest.approx(0.5, abs=0.11)
    assert found.back == pytest.approx(3.0, abs=0.11)
    assert found.flips == 2


def test_a_transfer_of_nothing_is_not_compared() -> None:
    there = watched()
    nothing = tuple(Sample(each.time, {**each.octets, APPLICATION: 0}) for each in there.samples)
    with pytest.raises(ValueError, match="the application had nothing before the failure"):
        outcome(replace(there, samples=nothing))


def test_flips_before_the_failure_do_not_count() -> None:
    assert outcome(watched(flips=(1.0, 2.0, 3.0, 8.7))).flips == 1


def test_a_path_that_never_comes_back_has_no_time_for_it() -> None:
    assert outcome(watched(back=100)).back == math.inf


def test_a_burst_on_the_lost_path_is_no_return() -> None:
    before = watched()
    bumped = [
        Sample(each.time, {**each.octets, "eth0": each.octets["eth0"] + (400_000 if each.time >= 17 else 0)})
        for each in before.samples
    ]
    assert outcome(replace(before, samples=tuple(bumped))).back == pytest.approx(3.0, abs=0.11)


def test_a_mode_that_leaves_all_to_the_kernel_may_stand_still_for_as_long_as_without_it() -> None:
    cell = replace(CELL, mode="smallest-delay")
    slow = replace(GOOD, still=1.4)
    assert missed(aims([(cell, slow), (cell.unsteered, GOOD)], [cell], 1))
    assert not missed(aims([(cell, slow), (cell.unsteered, slow)], [cell], 1))


def test_a_mode_without_an_outage_to_compare_it_with_is_not_compared() -> None:
    assert [aim.what.rpartition(": ")[2] for aim in aims([(CELL, GOOD)], [CELL], 1)] == [
        "runs", "Mbit/s before the failure, by the first path alone", "stands still for s", "flips",
    ]  # fmt: skip


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
def test_the_first_path_is_to_be_alone_where_the_mode_says_so(mode: str, load: str, alone: bool) -> None:
    cell = replace(CELL, mode=mode, load=load)
    both = [(cell, GOOD), (cell, replace(GOOD, before=49.2))]
    found = [each for each in missed(aims(both, [cell], 2)) if "by the first path alone" in each]
    assert len(found) == alone


def test_several_runs_that_leave_open_whether_a_mode_is_slower_miss_the_aim_and_a_single_one_has_a_bound() -> None:
    runs = [(CELL, GOOD), (CELL, replace(GOOD, during=0.79 * GOOD.during)), *[(CELL.unsteered, GOOD)] * 2]
    [slower] = missed(aims(runs, [CELL], 2))
    assert "Mbit/s, × without a mode, lower bound" in slower, "0.895 by the mean"
    assert not missed(aims([(CELL, replace(GOOD, during=0.86 * GOOD.during)), (CELL.unsteered, GOOD)], [CELL], 1))
    nothing = replace(GOOD, during=0.0)
    assert not missed(aims([*[(CELL, GOOD)] * 2, *[(CELL.unsteered, nothing)] * 2], [CELL], 2))


def test_the_table_has_a_row_for_each_cell() -> None:
    table = table_of([(CELL, GOOD), (CELL, replace(GOOD, back=math.inf)), (CELL.unsteered, GOOD)])
    assert [list(column.cells) for column in table.columns][-3:] == [
        ["0.6 ± 0.0", "0.6"],
        ["never in 1 of 2", "3.0"],
        ["2", ""],
    ]


def test_modes_stand_beside_each_other_in_each_outage() -> None:
    joined = replace(CELL, lost="joined")
    never = replace(GOOD, back=math.inf)
    table = beside_each_other([(CELL.unsteered, GOOD), (CELL, never), (joined, replace(GOOD, during=1.25))])
    assert [column.header for column in table.columns] == ["load", "fault", "outage s", "none", CELL.mode]
    good = f"{GOOD.during:.1f}, {GOOD.still:.1f}"
    assert list(zip(*(column.cells for column in table.columns), strict=True)) == [
        (CELL.load, CELL.fault, str(CELL.outage), f"{good}, {GOOD.back:.1f}", f"{good}, never"),
        (CELL.load, f"{CELL.fault}, joined", str(CELL.outage), "", f"1.2, {GOOD.still:.1f}, {GOOD.back:.1f}"),
    ]


def test_what_a_mode_is_measured_by() -> None:
    found = by_cell([Measured("20/20", "active-standby", WARM, tuple(series({"eth0": STANDBY, "wlan0": ACTIVE}, END)))])
    assert found["20/20", "active-standby"] == {
        "standby's share before": [0],
        "taken over after s": [pytest.approx(0.6)],
        "back after s": [pytest.approx(1.1)],
        "standby's share after": [0],
    }


def test_what_never_happened_has_no_time() -> None:
    samples = tuple(series({"eth0": constant(0), "wlan0": constant(0)}, END))
    found = Measured("20/20", "active-standby", WARM, samples).findings()
    assert (found["taken over after s"], found["back after s"]) == (math.inf, math.inf)


def test_modes_are_shown_by_means() -> None:
    samples = tuple(series({"eth0": constant(60), "wlan0": constant(40)}, END))
    table = modes_table([Measured("20/20", "no rule", WARM, samples)] * 2)
    assert [list(column.cells) for column in table.columns] == [
        ["20/20", ""], ["no rule", ""], ["Ethernet's share", "Mbit/s"], ["0.600 ± 0.000", "100.000 ± 0.000"],
    ]  # fmt: skip


def test_cells_are_chosen_and_mistakes_refused() -> None:
    assert len(cells({}, quick=False)) == len(MODES) * 3 * 3 * 3
    assert {each.mode for each in cells({}, quick=True)} == {NONE, "active-standby", "priority-based"}
    (one,) = cells({"mode": "priority-based", "fault": "link", "outage": "2", "load": "upload"}, quick=False)
    assert one == Cell("priority-based", "link", 2, "upload")
    assert one.rule == "[{name: steered, steer: {mode: priority-based, order: [ethernet, wifi]}}]"
    assert one.unsteered.rule == "[]"
    for wrong in ({"mode": "redundant"}, {"outage": "soon"}, {"outage": "0"}, {"probe": "500"}, {"lost": "both"}):
        with pytest.raises(OptionError, match=f"^--set {next(iter(wrong))}=|^--set takes"):
            cells(wrong, quick=False)


def test_a_mode_with_another_count_of_losses_is_compared_with_what_there_is_without_a_mode() -> None:
    options = {"mode": "none,load-balancing", "fault": "silent", "outage": "8", "load": "full", "stale": "40"}
    without, steered = cells(options, quick=False)
    assert (without.stale, steered.stale) == (0, 40)
    measured = [*[(without, GOOD)] * 2, *[(steered, replace(GOOD, during=1.0))] * 2]
    [slower] = missed(aims(measured, [without, steered], 2))
    assert slower.startswith(f"{steered}: Mbit/s, × without a mode")
    [row] = zip(*(column.cells for column in beside_each_other(measured).columns), strict=True)
    assert [cell.partition(" ")[0] for cell in row[3:]] == ["19.0", "1.0"]


def test_a_download_under_a_mode_that_fails_loses_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = tuple(series({"eth0": constant(99), "wlan0": constant(29)}, END))

    def measure(_: object, rtt: str, kind: str) -> Measured:
        if kind == "active-standby":
            raise TestbedError("the policy is in force: not within 10 s")
        return Measured(rtt, kind, WARM, samples if kind == "smallest-delay" else samples[:5])

    replaced = {
        "need": lambda *_: None, "Testbed": late, "measure": measure,
        "Setup": SimpleNamespace(built=lambda *_: None),
    }  # fmt: skip
    for name, each in replaced.items():
        monkeypatch.setattr(steering, name, each)
    kinds = ("active-standby", "priority-based", "smallest-delay")
    found = steering.run(Console(quiet=True), 1, True, {"part": "modes", "kind": "|".join(kinds)})
    assert [run["kind"] for run in found.data["runs"]] == ["smallest-delay"]
    first, second, last = found.failures
    assert first == "20/20 ms, active-standby, 1 of 1: the policy is in force: not within 10 s"
    assert second.startswith("20/20 ms, priority-based, 1 of 1: no two samples between")
    assert last == "20/20 ms: wifi: 3 % of the packets went late"
    # If nothing was measured, an earlier result file is kept.
    with pytest.raises(EmulationError):
        steering.run(Console(quiet=True), 1, True, {"part": "modes", "kind": kinds[0]})


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
