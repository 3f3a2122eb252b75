"""Runs that are void: tried again, named with the reason, and left out where they stay void."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from mptcp_bench.experiments.attempts import attempted
from mptcp_lab.testbed import TestbedError


def failing(times: int, error: Exception) -> Callable[[], str]:
    """Return a run that raises *error* so many times, and then returns."""
    left = [error] * times

    def run() -> str:
        if left:
            raise left.pop()
        return "measured"

    return run


@pytest.mark.parametrize("error", [TestbedError("late"), ValueError("late")])
@pytest.mark.parametrize(
    ("times", "result", "void"), [(0, "measured", []), (2, "measured", []), (3, None, ["x: late"])]
)
def test_a_run_is_tried_three_times(error: Exception, times: int, result: str | None, void: list[str]) -> None:
    said = io.StringIO()
    found: list[str] = []
    assert attempted(failing(times, error), "x", Console(file=said), found) == result
    assert found == void
    assert said.getvalue() == "x: void, because late\n" * times


def test_another_error_is_no_void_run() -> None:
    with pytest.raises(KeyError):
        attempted(failing(1, KeyError("device")), "x", Console(file=io.StringIO()))
