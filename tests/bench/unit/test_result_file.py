# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the result file of our experiments: one form for all, one rule for aims, and nothing half written."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from paper_examples import PROVENANCE
from rich.table import Table as RichTable
from rich.text import Text

from mptcp_bench import result_file
from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.aims import Aim, aims_table, missed
from mptcp_bench.experiments.findings import Findings, Picture, result_of, tables_of
from mptcp_bench.result_file import ExperimentResult, Table, Verdict
from mptcp_lab.testbed import TestbedError
from mptcp_lab.testbed.ownership import leave_behind

AIMS = (
    Aim("a: share", 0.97, least=0.95, most=1.05),
    Aim("b: gap", 0.5, " s", most=0.25),
    Aim("c: reload", math.inf, " s", most=5),
    Aim("d: greatest", 12, " ms"),
)


def rich_table(title: str = "Many, many downloads") -> RichTable:
    table = RichTable("cell", "kept", title=title)
    table.add_row("bbr, 20/20 ms", "[green]0.99 ± 0.01[/]")
    table.add_row(Text("cubic"), "")
    return table


def measured(aims: Sequence[Aim] = AIMS, failures: tuple[str, ...] = ()) -> Findings:
    data = {"runs": ({"kept": 0.5, "never": math.inf},), "by": {4: (1, 2)}}
    return Findings((rich_table(), aims_table("Aims", aims)), data, failures, aims=tuple(aims))


def made() -> ExperimentResult:
    return result_of("onset", EXPERIMENTS["onset"].summary, measured(), PROVENANCE, {"runs": "3"}, seed=7, quick=True)


def test_an_aim_without_bounds_shows_no_tick() -> None:
    signs = [str(cell) for cell in aims_table("t", AIMS).columns[3].cells]
    assert ["✓" in sign for sign in signs] == [True, False, False, False]
    assert "no aim" in signs[3]


@example(math.nan, 0, None)
@example(math.inf, 0, None)
@example(-math.inf, None, 0)
@example(1.0, 1, 1)
@example(math.nan, None, None)
@given(st.floats(), st.none() | st.floats(allow_nan=False), st.none() | st.floats(allow_nan=False))
def test_any_value_is_judged_and_written(value: float, least: float | None, most: float | None) -> None:
    aim = Aim("x", value, least=least, most=most)
    within = (-math.inf if least is None else least) <= value <= (math.inf if most is None else most)
    bounded = (least, most) != (None, None)
    assert aim.verdict == (("met" if within and math.isfinite(value) else "missed") if bounded else "no aim")
    assert bool(missed([aim])) is (not aim.met) is (aim.verdict == "missed")
    [kept] = result_of("x", "", Findings((), {}, aims=(aim,)), PROVENANCE, {}, seed=1, quick=False).aims
    assert kept.verdict == aim.verdict
    assert kept.value is None or math.isfinite(kept.value)


def test_aims_that_were_missed_and_failures_make_an_experiment_fail() -> None:
    assert measured(AIMS[:1]).wrong == ()
    assert measured(failures=("void",)).wrong == (
        "b: gap: 0.5 s, wanted ≤ 0.25",
        "c: reload: inf s, wanted ≤ 5",
        "void",
    )


def test_what_was_returned_is_in_the_document() -> None:
    found = made()
    assert (found.experiment, found.parameters, found.seed, found.quick) == ("onset", {"runs": "3"}, 7, True)
    assert found.aims[2] == Verdict("c: reload", None, " s", None, 5, "missed")
    assert [aim.measured for aim in found.aims] == ["0.97", "0.5 s", "nothing", "12 ms"]
    assert found.tables == (
        Table("many", "Many, many downloads", ("cell", "kept"), (("bbr, 20/20 ms", "0.99 ± 0.01"), ("cubic", ""))),
    )
    assert found.data == {"runs": [{"kept": 0.5, "never": None}], "by": {"4": [1, 2]}}


def test_two_tables_of_one_title_have_two_keys() -> None:
    assert [table.key for table in tables_of([rich_table("A b: 1"), rich_table("A b: 2"), rich_table("")])] == [
        "a-b",
        "a-b-2",
        "table",
    ]


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    target = tmp_path / "onset" / result_file.FILE
    result_file.write(made(), target)
    assert result_file.load(target, ExperimentResult) == made()
    assert list(result_file.find(tmp_path)) == [target]


