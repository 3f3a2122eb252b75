# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that usage is counted over all processes of a program: Squid has a worker for each processor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_bench.experiments.relay_load import octets, user_memory
from mptcp_bench.experiments.soak import descriptors
from mptcp_lab.agent.processes import descendants, kill_tree
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
        time.sleep(600)
time.sleep(600)
"""


@pytest.fixture
def tree() -> Iterator[int]:
    """Start two workers as children of an idle process. The workers have already used their processor time."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            assert [parent.stdout.readline() for _ in range(2)] == [b"ready\n"] * 2
            assert len(descendants(parent.pid)) == 2
            yield parent.pid
        finally:
            kill_tree(parent.pid)


def test_processor_time_includes_all_processes(tree: int) -> None:
    assert tree_seconds(tree) >= process_seconds(tree) + 2 * WORKER_SECONDS


ENDED_CHILD = f"""
import subprocess, sys
burn = "import time\\nwhile time.process_time() < {WORKER_SECONDS}: pass"
print("ready", flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, "-c", burn])
print("ended", flush=True)
sys.stdin.readline()
"""
"""A program that uses no processor time, with a child that uses some and ends."""


def test_time_of_ended_children_belongs_to_the_program() -> None:
    argv = [sys.executable, "-c", ENDED_CHILD]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        before, running = tree_seconds(program.pid, ended=True), tree_seconds(program.pid)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "ended\n"
        assert tree_seconds(program.pid, ended=True) - before >= WORKER_SECONDS - 2 * TICK
        assert tree_seconds(program.pid) - running < WORKER_SECONDS / 2


def test_memory_and_descriptors_include_all_processes(tree: int) -> None:
    for kind in ("Pss", "Rss"):
        parent = octets(Path(f"/proc/{tree}/smaps_rollup").read_text(), kind)
        assert user_memory(tree, kind) >= parent + 2 * WORKER_BYTES
    assert descriptors(tree) >= 3 * 3
