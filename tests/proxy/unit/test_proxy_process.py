# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for PID files, children and caught signals of processes, and for the processes of an instance."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from mptcp_proxy.doctor.gather import own_processes
from mptcp_proxy.places import Places
from mptcp_proxy.process import catches, children, pid_in
from mptcp_proxy.reporter import Reporter

UNUSED_PID = 2**22 + 1
"""More than the maximum PID of Linux."""


def test_pid_file_counts_only_for_a_running_process_of_the_program(tmp_path: Path) -> None:
    pid_file = tmp_path / "squid.pid"
    own_name = Path("/proc/self/comm").read_text().strip()
    assert pid_in(pid_file, own_name) is None
    pid_file.write_text(f"{os.getpid()}\n")
    assert pid_in(pid_file, own_name) == os.getpid()
    # After a crash of Squid, another program may have its PID.
    assert pid_in(pid_file, "squid") is None
    for nonsense in ("", "x", "0", "-1", str(UNUSED_PID)):
        pid_file.write_text(nonsense)
        assert pid_in(pid_file, own_name) is None
    assert children(UNUSED_PID) == ()


def test_caught_signals_of_a_process_are_found() -> None:
    before = signal.signal(signal.SIGUSR2, lambda *_: None)
    try:
        assert catches(os.getpid(), signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        assert not catches(os.getpid(), signal.SIGUSR2)
        assert not catches(UNUSED_PID, signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_processes_of_an_instance_are_found_without_its_pid_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect: with another pid_filename, the doctor advised to kill the running proxy as a foreign process."""
    monkeypatch.setattr(Places, "runtime", property(lambda self: tmp_path))
    monkeypatch.setattr("mptcp_proxy.doctor.gather.is_program", lambda pid, program: True)
    places = Places("one")
    assert own_processes(places) == frozenset()
    Reporter(places)
    with subprocess.Popen(["sleep", "3600"]) as squid:
        try:
            assert squid.pid in own_processes(places)
        finally:
            squid.kill()
