# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the result file: what a run writes, one rule for aims, no half-written file, and one line per mistake."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from found_results import OURS, PAPERS, PROVENANCE
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from mptcp_bench import result_file
from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.experiments import EXPERIMENTS, Experiment
from mptcp_bench.experiments.aims import Aim, aims_table, missed
from mptcp_bench.experiments.findings import Findings, Picture, result_of
from mptcp_bench.result_file import FILE, ExperimentResult, ResultError, Verdict, load
from mptcp_lab.testbed import TestbedError

SOUND = Aim("a: share", 0.97, least=0.95, most=1.05)
AIMS = (SOUND, Aim("b: gap", 0.5, " s", most=0.25), Aim("c: reload", math.inf, " s", most=5), Aim("d: greatest", 12))


def findings(*aims: Aim) -> Findings:
    first, second = (RichTable("cell", "kept", title=f"Many, many downloads: {number}") for number in (1, 2))
    first.add_row("bbr, 20/20 ms", "[green]0.99 ± 0.01[/]")
    first.add_row(Text("cubic"), "")
    data = {"runs": ({"kept": 0.5, "never": math.inf},), "by": {4: (1, 2)}}
    return Findings((first, second, aims_table("Aims", aims)), data, aims=aims)


def test_result_has_all_findings_in_the_form_of_json() -> None:
    found = result_of("onset", "A cap", findings(*AIMS), PROVENANCE, {"runs": "3"}, seed=7, quick=True)
    assert (found.experiment, found.title, found.parameters, found.seed) == ("onset", "A cap", {"runs": "3"}, 7)
    assert found.aims[2] == Verdict("c: reload", None, " s", None, 5, "missed")
    assert [aim.measured for aim in found.aims] == ["0.97", "0.5 s", "nothing", "12"]
    assert [aim.verdict for aim in found.aims] == ["met", "missed", "missed", "no aim"]
    assert [table.key for table in found.tables] == ["many", "many-2"]
    assert found.tables[0].rows == (("bbr, 20/20 ms", "0.99 ± 0.01"), ("cubic", ""))
    assert found.data == {"runs": [{"kept": 0.5, "never": None}], "by": {"4": [1, 2]}}
    assert findings(SOUND).wrong == ()
    assert findings(*AIMS).wrong == ("b: gap: 0.5 s, wanted ≤ 0.25", "c: reload: inf s, wanted ≤ 5")


@pytest.mark.parametrize(
    ("value", "least", "most", "verdict"),
    [
        (1.0, 1, 1, "met"),
        (1.1, 1, 1, "missed"),
        (0.9, 1, None, "missed"),
        (math.nan, 0, None, "missed"),
        (math.inf, 0, None, "missed"),
        (math.nan, None, None, "no aim"),
    ],
)
def test_any_value_is_judged_and_written(value: float, least: float | None, most: float | None, verdict: str) -> None:
    aim = Aim("x", value, least=least, most=most)
    assert aim.verdict == verdict
    assert bool(missed([aim])) is (not aim.met) is (verdict == "missed")
    [kept] = result_of("x", "", Findings((), {}, aims=(aim,)), PROVENANCE, {}, seed=1, quick=False).aims
    assert (kept.verdict, kept.value is None) == (verdict, not math.isfinite(value))


@pytest.mark.parametrize("found", [OURS, PAPERS], ids=["ours", "the paper's"])
def test_result_is_read_as_it_was_written(found: ExperimentResult, tmp_path: Path) -> None:
    target = tmp_path / "new" / FILE
    result_file.write(found, target)
    assert load(target) == found
    assert list(result_file.find(tmp_path)) == [target]
    assert stat.S_IMODE(target.stat().st_mode) == 0o644


