# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a proxy measured on a processor of its own runs only there, with all its threads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from process_tree import running

from mptcp_bench.experiments.own_processor import Shares, pin, strays
from mptcp_lab.agent.processes import descendants

PROGRAM = """
import os, sys, threading, time
if not os.fork():
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    os.write(1, b"ready\\n")
time.sleep(600)
"""


@pytest.fixture
def tree() -> Iterator[int]:
    """Start a process with a child of two threads."""
    with running(PROGRAM, 1) as pid:
        yield pid


def test_all_threads_of_all_processes_are_pinned(tree: int) -> None:
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        pytest.skip("NOT TESTED: one processor")
    shares = Shares.of(usable)
    assert len(strays(tree, shares.proxy)) == 3
    pin(tree, shares.proxy)
    assert strays(tree, shares.proxy) == []
    (child,) = descendants(tree)
    os.sched_setaffinity(child, shares.others)
    assert strays(tree, shares.proxy) == [child]
