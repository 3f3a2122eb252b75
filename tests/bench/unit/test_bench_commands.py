# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for what all commands of ``mptcp-bench`` share: umask, provenance, and the order of a clean-up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mptcp_bench import cli
from mptcp_bench.provenance import UNKNOWN, _commit, collect
from mptcp_lab.agent import files


@pytest.mark.parametrize("umask", [0o027, 0o077], ids=["027", "077"])
def test_others_can_read_what_an_origin_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int) -> None:
    """Defect: Apache could not enter these directories, so that the demo failed."""
    served = tmp_path / "origin-apache/htdocs"
    monkeypatch.setattr(cli, "_list", lambda _: files.main([str(served), "file=3"]))
    before = os.umask(umask)
    try:
        assert cli.main(["list"]) == 0
    finally:
        os.umask(before)
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in (served.parent, served, served / "file")}
    assert modes == {"origin-apache": "0o755", "htdocs": "0o755", "file": "0o644"}


def test_commit_says_whether_the_working_copy_is_unchanged(tmp_path: Path) -> None:
    def git(*argv: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *who, *argv], check=True, capture_output=True, text=True, timeout=30
        ).stdout.strip()

    assert _commit(tmp_path) == UNKNOWN
    (tmp_path / "file").write_text("a")
    for argv in (("init", "-q"), ("add", "file"), ("commit", "-q", "-m", "first")):
        git(*argv)
    head = git("rev-parse", "HEAD")
    assert _commit(tmp_path) == head
    (tmp_path / "file").write_text("b")
    assert _commit(tmp_path) == f"{head}-dirty"
    # git rev-parse does not read the index. git status reads it, and fails.
    (tmp_path / ".git" / "index").write_bytes(b"nothing of the kind")
    assert _commit(tmp_path) == f"{head}-unknown"


def test_command_of_a_result_does_not_say_where_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/usr/bin/mptcp-bench", "run", "soak", "--output", "/tmp/there", "--set", "n=5", "--output=here"]
    monkeypatch.setattr("sys.argv", words)
    assert collect().command == "mptcp-bench run soak --set n=5"
