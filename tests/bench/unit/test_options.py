# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for --set options of our experiments: accepted, or refused in one line with option, value and allowed ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mptcp_bench.cli import main
from mptcp_bench.experiments import EXPERIMENTS, scenario
from mptcp_bench.experiments.parameters import OptionError, given

KNOWN = {"runs": "of each, default 5", "rtt": "RTTs in ms"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["run=3"], "--set run=3: unknown; it can set runs (of each, default 5); rtt (RTTs in ms)"),
        (["runs"], "--set runs: write runs=VALUE; runs is of each, default 5"),
        (["runs=1", "runs=2"], "--set runs=2: runs is set twice; where a list is allowed, separate by commas"),
    ],
)
def test_settings_are_read_by_name_or_refused_in_one_line(settings: list[str], message: str) -> None:
    assert given(["runs=3", "rtt=a=b"], KNOWN) == {"runs": "3", "rtt": "a=b"}
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        given(settings, KNOWN)


REFUSED = {
    "crowds": ("runs=1",),
    "goodput": ("runs=ten",),
    "guard": ("rtt=20001", "rtt=20,20"),
    "middleboxes": ("behaviour=nat,nat",),
    "onset": ("rtt=30000/20", "cap=100-0", "cap=0-0", "cap=5-100", "cc=", "cc=bbrr", "cap=100-5,100-5"),
    "pages": ("size=1k", "size=100k,100k", "at_once=0"),
    "soak": ("minutes=0.2",),
    "steering": ("rtt=-5/20", "kind=no rule|no rule"),
}
"""For each experiment: settings with which a run is not useful."""


@pytest.mark.parametrize(("name", "setting"), [(name, setting) for name, each in REFUSED.items() for setting in each])
def test_useless_settings_are_refused_in_one_line_before_a_run(
    name: str, setting: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenario, "need", lambda *_: None)
    # Settings that are not refused must fail here, without a run.
    monkeypatch.setattr(scenario, "Attempts", None)
    assert main(["run", name, "--set", setting, "--output", str(tmp_path)]) == 1
    assert re.fullmatch(f"mptcp-bench: run {name}: --set .*\n", capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_list_names_every_experiment_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(f" {name} " in listed for name in EXPERIMENTS)
    with pytest.raises(SystemExit):
        main(["run", "nothing"])
    assert "goodput" in capsys.readouterr().err
