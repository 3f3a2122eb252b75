# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for how the experiment ``guard`` judges its recordings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fake_testbed import FakePaths
from mutants import late
from rich.console import Console

from mptcp_bench.experiments import guard
from mptcp_bench.experiments.aims import missed
from mptcp_bench.experiments.guard_judging import (
    AFTER,
    ARMS,
    CAP,
    FAULT,
    Arm,
    Cell,
    Measured,
    Outcome,
    Unharmed,
    aims,
    judge,
    table_of,
)
from mptcp_lab.testbed import EmulationError, TestbedError
from mptcp_lab.testbed.recorder import Sample

MBIT = 1e6
FAULT_AT = 4.0


def recorded(relaxed_after: float | None, capped_after: float) -> list[Sample]:
    """Return samples: Wi-Fi 30 Mbit/s, nothing during the fault; Ethernet 5, or 90 while its cap is relaxed."""
    samples, octets = [], {"eth0": 0.0, "wlan0": 0.0}
    for step in range(round((FAULT_AT + FAULT + AFTER) * 10)):
        now = step / 10
        fault = FAULT_AT <= now < FAULT_AT + FAULT
        relaxed = relaxed_after is not None and FAULT_AT + relaxed_after <= now < FAULT_AT + FAULT + capped_after
        octets["eth0"] += (90 if relaxed else CAP) * MBIT / 80
        octets["wlan0"] += 0 if fault else 30 * MBIT / 80
        samples.append(Sample(now, {name: round(value) for name, value in octets.items()}))
    return samples


def test_what_a_fault_costs() -> None:
    guarded = judge(recorded(1.0, 3.0), FAULT_AT, 1)
    assert guarded.before == pytest.approx(30 * MBIT)
    assert guarded.recovered == pytest.approx(1.2, abs=0.3)
    assert guarded.during == pytest.approx(3, rel=0.02)
    assert 3.0 <= guarded.in_force <= 4.1, "the last second in which Ethernet had more than its cap"
    alone = judge(recorded(None, 0.0), FAULT_AT, 0)
    assert alone.recovered == math.inf
    assert alone.during == pytest.approx(CAP / 30, rel=0.02)
    assert alone.in_force == 0


