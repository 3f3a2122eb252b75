# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the agent: usage of processors, directory of a run, refused mounts, and the end of process trees."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from examples import examples

from mptcp_lab.agent.files import parent_directory
from mptcp_lab.agent.processes import MountError, kill_tree, mount_script
from mptcp_lab.agent.processors import Reading, parse, usage

TICK = os.sysconf("SC_CLK_TCK")
PRESSURE = "some avg10=49.07 avg60=54.26 avg300=50.15 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=77\n"


def reading(seconds: float, *cpus: tuple[int, ...], waited: int = 0, own: float | None = None) -> Reading:
    """Return a reading with the user, system, idle, disk and stolen ticks of each processor."""
    totals = tuple(map(sum, zip(*cpus, strict=True)))
    lines = (
        f"{name} {user} 0 {system} {idle} {disk} 0 0 {stolen} {user} 0"
        for name, (user, system, idle, disk, stolen) in zip(["cpu ", "cpu0", "cpu1"], [totals, *cpus], strict=False)
    )
    return parse(seconds, "\n".join([*lines, "intr 5"]), PRESSURE.format(waited), own)


def test_usage_is_the_share_of_time_between_two_readings() -> None:
    before = reading(10.0, (100, 100, 100, 100, 100), (0, 0, 0, 0, 0), waited=5_000_000, own=7.0)
    after = reading(20.0, (140, 110, 130, 110, 110), (0, 0, 100, 0, 0), waited=9_000_000, own=7.0 + 30 / TICK)
    found = usage(before, after)
    # The user time already contains the guest time.
    assert (found.stolen, found.idle, found.waiting, found.least_idle) == (0.05, 0.7, 0.4, 0.4)
    assert found.others == pytest.approx(0.1)
    # Interrupts and idle time belong to no program, and a process's time may exceed the counted ticks.
    idle = reading(20.0, (110, 100, 190, 100, 100), (0, 0, 100, 0, 0), own=7.0 + 20 / TICK)
    assert usage(before, idle).others == 0


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
