# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for attempts that measured nothing: they are repeated, with all reasons kept; only the machine is excused."""

from __future__ import annotations

import ast
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_testbed import FakePaths
from rich.console import Console

from mptcp_bench import experiments
from mptcp_bench.experiments import pages, pages_cells, scale_soft
from mptcp_bench.experiments.attempts import Attempts
from mptcp_bench.experiments.columns import Turn
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


def test_an_experiment_that_makes_attempts_has_them_judged() -> None:
    for source in sorted(Path(experiments.__file__).parent.glob("*.py")):
        text = source.read_text()
        if "Attempts(console)" in text:
            assert "attempts.judged(" in text or " attempts, usage," in text, source.name


class FakeTransfers:
    """A setup whose transfers have two subflows if *whole*, otherwise none; *late* says which ones have late paths."""

    def __init__(self, late: Sequence[bool], whole: bool) -> None:
        self.testbed, self.client, self.download = FakePaths(), self, ["curl"]
        self._late, self._whole, self.subflows = iter(late), whole, 0

    def load(self, text: str) -> None:
        """Ignore the policy."""

    @contextmanager
    def running(self, argv: Sequence[str]) -> Iterator[None]:
        self.testbed.late += next(self._late)
        self.subflows = 2 * self._whole
        yield
        self.subflows = 0


def transfers(
    monkeypatch: pytest.MonkeyPatch, late: Sequence[bool], whole: bool = True
) -> tuple[Any, Callable[[], object]]:
    """Return a setup, and a function that makes one transfer without taking time."""
    setup: Any = FakeTransfers(late, whole)
    monkeypatch.setattr(scale_soft, "Recorder", lambda *of: nullcontext(SimpleNamespace(now=0.0, samples=())))
    monkeypatch.setattr(scale_soft, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(scale_soft, "judge", lambda *of: SimpleNamespace(in_force=0.0, kept=1.0))
    monkeypatch.setattr(scale_soft, "subflows", lambda *of: setup.subflows)
    return setup, partial(scale_soft.kept, setup)


def test_a_transfer_is_charged_with_what_was_late_in_it_and_with_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    once = transfers(monkeypatch, [False, True, False])[1]
    assert once()
    with pytest.raises(EmulationError):
        once()
    assert once()


@pytest.mark.parametrize("late", [True, False])
def test_a_second_subflow_that_is_missing_over_late_paths_is_not_the_products_fault(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, once = transfers(monkeypatch, [late, False], whole=False)
    attempts = Attempts(Console(file=io.StringIO()))
    attempts.of(once, "x", most=2, check=setup.testbed.check_emulation)
    findings = attempts.judged(NOTHING)
    assert [aim.value for aim in findings.aims] == [0 if late else 1]
    assert "has not two subflows" in findings.failures[0]


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


def test_every_attempt_in_a_testbed_looks_at_its_emulation() -> None:
    calls = [
        (source.stem, {keyword.arg for keyword in call.keywords})
        for source in sorted(Path(experiments.__file__).parent.glob("*.py"))
        for call in ast.walk(ast.parse(source.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("attempts.of", "self.attempts.of")
    ]
    assert calls
    assert [name for name, given in calls if "check" not in given] == []


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
    attempts = Attempts(Console(file=io.StringIO()))
    assert attempts.of(lambda: pages.measure(beds, Turn(cell, variant, 1)), "one", check=beds.check_emulation) is None
    excused = (late == "throttled") is (variant == pages.NEW)
    [why] = attempts.judged(NOTHING).failures
    assert why.endswith(": late" if excused else ": downloads not complete")
