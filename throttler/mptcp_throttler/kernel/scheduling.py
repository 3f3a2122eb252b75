"""Who gets the processor, and when the event loop gives way. sched(7), setpriority(2).

A subflow that joins must not wait behind the transfers of the proxy beside us. A nice value gives a large share of the
processor, but not at once: who runs keeps it until a slice of some milliseconds is used up. So the event loop, which
has little to do, is scheduled in real time, before all ordinary processes. Where it has much to do, they keep no less
than beside nice -20: of each second the kernel leaves them 50 ms (``kernel.sched_rt_runtime_us``); there, one process
of nice 0 has 11 ms. In one piece, they would keep the loop from answering for as long (sched(7),
``kernel.sched_rt_runtime_us``; since Linux 6.12 its deadline server): so it rests by itself, a few milliseconds at a
time, and never comes to that.

Everything else that we start is an ordinary process or thread again: a worker, or a copy that answers for the status,
may compute for long, and the loop must not take turns with it. But the loop waits where a worker that holds Python's
lock gets no processor, and who asks waits for the copy. Where the kernel groups processes by session (autogroup), nice
values count within a session alone, and a session with one process at work gets no more than any other: ours gets the
share that they mean.
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

NICE = -20
"""Of workers, which may hold Python's lock while the loop waits for it; of the loop where real time is refused."""
REAL_TIME_PRIORITY = 1
"""The lowest."""
TURN_SECONDS = 0.001
PERIOD_SECONDS = 0.02
BUSY = 0.9
"""Part of a period. The kernel takes what is missing to 5 % of rest."""
REST = 0.1
"""After a period in which the loop was busy: part of it. Where the loop's turns are long a period is long, too; a rest
of 2 ms, however long it was, was too little from 40 ms on."""
LONGEST_REST_SECONDS = 0.02
"""So that one turn of seconds has no rest of tenths of a second behind it."""
_AUTOGROUP = Path("/proc/self/autogroup")


def prefer_event_loop() -> None:
    """Have the calling thread run before all ordinary ones, as far as the kernel allows it.

    It refuses without CAP_SYS_NICE, and in a control group that has no share of real time. Who started us under another
    policy than the ordinary one (chrt(1), ``CPUSchedulingPolicy=``) chose so.
    """
    prefer_worker()
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    _prefer_session()
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(REAL_TIME_PRIORITY))


def prefer_worker() -> None:
    """Give the calling thread the largest share of the processor that an ordinary one can have."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)


def _prefer_session() -> None:
    """Have our session count as much as our workers do, where it is ours: systemd begins one for each service, a shell
    has in its own all that is started from its terminal."""
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            _AUTOGROUP.write_text(str(NICE))


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield *items*, giving way to the rest of the loop whenever ``TURN_SECONDS`` have been spent since the last time.

    So that a new subflow does not wait for ten thousand entries.
    """
    end = time.perf_counter() + TURN_SECONDS
    for item in items:
        yield item
        if time.perf_counter() > end:
            await asyncio.sleep(0)
            end = time.perf_counter() + TURN_SECONDS


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


async def rest_when_busy(rest: Callable[[float], None] = time.sleep) -> None:
    """Rest where the loop is scheduled in real time and has been busy, forever. *rest* keeps it from all else."""
    respite = Respite(time.monotonic(), time.thread_time())
    while True:
        await asyncio.sleep(PERIOD_SECONDS)
        seconds = respite.seconds(time.monotonic(), time.thread_time())
        if seconds and _is_real_time():
            rest(seconds)


def _is_real_time() -> bool:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO)
