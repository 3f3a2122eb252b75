"""Outages in the experiment steering: what is chosen, what samples say, and that each verdict can be missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mptcp_bench.experiments.options import OptionError
from mptcp_bench.experiments.steering_cells import MODES, NONE, Cell, cells
from mptcp_bench.experiments.steering_judging import APPLICATION, Outcome, Watched, judge, outcome
from mptcp_bench.experiments.steering_outages import judged
from mptcp_lab.testbed.recorder import Sample

FAILED, OUTAGE, AFTER = 8.0, 8.0, 12.0
CELL = Cell("active-standby", "silent", 8, "full")
GOOD = Outcome(before=28, during=19, still=0.6, back=3, after=28, flips=2)


def watched(still: float = 0.5, back: float = 3.0, flips: Sequence[float] = (8.7, 19.5)) -> Watched:
    """Return a transfer whose application stands still and whose path comes back after some seconds."""
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


def test_flips_before_the_failure_do_not_count() -> None:
    assert outcome(watched(flips=(1.0, 2.0, 3.0, 8.7))).flips == 1


def test_a_path_that_never_comes_back_counts_to_the_end() -> None:
    assert outcome(watched(back=100)).back == pytest.approx(AFTER, abs=0.11)


def test_a_burst_on_the_lost_path_is_no_return() -> None:
    before = watched()
    bumped = [
        Sample(each.time, {**each.octets, "eth0": each.octets["eth0"] + (400_000 if each.time >= 17 else 0)})
        for each in before.samples
    ]
    assert outcome(replace(before, samples=tuple(bumped))).back == pytest.approx(3.0, abs=0.11)


@pytest.mark.parametrize(
    ("spoilt", "what"),
    [
        (replace(GOOD, during=5), "Mbit/s"),
        (replace(GOOD, still=1.4), "stands still"),
        (replace(GOOD, flips=3), "flips"),
    ],
)
def test_each_verdict_can_be_missed(spoilt: Outcome, what: str) -> None:
    unsteered = [replace(GOOD, flips=0)]
    assert all(aim.met for aim in judge(CELL, [GOOD], unsteered))
    (missed,) = [aim for aim in judge(CELL, [spoilt], unsteered) if not aim.met]
    assert what in missed.what


def test_a_mode_that_leaves_all_to_the_kernel_may_stand_still_for_as_long_as_without_it() -> None:
    cell = replace(CELL, mode="smallest-delay")
    slow = replace(GOOD, still=1.4)
    assert not all(aim.met for aim in judge(cell, [slow], [GOOD]))
    assert all(aim.met for aim in judge(cell, [slow], [slow]))


def test_a_missed_aim_and_a_void_run_are_both_told() -> None:
    result = judged([(CELL, replace(GOOD, flips=9)), (CELL.unsteered, GOOD)], ["void"])
    assert result.failures[0] == "void"
    assert "flips: 9, wanted ≤ 2" in result.failures[1]
    assert len(result.data["outages"]) == 2


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
