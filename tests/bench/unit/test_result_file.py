# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the result file: what a run writes, one rule for aims, no half-written file, and one line per mistake."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from found_results import OURS, PAPERS
from rich.table import Table as RichTable
from rich.text import Text

from mptcp_bench import result_file
from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.experiments import EXPERIMENTS, Experiment
from mptcp_bench.experiments.aims import Aim, missed
from mptcp_bench.experiments.findings import Findings, Picture
from mptcp_bench.result_file import FILE, ExperimentResult, ResultError, Verdict, load
from mptcp_lab.testbed import TestbedError

SOUND = Aim("a: share", 0.97, least=0.95, most=1.05)
AIMS = (SOUND, Aim("b: gap", 0.5, " s", most=0.25), Aim("c: reload", math.inf, " s", most=5), Aim("d: greatest", 12))


def findings(*aims: Aim) -> Findings:
    first, second = (RichTable("cell", "kept", title=f"Many, many downloads: {number}") for number in (1, 2))
    first.add_row("bbr, 20/20 ms", "[green]0.99 ± 0.01[/]")
    first.add_row(Text("cubic"), "")
    data = {"runs": ({"kept": 0.5, "never": math.inf},), "by": {4: (1, 2)}}
    return Findings((first, second), data, aims=aims)


def test_result_has_all_findings_and_the_file_has_them_as_json(tmp_path: Path) -> None:
    found = findings(*AIMS).added_to(OURS, complete=True)
    assert [aim.measured for aim in found.aims] == ["0.97", "0.5 s", "inf s", "12"]
    assert [table.key for table in found.tables] == ["many", "many-2"]
    assert found.tables[0].rows == (("bbr, 20/20 ms", "0.99 ± 0.01"), ("cubic", ""))
    assert findings(SOUND).wrong == ()
    assert findings(*AIMS).wrong == ("b: gap: 0.5 s, wanted ≤ 0.25", "c: reload: inf s, wanted ≤ 5")
    result_file.write(found, tmp_path / FILE)
    written = load(tmp_path / FILE)
    assert (written.experiment, written.parameters, written.seed) == (OURS.experiment, OURS.parameters, OURS.seed)
    assert written.aims[2] == Verdict("c: reload", None, " s", None, 5, "missed")
    assert [aim.verdict for aim in written.aims] == ["met", "missed", "missed", "no aim"]
    assert written.data == {"runs": [{"kept": 0.5, "never": None}], "by": {"4": [1, 2]}}


@pytest.mark.parametrize(
    ("value", "least", "most", "verdict", "text"),
    [
        (1.0, 1, 1, "met", "1"),
        (1.1, 1, 1, "missed", "1.1"),
        (0.9, 1, None, "missed", "0.9"),
        # A missed aim must not look as if it were met.
        (0.99996, 1, None, "missed", "0.99996"),
        (math.nextafter(1, 0), 1, None, "missed", "0.9999999999999999"),
        (math.nan, 0, None, "missed", "nan"),
        (math.inf, 0, None, "missed", "inf"),
        (math.nan, None, None, "no aim", "nan"),
    ],
)
def test_aim_is_met_within_its_bounds(
    value: float, least: float | None, most: float | None, verdict: str, text: str
) -> None:
    aim = Aim("x", value, least=least, most=most)
    assert (aim.verdict, aim.measured) == (verdict, text)
    assert bool(missed([aim])) is (not aim.met) is (verdict == "missed")


@pytest.mark.parametrize("found", [OURS, PAPERS], ids=["ours", "the paper's"])
def test_result_is_read_as_it_was_written(found: ExperimentResult, tmp_path: Path) -> None:
    target = tmp_path / "new" / FILE
    result_file.write(found, target)
    assert load(target) == found
    assert list(result_file.find(tmp_path)) == [target]
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_failed_write_leaves_no_other_file(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(OSError, match="directory"):
        result_file.write(OURS, tmp_path / FILE)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def changed(*path: str | int, to: object) -> str:
    """Return the text of a result with one value replaced."""
    whole = json.loads(result_file.to_json(PAPERS))
    inner = whole
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Input data was truncated"),
        ("{}", "Object missing required field `provenance`"),
        (changed("seed", to=7.5), "Expected `int`, got `float` - at `$.seed`"),
        (changed("aims", 0, "verdict", to="perhaps"), "Invalid enum value 'perhaps' - at `$.aims[0].verdict`"),
    ],
)
def test_file_that_is_not_a_result_is_reported_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ResultError) as error:
        load(tmp_path / FILE)
    assert str(error.value).startswith(f"{tmp_path / FILE}: {message}")
    assert "\n" not in str(error.value)


