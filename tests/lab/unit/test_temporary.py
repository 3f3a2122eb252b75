# SPDX-License-Identifier: GPL-2.0-or-later
"""Test for a defect: if others may not enter root's TMPDIR, Apache and Squid could not use a testbed's directory.

The TMPDIR is below the test's directory, which pytest makes for one user only.
"""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from mptcp_lab.agent.temporary import parent_directory
from mptcp_lab.remote.connection import Login, packed_agent, ssh_command
from mptcp_lab.testbed import ownership


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Return a directory that others can enter, below one that they cannot."""
    above = tmp_path / "user"
    (above / "open").mkdir(parents=True)
    above.chmod(0o700)
    return above / "open"


def test_another_directory_is_taken_where_others_cannot_enter_the_temporary_one(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    link.symlink_to(closed)
    for given in (closed, closed.parent, link):
        monkeypatch.setattr(tempfile, "tempdir", str(given))
        assert parent_directory() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/usr/..")
    assert parent_directory() == "/"


def test_a_testbed_has_its_directory_there(closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(closed))
    monkeypatch.setattr(ownership, "RUN_DIRECTORY", tmp_path / "runs")
    monkeypatch.setattr(ownership, "NAMESPACES", tmp_path / "netns")
    with ownership.claimed_run() as claimed:
        assert claimed.directory.parent == Path("/tmp")
    assert not claimed.directory.exists()
    (tmp_path / "runs" / "a1b2c3.lock").touch()
    (left,) = ownership.remove_stale().left
    assert "remove /tmp/mpx-a1b2c3-*, then that file" in left


@pytest.mark.parametrize("asked", [False, True], ids=["by default", "as the inventory says"])
def test_so_has_a_run_on_a_host_reached_by_ssh(
    closed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setenv("TMPDIR", str(closed))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)
    command = ssh_command(Login("host", directory=str(closed) if asked else None), "a-run")[-1]
    session = base64.b64encode(packed_agent()) + b"\n"
    done = subprocess.run(["sh", "-c", command], input=session, check=True, capture_output=True, timeout=60)
    ready = [answer["ready"] for answer in map(json.loads, done.stdout.splitlines()) if "ready" in answer]
    assert [Path(directory).parent for directory in ready] == [closed if asked else Path("/tmp")]
    assert not Path(ready[0]).exists()
