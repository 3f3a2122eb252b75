# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that usage is counted over all processes of a program: Squid has a worker for each processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mptcp_bench.experiments.relay_load import octets, user_memory
from mptcp_bench.experiments.soak import descriptors
from mptcp_lab.agent.processes import kill_tree
from mptcp_lab.agent.processors import process_seconds, tree_seconds

TICK = 1 / os.sysconf("SC_CLK_TCK")
WORKER_SECONDS, WORKER_BYTES = 0.2, 8_000_000
PROGRAM = f"""
import os, sys, time
for _ in range(2):
    if not os.fork():
        held = bytearray(os.urandom({WORKER_BYTES}))
        while time.process_time() < {WORKER_SECONDS}:
            pass
        os.write(1, b"ready\\n")  # one write, so that the lines of both are not mixed
        sys.stdin.readline()
        os._exit(0)
for _ in range(2):
    os.wait()
print("ended", flush=True)
time.sleep(600)
"""
"""An idle process with two workers, which end after a line of input."""


def test_usage_includes_all_processes_and_the_time_of_ended_children() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        try:
            assert [parent.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            assert tree_seconds(parent.pid) >= process_seconds(parent.pid) + 2 * WORKER_SECONDS
            for kind in ("Pss", "Rss"):
                own = octets(Path(f"/proc/{parent.pid}/smaps_rollup").read_text(), kind)
                assert user_memory(parent.pid, kind) >= own + 2 * WORKER_BYTES
            assert descriptors(parent.pid) >= 3 * 3
            parent.stdin.close()
            assert parent.stdout.readline() == b"ended\n"
            assert tree_seconds(parent.pid) < 2 * WORKER_SECONDS
            assert tree_seconds(parent.pid, ended=True) >= 2 * (WORKER_SECONDS - 2 * TICK)
        finally:
            kill_tree(parent.pid)
