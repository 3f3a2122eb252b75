# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for attempts without a measurement: they are repeated, with reasons; only late paths are excused."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from mptcp_bench.experiments.attempts import Attempts
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