class Made(Experiment):
    """An experiment without a testbed, whose run calls the attribute *found*."""

    found: Callable[[], Findings]

    def load(self) -> Any:
        return SimpleNamespace(OPTIONS={}, run=lambda *_: type(self).found())


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[Made]:
    monkeypatch.setitem(EXPERIMENTS, "goodput", Made("goodput", "made up", "goodput"))
    return Made


def drawn(*names: str, error: BaseException | None = None) -> Callable[[], Findings]:
    """Return findings with pictures. *error* is raised when half of a picture is drawn as SVG."""

    def draw(target: Path) -> None:
        target.write_text("half of it")
        if error is not None and target.suffix == ".svg":
            raise error

    return staticmethod(lambda: replace(findings(SOUND), pictures=tuple(Picture(name, draw) for name in names)))


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "No space left on device"),
    ],
)
def test_pictures_of_an_earlier_run_are_removed_when_new_ones_cannot_be_drawn(
    made: type[Made],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    message: str,
) -> None:
    """Defect: report showed the picture of an earlier run as a picture of the new result."""
    target = tmp_path / "goodput" / FILE
    result_file.write(OURS, target)
    for name in ("first.svg", "second.png", "second.svg"):
        target.with_name(name).write_text("of an earlier run")
    made.found = drawn("first", "second", error=error)
    assert main(["run", "goodput", "--output", str(tmp_path), "--seed", "3"]) == status
    assert {path.name for path in target.parent.iterdir()} == {target.name, "first.png"}
    assert load(target).seed == 3
    kept = f"{target} has what was measured; first.svg could not be drawn"
    assert capsys.readouterr().err == f"mptcp-bench: {message}\nmptcp-bench: {kept}\n"


def test_run_leaves_result_and_pictures_and_fails_when_it_misses_an_aim(
    made: type[Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.found = drawn("picture")
    command = ["run", "goodput", "--output", str(tmp_path), "--seed", "3"]
    assert main(command) == 0
    directory = tmp_path / "goodput"
    assert {path.name for path in directory.iterdir()} == {FILE, "picture.png", "picture.svg"}
    found = load(directory / FILE)
    assert (found.experiment, found.seed, found.provenance.seed, found.pictures) == ("goodput", 3, 3, ("picture",))
    assert str(directory / FILE) in capsys.readouterr().out
    made.found = staticmethod(lambda: findings(*AIMS))
    assert main(command) == 1
    assert "mptcp-bench run goodput: b: gap: 0.5 s, wanted ≤ 0.25\n" in capsys.readouterr().err


def test_directory_that_cannot_be_written_is_reported_before_the_run(
    made: type[Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "goodput").write_text("a file")
    assert main(["run", "goodput", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"mptcp-bench: {tmp_path}/goodput: File exists\n"


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [(KeyboardInterrupt(), INTERRUPTED, "interrupted"), (TestbedError("no proxy"), 1, "run goodput: no proxy")],
)
def test_run_that_ends_early_keeps_nothing_and_the_earlier_result_stays(
    made: type[Made],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    message: str,
) -> None:
    def found() -> Findings:
        raise error

    made.found = staticmethod(found)
    target = tmp_path / "goodput" / FILE
    assert main(["run", "goodput", "--output", str(tmp_path)]) == status
    assert capsys.readouterr().err == f"mptcp-bench: {message}\nmptcp-bench: nothing of this run is kept\n"
    assert not target.parent.exists()
    result_file.write(OURS, target)
    error.__notes__.clear()
    assert main(["run", "goodput", "--output", str(tmp_path)]) == status
    earlier = f"nothing of this run is kept; {target} is of an earlier run"
    assert capsys.readouterr().err == f"mptcp-bench: {message}\nmptcp-bench: {earlier}\n"
    assert load(target) == OURS
