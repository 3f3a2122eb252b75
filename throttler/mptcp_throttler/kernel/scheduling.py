"""When the daemon's threads get a processor. sched(7), setpriority(2).

A subflow that joins must not wait behind the transfers of the proxy beside us. A nice value gives a large share of the
processor, but not at once: who runs keeps it until a slice of some milliseconds is used up. So the event loop, which
has little to do, is scheduled in real time, before all ordinary processes. Where it has much to do, they keep no less
than beside nice -20: of each second the kernel leaves them 50 ms (``kernel.sched_rt_runtime_us``); there, one process
of nice 0 has 11 ms. ``runtime.respite`` keeps these from coming in one piece.

Everything else that we start is an ordinary process or thread again: a worker, or a copy that answers for the status,
may compute for long, and the loop must not take turns with it. But the loop waits where a worker that holds Python's
lock gets no processor, and who asks waits for the copy. Where the kernel groups processes by session (autogroup), nice
values count within a session alone, and a session with one process at work gets no more than any other: ours gets the
share that they mean.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

NICE = -20
"""Of workers, which may hold Python's lock while the loop waits for it; of the loop where real time is refused."""
REAL_TIME_PRIORITY = 1
"""The lowest."""
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
