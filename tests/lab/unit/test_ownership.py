# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for runs whose directory cannot be removed, or that cannot be claimed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from full_disk import full_at
from immutable import immutable

from mptcp_lab.testbed import TestbedError, ownership


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep runs and namespaces below *tmp_path*."""
    for attribute, name in (("RUN_DIRECTORY", "runs"), ("NAMESPACES", "netns")):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(ownership, attribute, tmp_path / name)


@pytest.mark.usefixtures("own")
def test_directory_that_cannot_be_removed_is_named_and_stays_owned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "parent_directory", lambda: str(tmp_path))
    claiming = ownership.claimed_run()
    claimed = claiming.__enter__()
    (claimed.directory / "logs").mkdir()
    (claimed.directory / "logs" / "stuck").touch()
    with (
        immutable(monkeypatch, "stuck"),
        pytest.raises(TestbedError, match=r"/logs/stuck: Operation not permitted; mptcp-bench cleanup tries again$"),
    ):
        claiming.__exit__(None, None, None)
    assert [(run.id, run.alive, run.directory) for run in ownership.runs()] == [(claimed.id, False, claimed.directory)]
    with immutable(monkeypatch, "stuck"):
        cleaned = ownership.remove_stale()
    name = f"testbed {claimed.id} of process {os.getpid()}"
    assert cleaned.left == (f"{name}: remove {claimed.directory}/logs/stuck: Operation not permitted",)
    assert cleaned.done == ()
    assert ownership.remove_stale() == ownership.Cleaned((f"removed {name}",), ())
    assert not claimed.directory.exists()
    assert ownership.runs() == ()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("full", ["tmp", "run"])
def test_run_that_cannot_be_claimed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    """Defect: a full disk left an empty lock file, which cleanup named as damaged from then on."""
    directories = tmp_path / "directories"
    monkeypatch.setattr(ownership, "parent_directory", lambda: str(directories))
    if full == "run":
        directories.mkdir()
    with (
        full_at(0),
        pytest.raises(OSError, match=r"No such file|File too large"),
        ownership.claimed_run(),
    ):
        pass
    assert ownership.runs() == ()
    assert ownership.remove_stale() == ownership.Cleaned((), ())
    assert full == "tmp" or list(directories.iterdir()) == []
