# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for runs with a damaged lock file or a directory that cannot be removed: cleanup names them and keeps them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from full_disk import full_at
from immutable import immutable

from mptcp_lab.testbed import TestbedError, ownership


@pytest.fixture
def deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep runs and namespaces below *tmp_path*; return the names of namespaces as they are deleted."""
    monkeypatch.setattr(ownership, "RUN_DIRECTORY", tmp_path / "runs")
    monkeypatch.setattr(ownership, "NAMESPACES", tmp_path / "netns")
    names: list[str] = []

    def delete(namespace: str) -> None:
        (tmp_path / "netns" / namespace).unlink()
        names.append(namespace)

    monkeypatch.setattr(ownership, "delete_namespace", delete)
    for name in ("runs", "netns"):
        (tmp_path / name).mkdir()
    return names


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff",
        b"[]",
        b"{}",
        b'{"pid": 7}',
        b'{"pid": null, "directory": "/"}',
        b'{"pid": 7, "directory": 7}',
        b'{"pid": 7, "directory": "/"}',
        b'{"pid": 7, "directory": "/tmp/mpx-d4e5f6-x"}',
    ],
)
def test_run_with_a_damaged_lock_file_is_named_and_kept(tmp_path: Path, deleted: list[str], content: bytes) -> None:
    lock = tmp_path / "runs" / "a1b2c3.lock"
    lock.write_bytes(content)
    (tmp_path / "netns" / "mpx-a1b2c3-core").touch()
    sound, directory = tmp_path / "runs" / "d4e5f6.lock", tmp_path / "mpx-d4e5f6-x"
    directory.mkdir()
    sound.write_text(json.dumps({"pid": 7, "directory": str(directory)}))
    assert [run.id for run in ownership.runs()] == ["a1b2c3", "d4e5f6"]
    for expected in (["mpx-a1b2c3-core"], []):
        deleted.clear()
        cleaned = ownership.remove_stale()
        (left,) = cleaned.left
        assert left.startswith(f"testbed a1b2c3: {lock} is damaged and does not say where")
        assert deleted == expected
        assert lock.exists()
    assert not sound.exists()
    assert not directory.exists()


@pytest.mark.usefixtures("deleted")
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


@pytest.mark.usefixtures("deleted")
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
