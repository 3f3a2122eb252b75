# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the throttler registers only those iptables tables that it needs.

After a program has requested a table, the kernel keeps it registered, and every packet takes longer.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from throttling import PATHS, UNCAPPED, ThrottledSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import throttler_mounts, wait_until

pytestmark = pytest.mark.kernel

CAPPED = PATHS + "rules: [{name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s}, direction: both}]\n"
NAMES = ("ip_tables_names", "ip6_tables_names", "arp_tables_names")


def registered_tables(site: ThrottledSite) -> str:
    """Return the legacy iptables tables that are registered in the proxy's namespace."""
    return site.node.run(["sh", "-c", f"cd /proc/net; cat {' '.join(NAMES)} 2>/dev/null || :"]).stdout


@pytest.mark.nightly
def test_nftables_backend_registers_no_iptables_table(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("htb", "nftables")
    site = ThrottledSite.start_on(make_testbed(), settings={"netfilter": "nftables", "verify_interval": 1})
    assert registered_tables(site) == ""

    def run_command(*words: str) -> None:
        argv = [site.node.program("mptcp-throttler"), *words, "--config", str(site.config)]
        process = site.node.popen(argv, name=f"throttler-{words[0]}", mounts=throttler_mounts(site.node))
        assert process.wait(60) == 0, process.output()
        assert registered_tables(site) == "", f"{words[0]} registered a table"

    throttler = site.start(CAPPED)
    assert registered_tables(site) == "", "the start registered a table"
    site.reload(throttler, UNCAPPED)
    wait_until(lambda: "policy reloaded" in throttler.process.output(), "the policy is reloaded")
    assert registered_tables(site) == "", "the reload registered a table"
    run_command("status")
    run_command("check")
    run_command("plan", "--live")
    site.stop_cleanly(throttler)
    assert registered_tables(site) == "", "the stop registered a table"
    throttler = site.start(CAPPED)
    throttler.process.signal(signal.SIGKILL)
    throttler.process.wait(60)
    run_command("cleanup")
    run_command("cleanup")
    throttler = site.start(CAPPED)
    assert registered_tables(site) == ""
    site.stop_cleanly(throttler)
    doctor = site.node.popen([site.node.program("mptcp-proxy"), "doctor"], name="doctor")
    doctor.wait(60)
    assert registered_tables(site) == "", "doctor registered a table"


def test_iptables_backend_registers_only_the_mangle_table(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("htb", "ipset", "iptables-legacy")
    site = ThrottledSite.start_on(make_testbed(), settings={"netfilter": "iptables", "verify_interval": 1})
    throttler = site.start(PATHS + "rules: [{name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s}}]\n")
    assert registered_tables(site).split() == ["mangle", "mangle"]
    throttler.process.signal(signal.SIGKILL)
    throttler.process.wait(60)
    site.cleanup()
    assert registered_tables(site).split() == ["mangle", "mangle"]
