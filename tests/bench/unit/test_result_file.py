# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for result files and the runs that write them: aims, complete files, and errors in one line."""

from __future__ import annotations

import errno
import math
import os
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
from mptcp_bench.experiments import Experiment
from mptcp_bench.experiments.findings import Aim, Findings, Picture
from mptcp_bench.result_file import FILE, Verdict, load
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
    found = findings(*AIMS).added_to(OURS)
    assert [aim.measured for aim in found.aims] == ["0.97", "0.5 s", "inf s", "12"]
    assert [table.key for table in found.tables] == ["many", "many-2"]
    assert found.tables[0].rows == (("bbr, 20/20 ms", "0.99 ± 0.01"), ("cubic", ""))
    assert findings(SOUND).wrong == ()
    assert findings(*AIMS).wrong == ("b: gap: 0.5 s, wanted ≤ 0.25", "c: reload: inf s, wanted ≤ 5")
    target = tmp_path / "new" / FILE
    result_file.write(PAPERS, target)
    assert load(target) == PAPERS
    result_file.write(found, target)
    assert list(tmp_path.glob("**/*")) == [target.parent, target]
    written = load(target)
    assert written.aims[2] == Verdict("c: reload", None, " s", None, 5, "missed")
    assert [aim.verdict for aim in written.aims] == ["met", "missed", "missed", "no aim"]
    assert written.data == {"runs": [{"kept": 0.5, "never": None}], "by": {"4": [1, 2]}}


@pytest.mark.parametrize(
    ("value", "least", "most", "verdict", "text"),
    [
        (1.0, 1, 1, "met", "1"),
        (1.1, 1, 1, "missed", "1.1"),
        # A missed aim must not look as if it were met.
        (0.99996, 1, None, "missed", "0.99996"),
        (math.nextafter(1, 0), 1, None, "missed", "0.9999999999999999"),
        (math.nan, 0, None, "missed", "nan"),
        (math.inf, 0, None, "missed", "inf"),
    ],
)
def test_aim_is_met_within_its_bounds(
    value: float, least: float | None, most: float | None, verdict: str, text: str
) -> None:
    aim = Aim("x", value, least=least, most=most)
    assert (aim.verdict, aim.measured) == (verdict, text)
    assert (not aim.met) is (verdict == "missed")


class Bench:
    """Runs the experiment ``fig2``, which is replaced by a function."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.target, self._capsys = directory / "fig2" / FILE, capsys
        self.measure: Callable[[], Findings] = lambda: findings(SOUND)

    def load(self) -> Any:
        return SimpleNamespace(OPTIONS={}, chosen=lambda *_: None, run=lambda *_: self.measure())

    def run(self, *command: str) -> tuple[int, str]:
        """Return the exit status and the text on stderr of *command*, or of ``run fig2``."""
        status = main([*(command or ("run", "fig2", "--seed", "3")), "--output", str(self.target.parent.parent)])
        return status, self._capsys.readouterr().err

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.target.parent.iterdir()}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    made = Bench(tmp_path, capsys)
    monkeypatch.setattr(Experiment, "load", lambda _: made.load())
    return made


def pictured(*names: str, error: BaseException | None = None) -> Findings:
    """Return findings with pictures. *error* is raised when half of a picture is drawn as SVG."""

    def draw(target: Path) -> None:
        target.write_text("half of the picture")
        if error is not None and target.suffix == ".svg":
            raise error

    return replace(findings(SOUND), pictures=tuple(Picture(name, draw) for name in names))


def test_run_leaves_result_and_pictures_and_fails_when_it_misses_an_aim(bench: Bench) -> None:
    bench.measure = lambda: pictured("picture")
    assert bench.run() == (0, "")
    assert bench.files == {FILE, "picture.png", "picture.svg"}
    found = load(bench.target)
    assert (found.experiment, found.seed, found.provenance.seed, found.pictures) == ("fig2", 3, 3, ("picture",))
    bench.measure = lambda: findings(*AIMS)
    status, text = bench.run()
    assert status == 1
    assert "mptcp-bench run fig2: b: gap: 0.5 s, wanted ≤ 0.25\n" in text


def test_pictures_of_an_earlier_run_are_removed_when_new_ones_cannot_be_drawn(bench: Bench) -> None:
    """Defect: report showed the picture of an earlier run as a picture of the new result."""
    result_file.write(OURS, bench.target)
    for name in ("first.svg", "second.png", "second.svg"):
        bench.target.with_name(name).write_text("of an earlier run")
    bench.measure = lambda: pictured("first", "second", error=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert bench.run() == (1, "mptcp-bench: [Errno 28] No space left on device\n")
    assert bench.files == {FILE, "first.png", "first.svg"}
    assert load(bench.target).seed == 3


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [(KeyboardInterrupt, INTERRUPTED, "interrupted"), (TestbedError, 1, "run fig2: no proxy")],
)
def test_run_that_ends_early_leaves_the_earlier_result(
    bench: Bench, error: type[BaseException], status: int, message: str
) -> None:
    def measure() -> Findings:
        raise error("no proxy")

    bench.measure = measure
    result_file.write(OURS, bench.target)
    assert bench.run() == (status, f"mptcp-bench: {message}\n")
    assert load(bench.target) == OURS


def test_complaint_of_the_demo_names_its_command(bench: Bench) -> None:
    bench.measure = lambda: findings(*AIMS)
    status, text = bench.run("demo", "--quick")
    assert (status, text.splitlines()[0].rpartition(": b: ")[0]) == (1, "mptcp-bench demo")
