# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the pauses of the event loop, which has real-time priority and must not starve other processes."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from mptcp_throttler.kernel import scheduling
from mptcp_throttler.kernel.scheduling import MAX_REST_SECONDS, PERIOD_SECONDS, rest_seconds

KERNELS_SHARE, KERNELS_PERIOD = 0.05, 1.0
"""The share of each period in which the kernel would otherwise suspend the loop, and the period: the defaults of
sched_rt_runtime_us and sched_rt_period_us."""


@pytest.mark.parametrize("turn", [0.0005, 0.004, 0.02, 0.03, 0.045, 0.2])
def test_busy_loop_pauses_at_least_as_long_as_the_kernel_would_enforce(turn: float) -> None:
    """Turns of the loop may be so long that the timer for the pause expires late."""
    now = paused = 0.0
    pause_end = period_begin = now
    share = list[float]()
    for _ in range(10_000):
        due, cpu_seconds = now + PERIOD_SECONDS, 0.0
        while now < due:
            now, cpu_seconds = now + turn, cpu_seconds + turn
        pause = rest_seconds(now - pause_end, cpu_seconds)
        pause_end, now, paused = now, now + pause, paused + pause
        if now - period_begin >= KERNELS_PERIOD:
            share.append(paused / (now - period_begin))
            period_begin, paused = now, 0.0
    assert min(share) > KERNELS_SHARE


def test_pause_after_a_very_long_turn_is_short() -> None:
    assert rest_seconds(60.0, 60.0) == MAX_REST_SECONDS


def test_loop_that_waits_often_needs_no_pause() -> None:
    assert not rest_seconds(0.02, 0.02 * 0.8)


@pytest.mark.parametrize("real_time", [True, False])
def test_loop_pauses_only_if_it_has_real_time_priority(monkeypatch: pytest.MonkeyPatch, real_time: bool) -> None:
    readings = 0

    def cpu_seconds() -> float:
        """Return a CPU time that grows so fast that the loop always counts as busy."""
        nonlocal readings
        readings += 1
        return 1000.0 * readings

    monkeypatch.setattr(time, "thread_time", cpu_seconds)
    monkeypatch.setattr(scheduling, "PERIOD_SECONDS", 0)
    policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK if real_time else os.SCHED_OTHER
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: policy)
    pauses = list[float]()

    async def scene() -> None:
        pauses_task = asyncio.create_task(scheduling.rest_when_busy(pauses.append))
        while readings < 5:  # noqa: ASYNC110 - no event exists for this
            await asyncio.sleep(0)
        pauses_task.cancel()

    asyncio.run(scene())
    assert bool(pauses) is real_time
