# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for attempts that measured nothing: they are repeated, with all reasons kept; only the machine is excused."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from fake_testbed import FakePaths
from rich.console import Console

from mptcp_bench.experiments.attempts import Attempts
from mptcp_bench.experiments.findings import Findings, result_of
from mptcp_bench.result_file import Provenance
from mptcp_lab.testbed import EmulationError, TestbedError

NOTHING = Findings((), {})


def failing(times: int, error: Exception) -> Callable[[], str]:
    """Return a run that raises *error* that many *times*, and then returns."""
    left = [error] * times

    def run() -> str:
        if left:
            raise left.pop()
        return "measured"

    return run


@pytest.mark.parametrize("error", [TestbedError("late"), EmulationError("late"), ValueError("late")])
@pytest.mark.parametrize(
    ("times", "result", "void"), [(0, "measured", ()), (2, "measured", ()), (3, None, ("x: late",))]
)
def test_a_run_is_tried_three_times_and_each_reason_is_kept(
    error: Exception, times: int, result: str | None, void: tuple[str, ...]
) -> None:
    said = io.StringIO()
    attempts = Attempts(Console(file=said))
    assert attempts.of(failing(times, error), "x") == result
    assert said.getvalue() == "x: void, because late\n" * times
    findings = attempts.judged(NOTHING)
    assert findings.failures == void
    emulation = isinstance(error, EmulationError)
    reason = "the emulated paths" if emulation else "another reason"
    assert findings.notes == (f"repeated for {reason}: x: late",) * min(times, 2)
    provenance = Provenance("mptcp-bench run x", "0" * 40, "6.18", 2, "5.7", "3.11", 1, "2026-11-23T00:00:00+00:00")
    assert result_of("x", "", findings, provenance, {}, seed=1, quick=False).notes == findings.notes
    [aim] = findings.aims
    assert aim.value == (0 if emulation else min(times, 2))
    assert aim.met is (emulation or times == 0)


def test_what_an_experiment_found_besides_is_kept() -> None:
    attempts = Attempts(Console(file=io.StringIO()))
    attempts.of(failing(2, TestbedError("late")), "x", most=2)
    findings = attempts.judged(Findings((), {"runs": 3}, ("before",)))
    assert findings.failures == ("before", "x: late")
    assert findings.data == {"runs": 3}
    assert len(findings.wrong) == 3


def test_another_error_is_no_void_run() -> None:
    with pytest.raises(KeyError):
        Attempts(Console(file=io.StringIO())).of(failing(1, KeyError("device")), "x")


@pytest.mark.parametrize("error", [TestbedError("no subflow"), ValueError("no subflow")])
def test_what_failed_over_late_paths_is_not_the_products_fault_and_what_failed_after_it_is(error: Exception) -> None:
    lab = FakePaths()
    lateness = iter([1, 0])

    def run() -> None:
        lab.late += next(lateness, 0)
        raise error

    attempts = Attempts(Console(file=io.StringIO()))
    attempts.of(run, "x", check=lab.check_emulation)
    findings = attempts.judged(NOTHING)
    assert findings.notes == (
        "repeated for the emulated paths: x: late",
        "repeated for another reason: x: no subflow",
    )
    assert findings.failures == ("x: no subflow",)


def test_a_run_that_worked_is_not_checked_again() -> None:
    def check() -> None:
        raise EmulationError("late")

    attempts = Attempts(Console(file=io.StringIO()))
    assert attempts.of(lambda: "measured", "x", check=check) == "measured"
