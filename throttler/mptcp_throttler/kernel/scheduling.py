# SPDX-License-Identifier: GPL-2.0-or-later
"""Processor scheduling, and when the event loop yields. sched(7), setpriority(2).

The decision on a joining subflow must not wait for the proxy's transfers. A nice value does not suffice: the running
process first uses up its slice of some milliseconds. So the event loop, which has little to do, has real-time priority.
The kernel reserves 50 ms of each second for ordinary processes, in one piece (``kernel.sched_rt_runtime_us``; since
Linux 6.12 its deadline server). So the loop itself sleeps more often, for a few milliseconds.

All other processes and threads of the throttler have ordinary scheduling, because they may compute for long. But they
must not starve: the loop waits for a worker that holds Python's lock, so workers get nice -20. With autogroup, nice
values count only within a session and sessions get equal shares, so the throttler's session gets the same nice value.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

NICE = -20  # for workers, which may hold Python's lock, and for the loop if the kernel refuses real-time priority
REAL_TIME_PRIORITY = 1
SLICE_SECONDS = 0.001
PERIOD_SECONDS = 0.02
BUSY_SHARE = 0.9  # processor share of a period above which the loop is busy; the kernel itself enforces 5 % of rest
REST_SHARE = 0.1
"""Rest after a busy period, as a share of the period. Long computations make long periods: a fixed rest of 2 ms was too
short for periods of 40 ms or more."""
MAX_REST_SECONDS = 0.02  # even a computation of some seconds must cause only a short rest


def prefer_event_loop() -> None:
    """Give the calling thread real-time priority, if the kernel allows it.

    The kernel refuses without CAP_SYS_NICE, and in a cgroup without a real-time budget. A scheduling policy that an
    administrator set (chrt(1), ``CPUSchedulingPolicy=``) is kept.
    """
    prefer_worker()
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    # systemd starts one session per service, but a shell shares its session with all processes of the terminal.
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(NICE))
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(REAL_TIME_PRIORITY))


def prefer_worker() -> None:
    """Give the calling thread the largest share of the processor that an ordinary thread can have."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)


async def in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield *items*; let the event loop run every ``SLICE_SECONDS``: a new subflow must not wait for 10,000 items."""
    end = time.perf_counter() + SLICE_SECONDS
    for item in items:
        yield item
        if time.perf_counter() > end:
            await asyncio.sleep(0)
            end = time.perf_counter() + SLICE_SECONDS


def rest_seconds(period: float, cpu_time: float) -> float:
    """Return how long to rest after a *period* in which the thread used *cpu_time*; all in seconds."""
    return min(REST_SHARE * period, MAX_REST_SECONDS) if cpu_time > BUSY_SHARE * period else 0.0


async def rest_when_busy(rest: Callable[[float], None] = time.sleep) -> None:
    """Loop forever: rest after each busy real-time period. *rest* blocks the loop."""
    start, cpu_start = time.monotonic(), time.thread_time()
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        now, cpu_time = time.monotonic(), time.thread_time()
        seconds = rest_seconds(now - start, cpu_time - cpu_start)
        start, cpu_start = now, cpu_time
        if seconds and os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO):
            rest(seconds)
