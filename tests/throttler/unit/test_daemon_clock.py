# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the daemon follows the clock and the time windows of its current policy."""

from __future__ import annotations

import asyncio
import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from test_daemon import CAPPED, UNCAPPED, running, scenario, until

from mptcp_throttler.policy.load import load_policy

CAPPED_FROM_SIX = CAPPED.replace("throttle:", 'when: {hours: ["18:00-20:00"]}, throttle:')
BEFORE_SIX = datetime(2026, 11, 20, 17, 59, 59, 500_000, tzinfo=UTC).timestamp()


def test_windows_follow_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")

    async def scenario() -> None:
        offset = 0.0
        monkeypatch.setattr(time, "time", lambda: BEFORE_SIX - 3600 + time.monotonic() % 100 + offset)
        async with running(tmp_path, CAPPED_FROM_SIX, kernel) as scene:
            await until(lambda: "outside its hours" in json.dumps(scene.status()))
            assert not kernel.netfilter.entries
            offset = 2 * 3600.0
            await until(lambda: kernel.netfilter.entries)
            offset = 0.0
            await until(lambda: not kernel.netfilter.entries)

    asyncio.run(scenario())


def test_clock_set_forward_by_days_lifts_no_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: all subflows expired as idle, and were capped again only when the kernel had listed them."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")

    async def scenario() -> None:
        offset = 0.0
        monkeypatch.setattr(time, "time", lambda: BEFORE_SIX + time.monotonic() + offset)
        async with running(tmp_path, CAPPED, kernel) as scene:
            await until(lambda: kernel.netfilter.entries)
            offset = 7 * 86_400.0
            scene.engine.tick()
            assert kernel.netfilter.entries
            assert scene.engine.tracker.counters.expired == 0

    asyncio.run(scenario())


def test_window_of_a_new_policy_opens_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, "10.1.0.1", "10.2.0.1")

    async def scenario() -> None:
        start = math.inf
        """Monotonic time at which the clock continues. Until then, the test checks that the window is closed."""
        monkeypatch.setattr(time, "time", lambda: BEFORE_SIX + max(0.0, time.monotonic() - start))
        async with running(tmp_path, CAPPED, kernel) as scene:
            assert kernel.netfilter.entries
            # The daemon is waiting now, and its policy has no window.
            await scene.reload(CAPPED_FROM_SIX)
            await until(lambda: not kernel.netfilter.entries)
            start = time.monotonic()
            await until(lambda: kernel.netfilter.entries)
            assert time.time() >= BEFORE_SIX + 0.5

    asyncio.run(scenario())


@scenario
async def test_window_that_opens_during_a_reload_uses_the_new_rules(tmp_path: Path) -> None:
    """Defect: the old policy's rules were combined with the new policy's open windows.

    The daemon ended with a ValueError, or sockets were accepted under caps of the old policy.
    """
    kernel = FakeKernel()
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert kernel.pacing.initial_options
        enforcing = asyncio.create_task(scene.engine.enforce())
        await asyncio.sleep(0)  # The decisions of this enforcement have begun.
        await scene.engine.set_policy(load_policy(UNCAPPED, "p"))
        await enforcing
        assert not kernel.pacing.initial_options
