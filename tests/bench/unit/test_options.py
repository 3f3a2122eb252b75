# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for --set options of our experiments: accepted, or refused in one line with option, value and allowed ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mptcp_bench.cli import main
from mptcp_bench.experiments import EXPERIMENTS, scenario
from mptcp_bench.experiments.parameters import OptionError, given

KNOWN = {"runs": "number of runs, default 5", "rtt": "RTTs in ms"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["run=3"], "--set run=3: unknown; it can set runs (number of runs, default 5); rtt (RTTs in ms)"),
        (["runs"], "--set runs: write runs=VALUE; runs is number of runs, default 5"),
        (["runs=1", "runs=2"], "--set runs=2: runs is set twice; where a list is allowed, separate by commas"),
    ],
)
def test_settings_are_read_by_name_or_refused_in_one_line(settings: list[str], message: str) -> None:
    assert given(["runs=3", "rtt=a=b"], KNOWN) == {"runs": "3", "rtt": "a=b"}
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        given(settings, KNOWN)


TWO_RTTS = "allowed are the RTTs of two paths, such as 20/80, each 0 to 20000 ms"
CAPS = "allowed are a path's rate and a lower cap in Mbit/s, such as 100-5"


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        *(
            ("goodput", f"runs={text}", "allowed are whole numbers from 1 on")
            for text in ("ten", "0", "-1", "1.5", "", " 1", "1_0", "٣", "9" * 5000)
        ),
        ("crowds", "runs=1", "allowed are whole numbers from 2 on"),
        ("crowds", "turns=1", "allowed are yes and no"),
        ("guard", "rtt=20001", "allowed are whole numbers from 1 to 20000"),
        ("guard", "rtt=20,x", "'x': allowed are whole numbers from 1 to 20000"),
        ("guard", "rtt=20,60,20", "'20' occurs twice"),
        *(("onset", f"rtt={text}", TWO_RTTS) for text in ("30000/20", "20", "20/nan", "-5/20")),
        *(("onset", f"cap={text}", CAPS) for text in ("100-0", "0-0", "5-100")),
        ("onset", "cc=", "allowed are bbr, cubic"),
        ("onset", "cc=bbr,reno", "'reno': allowed are bbr, cubic"),
        *(("soak", f"minutes={text}", "allowed is a number greater than 0.25") for text in ("0.2", "inf")),
    ],
)
def test_useless_settings_are_refused_in_one_line_before_a_run(
    name: str, setting: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(scenario, "need", lambda *_: None)
    # Settings that are not refused must fail here, without a run.
    monkeypatch.setattr(scenario, "Attempts", None)
    assert main(["run", name, "--set", setting, "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"mptcp-bench: run {name}: --set {setting}: {message}\n"
    assert not list(tmp_path.iterdir())


def test_list_names_every_experiment_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(f" {name} " in listed for name in EXPERIMENTS)
    with pytest.raises(SystemExit):
        main(["run", "nothing"])
    assert "goodput" in capsys.readouterr().err