def test_failed_write_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    result_file.write(OURS, tmp_path / FILE)
    with pytest.raises(ResultError, match="recovery: a number that is not finite"):
        result_file.write(replace(OURS, data={"x": math.nan}), tmp_path / FILE)
    assert load(tmp_path / FILE) == OURS
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        result_file.write(OURS, tmp_path / "taken")
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "taken"}


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
        ("[1]", "Expected `object`, got `array`"),
        ("{}", "Object missing required field `provenance`"),
        (changed("seed", to=7.5), "Expected `int`, got `float` - at `$.seed`"),
        (changed("aims", 0, "verdict", to="perhaps"), "Invalid enum value 'perhaps' - at `$.aims[0].verdict`"),
        (changed("aims", 0, "value", to=math.inf), "JSON is malformed: invalid character"),
    ],
)
def test_file_that_is_no_result_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(ResultError) as error:
        load(tmp_path / FILE)
    assert str(error.value).startswith(f"{tmp_path / FILE}: {message}")
    assert "\n" not in str(error.value)


def test_key_of_a_later_version_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(changed("later", to=1))
    assert load(tmp_path / FILE) == PAPERS


class Made(Experiment):
    """An experiment without a testbed."""

    found: Callable[[], Findings]

    def run(
        self, console: Console, seed: int, quick: bool, options: Mapping[str, str], keep: object = None
    ) -> Findings:
        return type(self).found()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> type[Made]:
    """Replace an experiment by one that returns the result of calling the attribute *found*."""
    monkeypatch.setitem(EXPERIMENTS, "goodput", Made("goodput", "made up", "goodput"))
    monkeypatch.setattr(Made, "found", staticmethod(lambda: findings(SOUND)), raising=False)
    return Made


def drawn(*names: str, error: BaseException | None = None) -> Callable[[], Findings]:
    """Return findings with pictures. *error* is raised when half of a picture is drawn as SVG."""

    def draw(target: Path) -> None:
        target.write_text("half of it")
        if error is not None and target.suffix == ".svg":
            raise error

    return staticmethod(lambda: replace(findings(SOUND), pictures=tuple(Picture(name, draw) for name in names)))


def test_run_leaves_its_result_and_its_pictures(
    made: type[Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.found = drawn("picture")
    assert main(["run", "goodput", "--output", str(tmp_path), "--seed", "3"]) == 0
    directory = tmp_path / "goodput"
    assert {path.name for path in directory.iterdir()} == {FILE, "picture.png", "picture.svg"}
    found = load(directory / FILE)
    assert (found.experiment, found.seed, found.provenance.seed, found.pictures) == ("goodput", 3, 3, ("picture",))
    assert str(directory / FILE) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "No space left on device"),
    ],
)
def test_pictures_of_an_earlier_run_are_removed_when_new_ones_cannot_be_drawn(
    made: type[Made], tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, said: str
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
    assert capsys.readouterr().err == f"mptcp-bench: {said}\nmptcp-bench: {kept}\n"


def test_run_fails_when_it_misses_an_aim(made: type[Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made.found = staticmethod(lambda: findings(*AIMS))
    assert main(["run", "goodput", "--output", str(tmp_path), "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out) == json.loads((tmp_path / "goodput" / FILE).read_text())
    assert "mptcp-bench run goodput: b: gap: 0.5 s, wanted ≤ 0.25\n" in err


def test_directory_that_cannot_be_written_is_reported_before_anything_is_measured(
    made: type[Made], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "goodput").write_text("a file")
    assert main(["run", "goodput", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"mptcp-bench: {tmp_path}/goodput: File exists\n"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [(KeyboardInterrupt(), INTERRUPTED, "interrupted"), (TestbedError("the proxy is gone"), 1, "the proxy is gone")],
)
def test_run_that_ends_early_keeps_nothing_and_the_earlier_result_stays(
    made: type[Made], tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, said: str
) -> None:
    def found() -> Findings:
        raise error

    made.found = staticmethod(found)
    target = tmp_path / "goodput" / FILE
    assert main(["run", "goodput", "--output", str(tmp_path)]) == status
    assert capsys.readouterr().err == f"mptcp-bench: {said}\nmptcp-bench: nothing of this run is kept\n"
    assert not target.parent.exists()
    result_file.write(OURS, target)
    error.__notes__.clear()
    assert main(["run", "goodput", "--output", str(tmp_path)]) == status
    earlier = f"nothing of this run is kept; {target} is of an earlier run"
    assert capsys.readouterr().err == f"mptcp-bench: {said}\nmptcp-bench: {earlier}\n"
    assert load(target) == OURS
