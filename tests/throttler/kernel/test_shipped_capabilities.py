# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the capabilities granted by the throttler's systemd unit are sufficient for what it does in the kernel."""

from __future__ import annotations

import sys

import pytest
from unit_capabilities import capability_prefix

from mptcp_lab.testbed import Testbed

pytestmark = pytest.mark.kernel

WITH_CGROUPS = 'mount -t cgroup2 none /mnt && exec "$@"'
"""systemd mounts the cgroup hierarchy; the testbed's namespaces have a separate /sys without it."""
LIMIT_IDLE_SOCKETS = """\
from mptcp_throttler.kernel.bpf import SocketPacing
from mptcp_throttler.shaping.model import Ownership

pacing = SocketPacing(Ownership(), for_accepted=False)
print(pacing.limit_at_once())
pacing.close()
"""


SCHEDULE_EVENT_LOOP = """\
import os
from mptcp_throttler.kernel.scheduling import prefer_event_loop

prefer_event_loop()
print(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR)
"""


def output_with_capabilities(testbed: Testbed, code: str, without: str | None) -> str:
    """Run *code* with the capabilities of the unit, except *without*. Return its output."""
    argv = [*capability_prefix("mptcp-throttler", without), sys.executable, "-c", code]
    found = testbed["proxy"].run(["unshare", "--mount", "sh", "-c", WITH_CGROUPS, "sh", *argv])
    return found.stdout.strip()


@pytest.mark.parametrize(
    ("without", "possible"), [(None, "True"), ("perfmon", "False")], ids=["all capabilities", "without perfmon"]
)
def test_unit_allows_lifting_limits_of_idle_sockets(testbed: Testbed, without: str | None, possible: str) -> None:
    """A stop removes the limits of idle sockets. This needs CAP_PERFMON."""
    assert output_with_capabilities(testbed, LIMIT_IDLE_SOCKETS, without) == possible


@pytest.mark.parametrize(
    ("without", "possible"), [(None, "True"), ("sys_nice", "False")], ids=["all capabilities", "without sys_nice"]
)
def test_unit_allows_real_time_scheduling_of_the_event_loop(
    testbed: Testbed, ordinary_scheduling: None, without: str | None, possible: str
) -> None:
    """Without CAP_SYS_NICE, the event loop keeps ordinary scheduling."""
    assert output_with_capabilities(testbed, SCHEDULE_EVENT_LOOP, without) == possible
