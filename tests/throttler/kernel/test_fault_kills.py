# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with kill -9 at random times, during reloads and joins: traffic continues, and a successor adopts the state."""

from __future__ import annotations

import random
import re
import signal
import time

import pytest
from faults import LONG_TIMEOUT, traffic
from throttler_site import POLICY, Site, clients, connected, listening, running, until

from mptcp_lab.testbed.services import program, throttler_mounts

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("unchanged_kernel")]

KILLS = 4
UNCAPPED = "version: 1\nrules: []\n"


def entries_have_classes(site: Site) -> bool:
    classes = site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
    return all(re.search(rf"class htb {classid} ", classes) for classid in site.entries().values())


@pytest.mark.nightly(except_for=("iptables",))
def test_kills_leave_no_entry_without_its_class(site: Site) -> None:
    # These times range from the first steps of the start to the middle of a reload.
    kill_times = random.Random(11).sample([0.3 + 0.35 * step for step in range(12)], KILLS)
    with listening(site) as listener, connected(site, listener) as ends, traffic(ends) as pulse:
        for number, kill_time in enumerate(kill_times):
            site.policy.write_text((POLICY, UNCAPPED)[number % 2])
            process = site.proxy.popen(
                [program("mptcp-throttler"), "run", "--config", str(site.config)],
                name=f"killed-{number}",
                mounts=throttler_mounts(site.proxy),
            )
            deadline = time.monotonic() + kill_time
            with connected(site, listener):
                while time.monotonic() < deadline:
                    if "throttling on" in process.output():
                        site.policy.write_text(random.Random(number).choice((POLICY, UNCAPPED)))
                        process.signal(signal.SIGHUP)
                    time.sleep(0.05)
                process.kill()
                assert entries_have_classes(site), f"killed after {kill_time:.2f} s"
            assert "Traceback" not in process.output()
        trips_before = pulse.round_trips
        site.policy.write_text(POLICY)
        with running(site):
            until(lambda: clients(site.entries()) == ["10.77.1.2"], timeout=LONG_TIMEOUT)
            until(lambda: pulse.round_trips > trips_before, timeout=LONG_TIMEOUT)
            assert entries_have_classes(site)
