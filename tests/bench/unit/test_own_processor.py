# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that a proxy measured on a processor of its own runs only there, with all its threads."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from process_tree import running

from mptcp_bench.experiments import own_processor
from mptcp_bench.experiments.own_processor import Shares, mask, pin, strays
from mptcp_lab.agent.processes import descendants
from mptcp_lab.testbed import TestbedError

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


def test_the_first_processor_is_the_proxy_s() -> None:
    assert Shares.of({5, 2, 3}) == Shares(frozenset({2}), frozenset({3, 5}))


def test_one_processor_is_not_shared_out() -> None:
    with pytest.raises(TestbedError, match="processors=apart: this machine has one processor"):
        Shares.of({0})


@pytest.mark.parametrize(
    ("processors", "written"),
    [({0}, "00000001"), ({1, 3}, "0000000a"), ({0, 33}, "00000002,00000001"), ({64}, "00000001,00000000,00000000")],
)
def test_a_mask_is_written_as_the_kernel_reads_it(processors: set[int], written: str) -> None:
    assert mask(processors) == written


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


def test_what_is_started_while_others_are_pinned_is_pinned_too(tree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        pytest.skip("NOT TESTED: one processor")
    shares = Shares.of(usable)
    seen = iter([()])
    monkeypatch.setattr(own_processor, "descendants", lambda pid: next(seen, descendants(pid)))
    pin(tree, shares.proxy)
    assert strays(tree, shares.proxy) == []