@pytest.fixture
def recovery(monkeypatch: pytest.MonkeyPatch) -> list[Findings]:
    """Replace the experiment *recovery* by one without a testbed, which returns what is put into the list."""
    results: list[Findings] = []
    monkeypatch.setattr(EXPERIMENTS["recovery"].load(), "run", lambda console, seed, quick: results[0])
    return results


def test_a_run_leaves_its_result_and_its_pictures(
    recovery: list[Findings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(target: Path) -> None:
        target.write_text("a picture")

    picture = Picture("drawn", draw)
    recovery.append(replace(measured(AIMS[:1]), pictures=(picture,)))
    assert main(["run", "recovery", "--output", str(tmp_path), "--seed", "3"]) == 0
    directory = tmp_path / "recovery"
    assert {path.name for path in directory.iterdir()} == {result_file.FILE, "drawn.png", "drawn.svg"}
    found = result_file.load(directory / result_file.FILE, ExperimentResult)
    assert (found.experiment, found.seed, found.provenance.seed, found.pictures) == ("recovery", 3, 3, ("drawn",))
    assert str(directory / result_file.FILE) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "No space left on device"),
    ],
)
def test_pictures_of_an_earlier_run_are_not_those_of_one_that_cannot_be_drawn(
    recovery: list[Findings],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    said: str,
) -> None:
    """Defect: report showed the picture of an earlier run as a picture of the new result."""

    def draw(target: Path) -> None:
        target.write_text("half of it")
        if target.suffix == ".svg":
            raise error

    directory = tmp_path / "recovery"
    result_file.write(made(), directory / result_file.FILE)
    for name in ("first.svg", "second.png", "second.svg"):
        (directory / name).write_text("of an earlier run")
    recovery.append(replace(measured(AIMS[:1]), pictures=(Picture("first", draw), Picture("second", draw))))
    assert main(["run", "recovery", "--output", str(tmp_path), "--seed", "3"]) == status
    target = directory / result_file.FILE
    assert {path.name for path in directory.iterdir()} == {target.name, "first.png"}
    assert result_file.load(target, ExperimentResult).seed == 3
    kept = f"{target} has what was measured; first.svg could not be drawn"
    assert capsys.readouterr().err == f"mptcp-bench: {said}\nmptcp-bench: {kept}\n"


def test_a_run_that_misses_an_aim_says_so_and_fails(
    recovery: list[Findings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recovery.append(measured())
    assert main(["run", "recovery", "--output", str(tmp_path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((tmp_path / "recovery" / result_file.FILE).read_text())
    assert "mptcp-bench run recovery: b: gap: 0.5 s, wanted ≤ 0.25\n" in err


def test_a_directory_that_cannot_be_written_is_reported_before_anything_is_measured(
    recovery: list[Findings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recovery").write_text("a file")
    assert main(["run", "recovery", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"mptcp-bench: {tmp_path}/recovery: File exists\n"


def test_what_a_testbed_leaves_behind_is_said_after_the_result_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stays = "testbed a1b2c3: remove /tmp/mpx-a1b2c3-x: Operation not permitted; mptcp-bench cleanup tries again"

    def run(console: object, seed: int, quick: bool) -> Findings:
        leave_behind(stays)
        return measured(AIMS[:1])

    monkeypatch.setattr(EXPERIMENTS["recovery"].load(), "run", run)
    assert main(["run", "recovery", "--output", str(tmp_path)]) == 1
    assert result_file.load(tmp_path / "recovery" / result_file.FILE, ExperimentResult).complete
    assert capsys.readouterr().err == f"mptcp-bench: {stays}\n"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(KeyboardInterrupt(), INTERRUPTED, "interrupted"), (TestbedError("the proxy is gone"), 1, "the proxy is gone")],
)
def test_a_run_that_ends_early_says_that_nothing_of_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    said: str,
) -> None:
    def run(console: object, seed: int, quick: bool) -> Findings:
        raise error

    monkeypatch.setattr(EXPERIMENTS["recovery"].load(), "run", run)
    target = tmp_path / "recovery" / result_file.FILE
    assert main(["run", "recovery", "--output", str(tmp_path)]) == status
    assert capsys.readouterr().err == f"mptcp-bench: {said}\nmptcp-bench: nothing of this run is kept\n"
    assert not target.parent.exists()
    result_file.write(made(), target)
    error.__notes__.clear()
    assert main(["run", "recovery", "--output", str(tmp_path)]) == status
    earlier = f"nothing of this run is kept; {target} is of an earlier run"
    assert capsys.readouterr().err == f"mptcp-bench: {said}\nmptcp-bench: {earlier}\n"
    assert result_file.load(target, ExperimentResult) == made()
