# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for a result's provenance: the commit, and whether the files were unchanged from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mptcp_bench.provenance import UNKNOWN, _commit, collect


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Make a repository with one commit of one file."""
    (tmp_path / "file").write_text("a")
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for argv in (("init", "-q"), ("add", "file"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", "-C", str(tmp_path), *argv], check=True, timeout=30)
    return tmp_path


def head(repository: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_clean_working_copy_is_its_commit(repository: Path) -> None:
    assert _commit(repository) == head(repository)


def test_a_file_that_changed_is_said(repository: Path) -> None:
    (repository / "file").write_text("b")
    assert _commit(repository) == f"{head(repository)}-dirty"


def test_a_status_that_failed_does_not_read_as_clean(repository: Path) -> None:
    commit = head(repository)
    # rev-parse does not read the index; status does, and fails.
    (repository / ".git" / "index").write_bytes(b"nothing of the kind")
    assert _commit(repository) == f"{commit}-unknown"


def test_without_a_repository_the_commit_is_unknown(tmp_path: Path) -> None:
    assert _commit(tmp_path) == UNKNOWN


def test_the_command_does_not_say_where_its_results_went(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["/usr/bin/mptcp-bench", "run", "soak", "--output", "/tmp/there", "--set", "n=5", "--output=here"]
    monkeypatch.setattr("sys.argv", words)
    assert collect().command == "mptcp-bench run soak --set n=5"
