# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for commands, private mounts and files of the testbed that need no root."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

import pytest
from examples import examples

from mptcp_lab.agent.files import parent_directory, write_file
from mptcp_lab.agent.processes import TMPFS, MountError, kill_tree, mount_script
from mptcp_lab.testbed.commands import TestbedError, run


def test_failed_command_names_its_attempt_and_its_output() -> None:
    with pytest.raises(TestbedError, match=r"(?s)make tea: exit code 3\n    no water"):
        run(["sh", "-c", "echo no water >&2; exit 3"], attempt="make tea")


def test_missing_target_of_a_mount_is_made_on_a_tmpfs(tmp_path: Path) -> None:
    script = mount_script({str(tmp_path / "new" / "deep"): "/source", str(tmp_path / "new2"): TMPFS})
    assert script.splitlines() == [
        "set -e",
        f"mount -t tmpfs -o mode=755 tmpfs {tmp_path}",
        f"mkdir -p {tmp_path}/new/deep",
        f"mount --bind /source {tmp_path}/new/deep",
        f"mkdir -p {tmp_path}/new2",
        f"mount -t tmpfs -o mode=1777 tmpfs {tmp_path}/new2",
        'exec "$@"',
    ]


def test_nothing_is_mounted_over_the_root() -> None:
    with pytest.raises(MountError, match="none of its parent directories exists"):
        mount_script({"/no-such-directory/x": "/source"})


def test_content_of_a_file_depends_only_on_its_name_and_size(tmp_path: Path) -> None:
    size = (1 << 20) + 17
    digest = write_file(tmp_path / "a", size)
    assert hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest() == digest
    assert (tmp_path / "a").stat().st_size == size
    assert write_file(tmp_path / "b", size) != digest
    assert write_file(tmp_path / "a", size) == digest


def test_parent_directory_is_tmp_if_others_cannot_enter_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: Apache and Squid could not use the files of a testbed below the TMPDIR of root."""
    tmp_path.chmod(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert parent_directory() == "/tmp"
    monkeypatch.setattr(tempfile, "tempdir", "/usr/..")
    assert parent_directory() == "/"


RESPAWNING = """
import os, sys, time
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
    parent = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    kill_tree(parent.pid)
    parent.wait()
    # Reading ends when all children have ended, because then the pipe is closed.
    assert parent.stdout.read() == ""
