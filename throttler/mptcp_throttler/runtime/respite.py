"""Leaves ordinary processes their part of a processor in pieces, before the kernel takes it in one.

The loop is scheduled in real time (``kernel.scheduling``). Of each second in which it computes without rest, after one
reload that concerns thousands for another, the kernel gives 50 ms in one piece to whoever else waits (sched(7),
``kernel.sched_rt_runtime_us``; since Linux 6.12 its deadline server): for so long the loop answers nothing. Where the
loop rests more than that by itself, in pieces of some milliseconds, it never comes to it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

PERIOD_SECONDS = 0.02
BUSY = 0.9
"""Part of a period. The kernel takes what is missing to 5 % of rest."""
REST = 0.1
"""After a period in which the loop was busy: part of it. Where the loop's turns are long a period is long, too; a rest
of 2 ms, however long it was, was too little from 40 ms on."""
LONGEST_REST_SECONDS = 0.02
"""So that one turn of seconds has no rest of tenths of a second behind it."""


class Respite:
    """Says when to rest, from two clocks of the loop's thread."""

    def __init__(self, now: float, computed: float) -> None:
        """*now* and *computed* are seconds by the clock, and those for which the thread had a processor."""
        self._now, self._computed = now, computed

    def seconds(self, now: float, computed: float) -> float:
        """Return for how long to rest after a period that ends at *now*; 0 where the thread rested by itself."""
        period = now - self._now
        busy = computed - self._computed > BUSY * period
        self._now, self._computed = now, computed
        return min(REST * period, LONGEST_REST_SECONDS) if busy else 0.0


async def run(rest: Callable[[float], None] = time.sleep) -> None:
    """Rest where the loop is scheduled in real time and has been busy, forever. *rest* keeps it from all else."""
    respite = Respite(time.monotonic(), time.thread_time())
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        seconds = respite.seconds(time.monotonic(), time.thread_time())
        if seconds and _is_real_time():
            rest(seconds)


def _is_real_time() -> bool:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO)
