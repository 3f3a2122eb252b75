# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the daemon with a fake kernel: a refused start does not change the objects of a killed daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import CAPPED, running, scenario

from mptcp_common.kernel_error import KernelError

COUNTED = CAPPED.replace(
    "]\n",
    ", {name: volume, budget: {period: month, per: client, steps: [{after: 5 GB, throttle: {rate: 2 Mbit/s}}]}}]\n",
)


async def kernel_of_a_killed_daemon(tmp_path: Path) -> FakeKernel:
    """Return a kernel in which a daemon capped a download and was then killed."""
    earlier_kernel, kernel = FakeKernel(), FakeKernel()
    earlier_kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, CAPPED, earlier_kernel):
        kernel.sockets.by_four_tuple = dict(earlier_kernel.sockets.by_four_tuple)
        kernel.traffic_control.classes = dict(earlier_kernel.traffic_control.classes)
        kernel.netfilter.entries = dict(earlier_kernel.netfilter.entries)
    return kernel


@scenario
async def test_start_refused_by_the_ledger_changes_nothing(tmp_path: Path) -> None:
    """Defect: the daemon had adopted the classes and entries when its start was refused, and removed them."""
    kernel = await kernel_of_a_killed_daemon(tmp_path)
    classes, entries = dict(kernel.traffic_control.classes), dict(kernel.netfilter.entries)
    assert entries.keys() == {four_tuple("10.1.0.1")}
    (tmp_path / "ledger.sqlite").write_text("not a database, but long enough to be read" * 40)
    with pytest.raises(KernelError, match="file is not a database"):
        async with running(tmp_path, COUNTED, kernel):
            pass
    assert kernel.log == []
    assert (kernel.traffic_control.classes, kernel.netfilter.entries) == (classes, entries)
    (tmp_path / "ledger.sqlite").unlink()
    async with running(tmp_path, COUNTED, kernel):
        assert kernel.netfilter.entries == entries, "the next start did not adopt the entries"


@scenario
async def test_bytes_until_the_stop_are_written(tmp_path: Path) -> None:
    """The component that reports closed sockets ends before the ledger is closed."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    async with running(tmp_path, COUNTED, kernel):
        kernel.sockets.carry(four_tuple("10.1.0.1"), 70_000)
        kernel.sockets.disconnect(kernel.meter, four_tuple("10.1.0.1"))
    async with running(tmp_path, COUNTED) as scene:
        assert sum(scene.engine.budget_stage.accounts.used.values()) == 70_000
