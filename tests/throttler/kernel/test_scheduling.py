# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the scheduling of a running throttler: real time for its event loop, not for its worker threads."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from throttler_site import Site, until

from mptcp_throttler.kernel.scheduling import NICE

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.usefixtures("unchanged_kernel", "ordinary_scheduling"),
    pytest.mark.nightly(except_for=("iptables",)),
]


def test_event_loop_runs_in_real_time_and_workers_do_not(site: Site) -> None:
    throttler = site.start()
    loop = throttler.process.pid
    assert Path(f"/proc/{loop}/comm").read_text().strip() == "mptcp-throttler"
    # Processes that the daemon forks have ordinary scheduling.
    assert os.sched_getscheduler(loop) == os.SCHED_RR | os.SCHED_RESET_ON_FORK

    # The workers have priority over the ordinary processes of all sessions, not only of their own session.
    session = Path(f"/proc/{loop}/autogroup")
    assert os.getsid(loop) == loop
    assert not session.exists() or session.read_text().strip().endswith(f" nice {NICE}")

    def workers() -> list[int]:
        return [int(each.name) for each in Path(f"/proc/{loop}/task").iterdir() if int(each.name) != loop]

    throttler.process.signal(signal.SIGHUP)
    until(lambda: bool(workers()))
    until(lambda: all(os.getpriority(os.PRIO_PROCESS, each) == NICE for each in workers()))
    assert os.SCHED_RR not in {os.sched_getscheduler(each) & ~os.SCHED_RESET_ON_FORK for each in workers()}
    throttler.process.signal(signal.SIGTERM)
    assert throttler.process.wait(60) == 0


def test_throttler_keeps_the_scheduling_policy_of_its_start(site: Site) -> None:
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    throttler = site.start()
    assert os.sched_getscheduler(throttler.process.pid) == os.SCHED_BATCH
    throttler.process.signal(signal.SIGTERM)
    assert throttler.process.wait(60) == 0
