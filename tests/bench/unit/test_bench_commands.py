# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for ``mptcp-bench``: umask, provenance of a result, refused options of ``--set``, list of experiments."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mptcp_bench import cli
from mptcp_bench.experiments import EXPERIMENTS, scenario
from mptcp_bench.provenance import UNKNOWN, _commit, collect
from mptcp_lab.agent import files


def test_other_users_can_read_the_files_of_an_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: Apache could not enter these directories, so that the demo failed."""
    served = tmp_path / "origin-apache/htdocs"
    monkeypatch.setattr(cli, "_list", lambda _: files.main([str(served), "file=3"]))
    before = os.umask(0o077)
    try:
        assert cli.main(["list"]) == 0
    finally:
        os.umask(before)
    modes = [oct(path.stat().st_mode & 0o777) for path in (served.parent, served, served / "file")]
    assert modes == ["0o755", "0o755", "0o644"]


def test_commit_of_a_result_has_a_suffix_if_the_working_copy_differs(tmp_path: Path) -> None:
    def git(*argv: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.check_output(["git", "-C", str(tmp_path), *identity, *argv], text=True, timeout=30).strip()

    git("init", "-q")
    assert _commit(tmp_path) == UNKNOWN
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert _commit(tmp_path) == head
    (tmp_path / "file").write_text("b")
    assert _commit(tmp_path) == f"{head}-dirty"
    # With this index, git rev-parse succeeds, but git status fails.
    (tmp_path / ".git" / "index").write_bytes(b"not an index")
    assert _commit(tmp_path) == f"{head}-broken"


def test_command_of_a_result_excludes_the_output_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/usr/bin/mptcp-bench", "run", "soak", "--output", "/tmp/a", "--set", "n=5", "--output=b"]
    monkeypatch.setattr("sys.argv", words)
    assert collect().command == "mptcp-bench run soak --set n=5"


TWO_RTTS = "allowed are the RTTs of two paths, such as 20/80, each 0 to 20000 ms"
CAPS = "allowed are a path's rate and a lower cap in Mbit/s, such as 100-5"


@pytest.mark.parametrize(
    ("name", "setting", "message"),
    [
        *(
            ("goodput", f"runs={text}", "allowed are whole numbers from 1 on")
            for text in ("ten", "0", "-1", "1.5", "", "1_0", "٣", "9" * 5000)
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
        ("goodput", "run=3", "unknown; it can set runs (number of downloads"),
        ("goodput", "runs", "write runs=VALUE; runs is number of downloads"),
        ("goodput", "runs=1 runs=2", "runs is set twice; where a list is allowed, separate by commas"),
        ("fig2", "wifi.rtt=16", 'write a number and us, ms or s (e.g. "16 ms")'),
        ("fig2", "wifi.loss=101%", "'101%': 0 % to 100 % is allowed"),
        ("fig2", "wifi.jitter=9ms", "wifi: jitter 9000 µs: 0 to the delay, 8000 µs"),
    ],
)
def test_invalid_settings_are_refused_in_one_line_before_a_run(
    name: str, setting: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(scenario, "need", lambda *_: None)
    # If settings are accepted, the run fails here.
    monkeypatch.setattr(scenario, "Attempts", None)
    settings = (word for each in setting.split() for word in ("--set", each))
    assert cli.main(["run", name, *settings, "--output", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"mptcp-bench: run {name}: --set")
    assert message in line
    assert not list(tmp_path.iterdir())


def test_list_names_every_experiment_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert all(f" {name} " in listed for name in EXPERIMENTS)
    with pytest.raises(SystemExit):
        cli.main(["run", "nothing"])
    assert "goodput" in capsys.readouterr().err
