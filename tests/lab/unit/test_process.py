# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the directory of a testbed, for refused mounts, and for the end of process trees."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import pytest
from examples import examples

from mptcp_lab.agent.files import parent_directory
from mptcp_lab.agent.processes import MountError, kill_tree, mount_script


def test_nothing_is_mounted_over_the_root() -> None:
    with pytest.raises(MountError, match="none of its parent directories exists"):
        mount_script({"/no-such-directory/x": "/source"})


def test_parent_directory_is_tmp_if_others_cannot_enter_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: Apache and Squid could not use the files of a testbed below the TMPDIR of root."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert parent_directory() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/usr/..")
    assert parent_directory() == "/"


RESPAWNING = """
import os, time
def child():
    while True:
        time.sleep(1)
for _ in range(60):
    if os.fork() == 0:
        child()
print("ready", flush=True)
while True:
    os.wait()
    if os.fork() == 0:
        child()
"""


@pytest.mark.parametrize("number", range(examples(5)))
def test_children_are_killed_even_when_their_parent_replaces_them(number: int) -> None:
    """nginx and Apache replace children. The last child would have continued to listen without a parent."""
    argv = ["python3", "-I", "-c", RESPAWNING]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        kill_tree(parent.pid)
        # Reading ends when all children have ended, because then the pipe is closed.
        assert parent.stdout.read() == ""
