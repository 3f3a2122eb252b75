# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that each change that the kernel refuses is retried, whether it was applied directly or in a comparison."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from fakes import FakeNetfilter, FakeTrafficControl

from mptcp_common.kernel_error import KernelError
from mptcp_throttler.kernel import sysctl
from mptcp_throttler.kernel.sysctl import NOTE, OwnedSysctls
from mptcp_throttler.runtime import reconcile
from mptcp_throttler.runtime.component import Component
from mptcp_throttler.runtime.drift import DriftMonitor
from mptcp_throttler.runtime.reconcile import Reconciler
from mptcp_throttler.shaping.model import Ownership
from mptcp_throttler.shaping.plan import Planner

PAUSES = (reconcile._MIN_PAUSE, reconcile._MAX_PAUSE)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_MIN_PAUSE", 0.0)
    monkeypatch.setattr(reconcile, "_MAX_PAUSE", 0.0)


class RefusingNetfilter(FakeNetfilter):
    """A Netfilter fake whose next checks or preparations fail."""

    failing_checks = failing_preparations = 0

    async def check(self) -> list[str]:
        if self.failing_checks:
            self.failing_checks -= 1
            raise KernelError("list the set: no such set")
        return []

    async def prepare(self) -> None:
        if self.failing_preparations:
            self.failing_preparations -= 1
            raise KernelError("create the set: out of memory")
        await super().prepare()


class Scene:
    def __init__(self) -> None:
        self.tc = FakeTrafficControl()
        self.netfilter = RefusingNetfilter()
        self.reconciler = Reconciler(Planner(Ownership()), self.tc, self.netfilter)


def run_with_reconciler(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        scene = Scene()
        await scene.reconciler.prepare()
        running = asyncio.create_task(scene.reconciler.run())
        async with asyncio.timeout(60):
            await scenario(scene)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(run())


async def wait_until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - the condition has no event
        await asyncio.sleep(0)


def test_pause_before_a_retry_never_exceeds_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel no longer refuses, its state must be correct within two seconds."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def record_pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def scenario(scene: Scene) -> None:
        monkeypatch.setattr(asyncio, "sleep", record_pause)
        scene.tc.refusals = 10
        scene.tc.set_gso_limit(lambda before: min(before, 3028))
        scene.reconciler.wake()
        while scene.tc.gso != 3028:
            await sleep(0)

    monkeypatch.setattr(reconcile, "_MIN_PAUSE", PAUSES[0])
    monkeypatch.setattr(reconcile, "_MAX_PAUSE", PAUSES[1])
    run_with_reconciler(scenario)
    waits = [seconds for seconds in pauses if seconds]
    assert len(waits) > 8
    assert waits == sorted(waits)
    assert waits[-1] < 2


def test_objects_that_cannot_be_read_are_created_again() -> None:
    async def scenario(scene: Scene) -> None:
        creations = scene.netfilter.log.count("make sets")
        scene.netfilter.failing_checks = 1
        await scene.reconciler.verify()
        assert scene.netfilter.log.count("make sets") == creations + 1
        assert scene.reconciler.counters.repairs == 1

    run_with_reconciler(scenario)


def test_failed_repair_is_retried_without_other_changes() -> None:
    async def scenario(scene: Scene) -> None:
        creations = scene.netfilter.log.count("make sets")
        scene.netfilter.failing_checks, scene.netfilter.failing_preparations = 1, 3
        with pytest.raises(KernelError, match="out of memory"):
            await scene.reconciler.verify()
        await wait_until(lambda: scene.netfilter.log.count("make sets") > creations)
        assert not scene.netfilter.failing_preparations

    run_with_reconciler(scenario)


def test_component_that_cannot_repair_does_not_prevent_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    verified = []

    class FakeComponent(Component):
        def __init__(self, fails: bool) -> None:
            self.fails = fails

        async def verify(self) -> None:
            verified.append(self)
            if self.fails:
                raise KernelError("no")

    async def scenario() -> None:
        components = [FakeComponent(True), FakeComponent(False)]
        monitor = DriftMonitor(components, 30)
        for _ in range(2):
            assert not await monitor.verify()
        assert len(verified) == 4
        assert caplog.messages == ["verify: no"], "the failure was not logged exactly once"
        components[0].fails = False
        assert await monitor.verify()

    asyncio.run(scenario())


def test_sysctls_and_their_file_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"net.mptcp.pm_type": "0", "net.mptcp.stale_loss_cnt": "4"}
    monkeypatch.setattr(sysctl, "_read", values.__getitem__)
    monkeypatch.setattr(sysctl, "_write", values.__setitem__)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    owned, required = OwnedSysctls(state), {"net.mptcp.pm_type": "1", "net.mptcp.stale_loss_cnt": "1"}
    owned.hold(required)
    assert owned.check(required) == []
    values["net.mptcp.pm_type"] = "0"
    (state / NOTE).unlink()
    assert len(owned.check(required)) == 2
    owned.hold(required)
    assert owned.check(required) == []
    assert values == required
    owned.restore()
    assert values == {"net.mptcp.pm_type": "0", "net.mptcp.stale_loss_cnt": "4"}, (
        "the original values were not restored"
    )
