# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for result files, and for the runs that write them: aims, pictures, interrupted runs, and error messages."""

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
from rich.table import Table as RichTable
from rich.text import Text

from mptcp_bench import result_file
from mptcp_bench.cli import INTERRUPTED, main
from mptcp_bench.experiments import Experiment
from mptcp_bench.experiments.findings import Aim, Findings, Picture
from mptcp_bench.result_file import FILE, ExperimentResult, Provenance, Table, Verdict, load
from mptcp_lab.testbed import TestbedError

PROVENANCE = Provenance(
    "mptcp-bench run fig3 --seed 7", "0123456789abcdef0123456789abcdef01234567", kernel="6.18.44", processors=2,
    squid="5.7", python="3.11.2", seed=7, started="2026-01-02T03:04:05+00:00",
)  # fmt: skip
OURS = ExperimentResult(
    provenance=PROVENANCE,
    experiment="recovery",
    title="kill -9",
    parameters={"runs": 3},
    seed=7,
    aims=(
        Verdict("iptables: gap", 0.125, " s", None, 0.25),
        Verdict("nftables: gap", None, " s", None, 0.25),
        Verdict("nftables: seconds", 0.7),
    ),
    tables=(Table("rates", "Rates", ("path", "Mbit/s"), (("eth0 <b>", "5.0"),)),),
    pictures=("drawn",),
    data={"samples": [1, 2, 3]},
)
"""A result of our experiment ``recovery``."""
PAPERS = replace(
    OURS,
    experiment="fig3",
    title="Figure 3: Multipath TCP",
    aims=(
        Verdict("No less than TCP.", None, verdict="holds", measured_text="113 against 92 Mbit/s."),
        Verdict(
            "Wi-Fi stays unused.",
            None,
            verdict="differs",
            measured_text="It carried 20 %.",
            explanation="The scheduler fills it.",
        ),
    ),
    pictures=("figure",),
    notes=("1 × fell back",),
)
"""A result of the paper's experiment ``fig3``."""
MET = Aim("a: share", 0.97, least=0.95, most=1.05)
AIMS = (MET, Aim("b: gap", 0.5, " s", most=0.25), Aim("c: reload", math.inf, " s", most=5), Aim("d: greatest", 12))


def findings(*aims: Aim) -> Findings:
    """Return findings with two tables, data and *aims*."""
    first, second = (RichTable("cell", "kept", title=f"Many, many downloads: {number}") for number in (1, 2))
    first.add_row("bbr, 20/20 ms", "[green]0.99 ± 0.01[/]")
    first.add_row(Text("cubic"), "")
    data = {"runs": ({"kept": 0.5, "never": math.inf},), "by": {4: (1, 2)}}
    return Findings((first, second), data, aims=aims)


def test_result_and_its_file_have_all_findings(tmp_path: Path) -> None:
    found = findings(*AIMS).added_to(OURS)
    assert [aim.measured for aim in found.aims] == ["0.97", "0.5 s", "inf s", "12"]
    assert [table.key for table in found.tables] == ["many", "many-2"]
    assert found.tables[0].rows == (("bbr, 20/20 ms", "0.99 ± 0.01"), ("cubic", ""))
    assert findings(MET).wrong == ()
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
        # The text of a missed value must not be within the bounds.
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
    """Runs ``mptcp-bench`` with a fake experiment, whose run is the function ``measure``."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.target, self._capsys = directory / "fig2" / FILE, capsys
        self.measure: Callable[[], Findings] = lambda: findings(MET)

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
    fake = Bench(tmp_path, capsys)
    monkeypatch.setattr(Experiment, "load", lambda _: fake.load())
    return fake


def findings_with_pictures(*names: str, error: BaseException | None = None) -> Findings:
    """Return findings with pictures. An *error* is raised while a picture is drawn as SVG."""

    def draw(target: Path) -> None:
        target.write_text("half of the picture")
        if error is not None and target.suffix == ".svg":
            raise error

    return replace(findings(MET), pictures=tuple(Picture(name, draw) for name in names))


def test_run_writes_result_and_pictures_and_fails_if_it_misses_an_aim(bench: Bench) -> None:
    bench.measure = lambda: findings_with_pictures("picture")
    assert bench.run() == (0, "")
    assert bench.files == {FILE, "picture.png", "picture.svg"}
    found = load(bench.target)
    assert (found.experiment, found.seed, found.provenance.seed, found.pictures) == ("fig2", 3, 3, ("picture",))
    bench.measure = lambda: findings(*AIMS)
    status, text = bench.run()
    assert status == 1
    assert "mptcp-bench run fig2: b: gap: 0.5 s, wanted ≤ 0.25\n" in text


def test_pictures_of_an_earlier_run_are_removed_if_new_ones_cannot_be_drawn(bench: Bench) -> None:
    """Defect: report showed the picture of an earlier run as a picture of the new result."""
    result_file.write(OURS, bench.target)
    for name in ("first.svg", "second.png", "second.svg"):
        bench.target.with_name(name).write_text("of an earlier run")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    bench.measure = lambda: findings_with_pictures("first", "second", error=full)
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


def test_missed_aim_of_the_demo_is_reported_with_its_command(bench: Bench) -> None:
    bench.measure = lambda: findings(*AIMS)
    status, text = bench.run("demo", "--quick")
    assert (status, text.splitlines()[0].rpartition(": b: ")[0]) == (1, "mptcp-bench demo")
