# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that usage is counted over all processes of a program: Squid has a worker for each processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_tree import running

from mptcp_bench.experiments.relay_load import octets, user_memory
from mptcp_bench.experiments.soak import descriptors
from mptcp_lab.agent.processes import descendants
from mptcp_lab.agent.processors import process_seconds, read, tree_seconds

TICK = 1 / os.sysconf("SC_CLK_TCK")
WORKER_SECONDS, WORKER_BYTES = 0.2, 8_000_000
PROGRAM = f"""
import os, sys, time
for _ in range(2):
    if not os.fork():
        held = bytearray(os.urandom({WORKER_BYTES}))
        while time.process_time() < {WORKER_SECONDS}:
            pass
        os.write(1, b"ready\\n")  # at once: what both write is never mixed
        time.sleep(600)
time.sleep(600)
"""


@pytest.fixture
def tree() -> Iterator[int]:
    """Start two workers as children of an idle process. The workers have already used their processor time."""
    with running(PROGRAM, 2) as pid:
        assert len(descendants(pid)) == 2
        yield pid


def test_processor_time_is_that_of_all(tree: int) -> None:
    assert tree_seconds(tree) >= process_seconds(tree) + 2 * WORKER_SECONDS


def test_a_process_s_own_time_is_exact() -> None:
    for _ in range(20):  # The counters have the resolution of ticks, so try several times.
        before = time.process_time()
        measured = process_seconds(os.getpid())
        assert before <= measured <= time.process_time()


ENDED = f"""
import subprocess, sys
burn = "import time\\nwhile time.process_time() < {WORKER_SECONDS}: pass"
print("ready", flush=True)
sys.stdin.readline()
subprocess.run([sys.executable, "-c", burn])
print("ended", flush=True)
sys.stdin.readline()
"""
"""A program that uses no processor time, with a child that uses some and ends."""


def test_what_ended_below_it_is_a_program_s_own() -> None:
    with subprocess.Popen([sys.executable, "-c", ENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as own:
        assert own.stdin is not None
        assert own.stdout is not None
        assert own.stdout.readline() == b"ready\n"
        before, running = read(own.pid), tree_seconds(own.pid)
        own.stdin.write(b"\n")
        own.stdin.flush()
        assert own.stdout.readline() == b"ended\n"
        after = read(own.pid)
        assert before.own is not None
        assert after.own is not None
        assert after.own - before.own >= WORKER_SECONDS - 2 * TICK
        assert tree_seconds(own.pid) - running < WORKER_SECONDS / 2


def test_memory_is_that_of_all(tree: int) -> None:
    for kind in ("Pss", "Rss"):
        alone = octets(Path(f"/proc/{tree}/smaps_rollup").read_text(), kind)
        assert user_memory(tree, kind) >= alone + 2 * WORKER_BYTES
    assert descriptors(tree) >= 3 * 3
