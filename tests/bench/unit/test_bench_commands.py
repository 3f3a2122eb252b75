# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the umask of all commands of ``mptcp-bench``, and for the provenance of a result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from mptcp_bench import cli
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


def test_commit_tells_whether_the_working_copy_is_unchanged(tmp_path: Path) -> None:
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
    (tmp_path / ".git" / "index").write_bytes(b"not an index")
    assert _commit(tmp_path) == f"{head}-broken"


def test_command_of_a_result_excludes_the_output_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/usr/bin/mptcp-bench", "run", "soak", "--output", "/tmp/a", "--set", "n=5", "--output=b"]
    monkeypatch.setattr("sys.argv", words)
    assert collect().command == "mptcp-bench run soak --set n=5"
