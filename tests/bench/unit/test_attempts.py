# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for attempts that measured nothing: they are repeated, with all reasons kept; only the machine is excused."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from fake_testbed import FakePaths
from rich.console import Console

from mptcp_bench.experiments import pages, pages_cells
from mptcp_bench.experiments.attempts import Attempts
from mptcp_bench.experiments.columns import Turn
from mptcp_bench.experiments.findings import Findings
from mptcp_lab.testbed import EmulationError, TestbedError

BEFORE = Findings((), {"runs": 3}, ("before",))


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
    findings = attempts.judged(BEFORE)
    assert (findings.failures, findings.data) == (("before", *void), BEFORE.data)
    emulation = isinstance(error, EmulationError)
    reason = "the emulated paths" if emulation else "another reason"
    assert findings.notes == (f"repeated for {reason}: x: late",) * min(times, 2)
    [aim] = findings.aims
    assert aim.value == (0 if emulation else min(times, 2))
    assert aim.met is (emulation or times == 0)


def test_another_error_is_no_void_run() -> None:
    with pytest.raises(KeyError):
        Attempts(Console(quiet=True)).of(failing(1, KeyError("device")), "x")


@pytest.mark.parametrize("late", ["plain", "throttled"])
@pytest.mark.parametrize("variant", [pages.NEW, "static"])
def test_a_batch_of_pages_is_excused_by_the_testbed_that_it_was_in(variant: str, late: str) -> None:
    labs = {"plain": FakePaths(), "throttled": FakePaths()}

    def fetch(*of: object) -> None:
        labs[late].late += 1
        raise TestbedError("downloads not complete")

    plain, throttled = (
        SimpleNamespace(testbed=lab, start_throttler=lambda cell: None, set_up=lambda *of: nullcontext(), fetch=fetch)
        for lab in labs.values()
    )
    beds: Any = pages.Beds(plain, throttled, plain)  # type: ignore[arg-type]
    [cell, *_] = pages_cells.cells({}, quick=True)
    attempts = Attempts(Console(quiet=True))
    assert attempts.of(lambda: pages.measure(beds, Turn(cell, variant, 1)), "one", check=beds.check_emulation) is None
    excused = (late == "throttled") is (variant == pages.NEW)
    [why] = attempts.judged(Findings((), {})).failures
    assert why.endswith(": late" if excused else ": downloads not complete")
