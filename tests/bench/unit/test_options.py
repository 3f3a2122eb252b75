# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for --set options of our experiments: accepted, or refused in one line with option, value and allowed ones."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from mptcp_bench.cli import main
from mptcp_bench.experiments import EXPERIMENTS, scenario
from mptcp_bench.experiments.parameters import OptionError, given
from mptcp_bench.experiments.scenario import Scenario

KNOWN = {"runs": "of each, default 5", "rtt": "RTTs in ms"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["run=3"], "--set run=3: unknown; it can set runs (of each, default 5); rtt (RTTs in ms)"),
        (["runs"], "--set runs: write runs=VALUE; runs is of each, default 5"),
        (["runs=1", "runs=2"], "--set runs=2: runs is set twice; where a list is allowed, separate by commas"),
    ],
)
def test_settings_are_taken_by_name_or_refused_in_one_line(settings: list[str], message: str) -> None:
    assert given(["runs=3", "rtt=a=b"], KNOWN) == {"runs": "3", "rtt": "a=b"}
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        given(settings, KNOWN)


def module_of(name: str) -> ModuleType:
    """Return the module that runs the experiment."""
    is_scenario = isinstance(EXPERIMENTS[name].load(), Scenario)
    return scenario if is_scenario else import_module(f"mptcp_bench.experiments.{EXPERIMENTS[name].file}")


COUNTED = [name for name, each in EXPERIMENTS.items() if "runs" in getattr(each.load(), "OPTIONS", {})]


@pytest.mark.parametrize("name", COUNTED)
def test_a_number_of_runs_that_is_none_is_one_line(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module_of(name), "need", lambda *_: None)
    assert main(["run", name, "--set", "runs=ten", "--output", str(tmp_path / "results")]) == 1
    assert not list(tmp_path.glob("results/*")), "a refusal leaves no directory"
    # At least two runs are needed for a comparison.
    least = 2 if name == "crowds" else 1
    message = capsys.readouterr().err
    assert message == f"mptcp-bench: run {name}: --set runs=ten: allowed are whole numbers from {least} on\n"


SENSELESS = {
    "guard": ("rtt=20001", "rtt=20,20"),
    "middleboxes": ("behaviour=nat,nat",),
    "onset": (
        "rtt=20", "rtt=-5/20", "rtt=nan/nan", "rtt=inf/20", "rtt=30000/20", "cap=100-0", "cap=0-0", "cap=5-100", "cc=",
        "cc=bbrr", "cap=100-5,100-5",
    ),
    "pages": ("size=1k", "size=100k,100k", "at_once=0"),
    "soak": ("minutes=0.2",),
    "steering": ("rtt=20", "rtt=-5/20", "rtt=nan/nan", "rtt=inf/20", "rtt=30000/20", "kind=no rule|no rule"),
}  # fmt: skip
"""For each experiment: settings that a reader might try, but with which a run is not useful."""


@pytest.mark.parametrize(("name", "wrong"), [(name, wrong) for name, each in SENSELESS.items() for wrong in each])
def test_options_that_make_no_sense_are_one_line(
    name: str, wrong: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = module_of(name)
    monkeypatch.setattr(module, "need", lambda *_: None)
    # Settings that are not refused must fail here, without a run.
    monkeypatch.setattr(module, "Attempts" if module is scenario else "Testbed", None)
    assert main(["run", name, "--set", wrong, "--output", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"mptcp-bench: run {name}: --set ")
    assert message.count("\n") == 1
