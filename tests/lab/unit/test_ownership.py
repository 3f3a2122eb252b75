# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for runs with a damaged lock file or a directory that cannot be removed: cleanup names them and keeps them."""

from __future__ import annotations

import fcntl
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
def test_a_run_with_a_damaged_lock_file_is_named(tmp_path: Path, deleted: list[str], content: bytes) -> None:
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
def test_a_directory_that_stays_at_the_end_of_a_run_is_named_and_stays_owned(
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
def test_a_run_gives_back_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "parent_directory", lambda: str(tmp_path))
    with ownership.claimed_run() as claimed:
        (claimed.directory / "file").touch()
    assert ownership.runs() == ()
    assert not claimed.directory.exists()


@pytest.mark.usefixtures("deleted")
def test_a_run_that_ends_while_it_is_looked_at_is_no_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: cleanup claimed to have removed a run that had removed everything itself."""
    monkeypatch.setattr(ownership, "parent_directory", lambda: str(tmp_path))
    claiming = ownership.claimed_run()
    claiming.__enter__()
    flock = fcntl.flock

    def ending(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            claiming.__exit__(None, None, None)
        flock(descriptor, operation)

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", ending)
    assert ownership.remove_stale() == ownership.Cleaned((), ())
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1, "the file of the run is closed, by both"


@pytest.mark.usefixtures("deleted")
@pytest.mark.parametrize("full", ["tmp", "run"])
def test_a_run_that_cannot_be_claimed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
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


@pytest.mark.usefixtures("deleted")
def test_what_stays_is_collected_by_who_has_a_result_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "parent_directory", lambda: str(tmp_path))
    measured = None
    with immutable(monkeypatch, "stuck"), ownership.collected_leftovers() as left:
        with ownership.claimed_run() as claimed:
            (claimed.directory / "stuck").touch()
        measured = "what took an hour"
    assert measured is not None
    why = f"remove {claimed.directory}/stuck: Operation not permitted"
    assert left == [f"testbed {claimed.id}: {why}; mptcp-bench cleanup tries again"]
    assert [(run.id, run.alive, run.directory) for run in ownership.runs()] == [(claimed.id, False, claimed.directory)]
    with pytest.raises(TestbedError, match=r"^a file stays$"):
        ownership.leave_behind("a file stays")
