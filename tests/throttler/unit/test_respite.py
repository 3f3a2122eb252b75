# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the pauses of the event loop, which runs in real time: it must leave processor time to other processes."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from mptcp_throttler.kernel import scheduling
from mptcp_throttler.kernel.scheduling import MAX_REST_SECONDS, PERIOD_SECONDS, rest_seconds

KERNELS_SHARE, KERNELS_PERIOD = 0.05, 1.0
"""The share of each period that the kernel would otherwise take from the loop at once: the defaults of
sched_rt_runtime_us and sched_rt_period_us."""


@pytest.mark.parametrize("turn", [0.0005, 0.004, 0.02, 0.03, 0.045, 0.2])
def test_busy_loop_rests_at_least_as_much_as_the_kernel_would_enforce(turn: float) -> None:
    """Turns of the loop may be so long that the timer for the rest fires late."""
    now = rested = 0.0
    begun = since = now
    share = list[float]()
    for _ in range(10_000):
        due, computed = now + PERIOD_SECONDS, 0.0
        while now < due:
            now, computed = now + turn, computed + turn
        pause = rest_seconds(now - begun, computed)
        begun, now, rested = now, now + pause, rested + pause
        if now - since >= KERNELS_PERIOD:
            share.append(rested / (now - since))
            since, rested = now, 0.0
    assert min(share) > KERNELS_SHARE


def test_rest_after_a_very_long_turn_is_short() -> None:
    assert rest_seconds(60.0, 60.0) == MAX_REST_SECONDS


def test_loop_that_waits_often_needs_no_rest() -> None:
    assert not rest_seconds(0.02, 0.02 * 0.8)


@pytest.mark.parametrize("real_time", [True, False])
def test_loop_rests_only_if_it_runs_in_real_time(monkeypatch: pytest.MonkeyPatch, real_time: bool) -> None:
    readings = 0

    def computed() -> float:
        """Return a CPU time that grows by more per period than on the slowest machine."""
        nonlocal readings
        readings += 1
        return 1000.0 * readings

    monkeypatch.setattr(time, "thread_time", computed)
    monkeypatch.setattr(scheduling, "PERIOD_SECONDS", 0)
    policy = os.SCHED_RR | os.SCHED_RESET_ON_FORK if real_time else os.SCHED_OTHER
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: policy)
    rests = list[float]()

    async def scene() -> None:
        resting = asyncio.create_task(scheduling.rest_when_busy(rests.append))
        while readings < 5:  # noqa: ASYNC110 - nothing else says so
            await asyncio.sleep(0)
        resting.cancel()

    asyncio.run(scene())
    assert bool(rests) is real_time
