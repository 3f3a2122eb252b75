# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests in which the daemon is killed immediately after a change to the kernel, such as a step of a soft start.

The kernel's state is then consistent. The next throttler adopts this state and applies the policy's caps. After another
kill, ``cleanup`` removes all state. Traffic never stops.
"""

from __future__ import annotations

import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import LONG_TIMEOUT
from flood import flood, incoming_rate
from throttler_site import POLICY, Site, clients, listening, read_status, until

from mptcp_lab.testbed.services import Throttler, throttler_mounts

pytestmark = pytest.mark.kernel

CAPPED = POLICY.replace("{rate: 5 Mbit/s}", "{rate: 5 Mbit/s, share: connection}")
"""With ``share: connection``, the class is created together with the entry, not when the policy is loaded."""
ETHERNET = "10.77.1.0/24"
UNCAPPED = "version: 1\nrules: []\n"
RATE, TOLERANCE = 5_000_000, 1.5
"""Rate of the cap in bit/s, and tolerance, because a busy machine forwards in bursts."""
KILLING = Path(__file__).with_name("killing_throttler.py")
KILLED_AFTER = {
    "a class without its queue and entry": (UNCAPPED, CAPPED, "set class", 1),
    "a step of a soft start": (UNCAPPED, CAPPED, "update the map mptcp_throttler", 1),
    "an entry": (UNCAPPED, CAPPED, "add 1 ", 1),
    "the deletion of a class's entry": (CAPPED, UNCAPPED, "remove 1 ", 1),
}
"""For each test: the policy before and after the reload, and the change after which the throttler is killed."""


def entries_have_classes(site: Site) -> bool:
    """Return whether the class of each entry exists."""
    classes = site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
    return all(re.search(rf"class htb {classid} ", classes) for classid in site.entries().values())


def kill_throttler(site: Site, policies: tuple[str, str], words: str, number: int) -> str:
    """Run a throttler until it kills itself. Return its last change."""
    before, after = policies
    site.policy.write_text(before)
    process = site.proxy.popen(
        [sys.executable, "-P", str(KILLING), words, str(number), "run", "--config", str(site.config)],
        name=f"killing-{time.monotonic_ns()}",
        mounts=throttler_mounts(site.proxy),
    )
    try:
        until(lambda: "throttling on" in process.output(), timeout=LONG_TIMEOUT)
        until(lambda: bool(site.entries()) == (before == CAPPED), timeout=LONG_TIMEOUT)
        site.policy.write_text(after)
        process.signal(signal.SIGHUP)
        assert process.wait(LONG_TIMEOUT) == -signal.SIGKILL, process.output()
    finally:
        process.kill()
    assert "Traceback" not in process.output()
    return process.output().rsplit("killed after: ", 1)[1].strip()


def start_successor(site: Site, listener: socket.socket, former_entries: dict[str, str]) -> Throttler:
    """Start the next throttler, which must apply the policy's caps."""
    site.policy.write_text(CAPPED)
    throttler = site.start()
    until(
        lambda: read_status(throttler.socket)["in_step"] and clients(site.entries()) == ["10.77.1.2"],
        timeout=LONG_TIMEOUT,
    )
    assert entries_have_classes(site)
    # The next throttler keeps the class of an existing entry, so that the cap is never lifted.
    assert not former_entries or site.entries() == former_entries
    classes = site.proxy.run(["tc", "class", "show", "dev", "wan0"]).stdout
    assert classes.count("rate 5Mbit ceil 5Mbit") == 1, classes
    return throttler


@pytest.mark.nightly(except_for=("iptables-an entry",))
@pytest.mark.parametrize("change", KILLED_AFTER)
def test_successor_adopts_the_state_of_a_throttler_killed_after_a_change(
    site: Site, change: str, require: Callable[..., None]
) -> None:
    require("bpf-pacing")
    *policies, words, number = KILLED_AFTER[change]
    state = site.state()
    with listening(site) as listener, flood(site, listener) as data:
        last_change = kill_throttler(site, (policies[0], policies[1]), words, number)
        assert entries_have_classes(site), f"killed after: {last_change}"
        data.wait_for_data()
        former_entries = site.entries()
        assert bool(former_entries) == (change == "an entry")
        throttler = start_successor(site, listener, former_entries)
        rate = 0.0

        def is_capped() -> bool:
            nonlocal rate
            rate = incoming_rate(site, ETHERNET, 1.0)
            return rate < TOLERANCE * RATE

        until(is_capped, timeout=LONG_TIMEOUT)
        throttler.process.kill()
        assert site.throttler("cleanup").returncode == 0
        data.wait_for_data()
        until(lambda: incoming_rate(site, ETHERNET, 0.5) > 2 * TOLERANCE * RATE, timeout=LONG_TIMEOUT)
        print(f"{change}: killed after: {last_change}; then {rate / 1e6:.1f} Mbit/s")
    site.assert_nothing_left(state)