def test_what_comes_before_the_fault_is_there_is_no_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: on a loaded machine the fault's command took longer than a recovery is waited for.

    A guard that did nothing then seemed to have recovered before anything was lost.
    """
    asked = FAULT_AT - 1
    recorder = SimpleNamespace(now=asked, samples=recorded(None, 0.0))

    @contextmanager
    def silent(*_: object) -> Iterator[None]:
        recorder.now = FAULT_AT
        yield

    lab: Any = SimpleNamespace(testbed=FakePaths(), load_between=lambda *_: None)
    lab.transferring = lambda *_: nullcontext((None, recorder))
    monkeypatch.setattr(guard, "_relaxations", lambda _: 0)
    monkeypatch.setattr(guard, "time", SimpleNamespace(sleep=lambda _: None))
    monkeypatch.setitem(guard.FAULTS, "silence", silent)
    measured = guard.measure(lab, Cell("down", 20, "silence"), Arm.ON)
    assert measured.fault_at == FAULT_AT
    assert measured.outcome.recovered == math.inf
    assert measured.outcome.before == pytest.approx(30 * MBIT)
    assert judge(recorded(None, 0.0), asked, 0).recovered < 1, "what it was"


def test_a_cap_that_is_not_back_at_the_end_never_was() -> None:
    assert judge(recorded(1.0, 99), FAULT_AT, 1).in_force == math.inf


@pytest.mark.parametrize("direction", ["down", "up"])
def test_a_missed_aim_names_its_direction_and_one_run_that_never_recovered_misses_it(direction: str) -> None:
    def judged(*recovered: float, in_force: float = 5.0) -> tuple[str, ...]:
        cell = Cell(direction, 20, "rate")
        outcomes = [(Arm.ON, Outcome(30e6, 1.0, 2.0, each, in_force, 1, 1.0)) for each in recovered]
        outcomes += [(Arm.OFF, Outcome(30e6, 1.0, 0.3, math.inf, 0.0, 0, 1.0))] * len(recovered)
        if direction == "up":
            outcomes += [(Arm.LIFTED, Outcome(30e6, 1.0, 3.0, 0.0, math.inf, 0, 1.0))] * len(recovered)
        measured = [Measured(cell, arm, each, FAULT_AT, ()) for arm, each in outcomes]
        assert table_of(measured).row_count == len(ARMS[direction])
        return missed(aims(measured, {"x": Unharmed(0, 30e6)}, [cell], len(recovered)))

    assert judged(1.5) == ()
    [late] = judged(2.5)
    later = {"down": "after", "up": "later than with the cap lifted by hand by"}[direction]
    assert late == f"{direction}, 20 ms, slows to 5 Mbit/s: recovers {later}: 2.5 s, wanted ≤ 2"
    # If infinity counted as the length of the fault, it would be part of a mean of 2.0 s.
    assert "inf" in judged(0.5, 0.5, 0.5, 0.5, math.inf)[0]
    assert len(judged(1.5, in_force=11.0)) == (1 if direction == "down" else 0), "a cap on uploads falls slowly"


def test_an_upload_is_compared_with_one_whose_cap_was_lifted_and_that_it_was_is_seen() -> None:
    def judged(guarded: float, lifted: float, above: float = math.inf) -> tuple[str, ...]:
        cell = Cell("up", 20, "loss")
        outcomes = {
            Arm.ON: Outcome(30e6, 1.0, 2.0, guarded, 5.0, 1, 1.0),
            Arm.OFF: Outcome(30e6, 1.0, 0.3, math.inf, 0.0, 0, 1.0),
            Arm.LIFTED: Outcome(30e6, 1.0, 3.0, lifted, above, 0, 1.0),
        }
        measured = [Measured(cell, arm, each, FAULT_AT, ()) for arm, each in outcomes.items()]
        return missed(aims(measured, {"x": Unharmed(0, 30e6)}, [cell], 1))

    assert judged(7.0, 5.5) == ()
    assert "later than with the cap lifted by hand by: 2.5 s" in judged(8.0, 5.5)[0]
    assert "later than" in judged(math.inf, math.inf)[0], "the guard never acted"
    assert "Ethernet is above the cap for: 0 s" in judged(7.0, math.inf, above=0.0)[0], "the cap was not lifted"


def test_of_several_uploads_the_upper_bound_of_the_difference_is_judged() -> None:
    def judged(*guarded: float) -> tuple[str, ...]:
        cell = Cell("up", 20, "loss")
        outcomes = [(Arm.ON, Outcome(30e6, 1.0, 2.0, each, 5.0, 1, 1.0)) for each in guarded]
        outcomes += [(Arm.OFF, Outcome(30e6, 1.0, 0.3, math.inf, 0.0, 0, 1.0))] * len(guarded)
        outcomes += [(Arm.LIFTED, Outcome(30e6, 1.0, 3.0, 0.2, math.inf, 0, 1.0))] * len(guarded)
        measured = [Measured(cell, arm, each, FAULT_AT, ()) for arm, each in outcomes]
        return missed(aims(measured, {"x": Unharmed(0, 30e6)}, [cell], len(guarded)))

    assert judged(1.7, 1.8, 1.8) == ()
    [late] = judged(0.5, 3.0)
    assert "lifted by hand by, upper bound: 9.4" in late, "1.55 s by the mean"


def test_what_fails_loses_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    controls = [guard.Control("nothing happens"), guard.Control("the client stops reading")]
    setup = SimpleNamespace(controls=lambda: controls)

    def measure(_: object, cell: Cell, arm: Arm) -> Measured:
        if arm is Arm.OFF:
            raise ValueError("nothing came over Wi-Fi before the fault")
        return Measured(cell, arm, Outcome(30e6, 1.0, 2.0, 1.0, 5.0, 1, 1.0), FAULT_AT, ())

    def unharmed(_: object, control: guard.Control) -> Unharmed:
        if control is controls[0]:
            raise TestbedError("the last connection is gone: not within 60 s")
        return Unharmed(0, 30e6)

    replaced = {
        "need": lambda *_: None, "Testbed": late, "measure": measure, "unharmed": unharmed,
        "GuardSetup": SimpleNamespace(built=lambda *_, **__: setup),
    }  # fmt: skip
    for name, each in replaced.items():
        monkeypatch.setattr(guard, name, each)
    options = {"direction": "down", "fault": "silence"}
    found = guard.run(Console(quiet=True), 1, True, options)
    assert [run["guard"] for run in found.data["runs"]] == ["on"]
    assert list(found.data["controls"]) == ["down, 20 ms, the client stops reading"]
    assert found.failures == (
        "down, 20 ms, silence, 1 of 1, guard off: nothing came over Wi-Fi before the fault",
        "down, 20 ms, nothing happens: the last connection is gone: not within 60 s",
        "down, 20 ms: wifi: 3 % of the packets went late",
    )
    # If nothing was measured, an earlier result file is kept.
    del controls[:]
    with pytest.raises(EmulationError):
        guard.run(Console(quiet=True), 1, True, options | {"fault": ""})
