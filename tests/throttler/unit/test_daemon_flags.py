# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for backup flags that exist when the daemon starts: the daemon resets only its predecessor's flags."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import UNCAPPED, Scene, running, until

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel.mptcp_pm import family
from mptcp_throttler.stages import steering

BACKUP_SUBFLOW = four_tuple("10.2.0.1")


@pytest.fixture(autouse=True)
def decide_flags_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "UNDECIDED_SECONDS", 0.0)


@pytest.fixture
def kernel() -> FakeKernel:
    """A fake kernel in which one subflow is backup."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")
    kernel.sockets.by_four_tuple[BACKUP_SUBFLOW] = kernel.sockets.by_four_tuple[BACKUP_SUBFLOW]._replace(
        made_backup=True
    )
    return kernel


@pytest.mark.parametrize("policy", [UNCAPPED, UNCAPPED + "dry_run: true\n"], ids=["no rules", "dry run"])
def test_backup_flags_of_other_programs_stay(tmp_path: Path, kernel: FakeKernel, policy: str) -> None:
    """Defect: some seconds after its start, each daemon reset the flags, whatever its policy was."""

    async def scenario() -> None:
        async with running(tmp_path, policy, kernel) as scene:
            await sweep_twice(scene)
            assert not scene.engine.steering.watched()

    asyncio.run(scenario())
    assert kernel.subflows.requests == []


def test_backup_flags_of_a_killed_throttler_are_reset(tmp_path: Path, kernel: FakeKernel) -> None:
    family.FlagsNote(tmp_path).write()

    async def scenario() -> None:
        async with running(tmp_path, UNCAPPED, kernel):
            await until(lambda: kernel.subflows.requests)
            assert (tmp_path / family.FLAGS_NOTE).exists(), "the record of backup flags was removed before the stop"

    asyncio.run(scenario())
    assert kernel.subflows.requests == [(7, BACKUP_SUBFLOW, False)]
    assert not (tmp_path / family.FLAGS_NOTE).exists()


def test_refused_reset_of_a_flag_is_not_logged(
    tmp_path: Path, kernel: FakeKernel, caplog: pytest.LogCaptureFixture
) -> None:
    """Defect: a throttler whose policy has no steering logged that a connection cannot be steered."""
    family.FlagsNote(tmp_path).write()

    kernel.subflows.refusal = "Invalid argument"

    async def scenario() -> None:
        async with running(tmp_path, UNCAPPED, kernel):
            await until(lambda: kernel.subflows.requests)

    asyncio.run(scenario())
    assert "cannot be steered" not in caplog.text


def test_failed_start_keeps_the_record_of_backup_flags(tmp_path: Path, kernel: FakeKernel) -> None:
    family.FlagsNote(tmp_path).write()

    def fail() -> None:
        raise KernelError("list TCP sockets: refused")

    kernel.sockets.batches = fail  # type: ignore[method-assign, assignment]

    async def scenario() -> None:
        async with running(tmp_path, UNCAPPED, kernel):
            pass

    with pytest.raises(KernelError, match="list TCP sockets"):
        asyncio.run(scenario())
    assert (tmp_path / family.FLAGS_NOTE).exists()


async def sweep_twice(scene: Scene) -> None:
    for _ in range(2):
        await scene.engine.sampler.sweep()
