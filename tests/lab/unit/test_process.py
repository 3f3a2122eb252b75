# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for commands and private mounts of the testbed that need no root."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from examples import examples

from mptcp_lab.agent.files import write_file
from mptcp_lab.agent.processes import TMPFS, MountError, kill_tree, marked, mount_script, nearest_existing
from mptcp_lab.testbed.commands import TestbedError, run


def test_a_failed_command_says_what_was_attempted_and_what_came_back() -> None:
    with pytest.raises(TestbedError, match=r"(?s)make tea: exit code 3\n    no water"):
        run(["sh", "-c", "echo no water >&2; exit 3"], attempt="make tea")


def test_a_missing_program_is_named() -> None:
    with pytest.raises(TestbedError, match="'no-such-program' is not installed"):
        run(["no-such-program"])


def test_a_command_that_never_ends_is_ended() -> None:
    with pytest.raises(TestbedError, match=r"no end after 0\.05 s"):
        run(["sleep", "60"], timeout=0.05)


def test_unchecked_failure_is_returned() -> None:
    assert run(["false"], check=False).returncode == 1


def test_missing_target_is_made_on_a_tmpfs_over_what_exists(tmp_path: Path) -> None:
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


def test_existing_target_is_not_covered_first(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path) == tmp_path
    assert mount_script({str(tmp_path): "/a b"}).splitlines()[2] == f"mount --bind '/a b' {tmp_path}"


def test_a_file_is_laid_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "resolv.conf").touch()
    script = mount_script({str(tmp_path / "resolv.conf"): "/other"})
    assert script.splitlines() == ["set -e", f"mount --bind /other {tmp_path}/resolv.conf", 'exec "$@"']


def test_nothing_is_mounted_over_the_root() -> None:
    with pytest.raises(MountError, match="nothing above it exists but /"):
        mount_script({"/no-such-directory/x": "/source"})


def test_files_depend_on_their_name_alone(tmp_path: Path) -> None:
    size = (1 << 20) + 17
    digest = write_file(tmp_path / "a", size)
    first = (tmp_path / "a").read_bytes()
    assert len(first) == size
    assert hashlib.sha256(first).hexdigest() == digest
    assert write_file(tmp_path / "b", size) != digest
    assert write_file(tmp_path / "a", size) == digest


RESPAWNING = """
import os, signal, time
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
def test_children_that_are_replaced_when_they_are_killed_are_killed_too(number: int) -> None:
    """nginx and Apache replace children. The last child would have continued to listen without a parent."""
    mark = f"MPTCP_TEST_TREE={os.getpid()}-{number}"
    environment = {**os.environ, **dict([mark.split("=")])}
    parent = subprocess.Popen(
        ["python3", "-I", "-c", RESPAWNING], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    kill_tree(parent.pid)
    parent.wait()
    parent.stdout.read()  # this ends when all of them are gone and the pipe is closed
    assert marked(mark) == ()
