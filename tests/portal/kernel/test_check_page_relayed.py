# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check page with a relay: the page shows the relay's connection, and explains this."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from persistent_connection import Connection
from portal_site import LTE_CAPPED, PortalSite

from mptcp_lab.testbed import RELAY, Testbed
from mptcp_lab.testbed.services import RELAY_CONFIG, start_relay, wait_until

pytestmark = pytest.mark.kernel
PARENT = (
    "cache_peer {} parent 3128 0 no-query no-digest connect-timeout=3 connect-fail-limit=2\nshutdown_lifetime 0 seconds"
)


def test_page_behind_a_relay_shows_the_relays_connection(make_testbed: Callable[..., Testbed], require: Any) -> None:
    require("htb", "bpf-pacing", "squid", "gcc")
    testbed = make_testbed(RELAY)
    site, relay = PortalSite.create(testbed), testbed["relay"]
    relay.run(["sysctl", "-qw", "net.mptcp.blackhole_timeout=0"], check=False)
    text, replaced = re.subn(
        r"^#cache_peer .*$", PARENT.format(site.node.service_address()), RELAY_CONFIG.read_text(), flags=re.MULTILINE
    )
    assert replaced == 1
    start_relay(relay, relay.write("relay.conf", text))
    site.start_portal()
    site.wait_for_all_workers(relay)
    with Connection(testbed["client"], relay.service_address(), socket.IPPROTO_TCP) as phone:
        wait_until(
            lambda: phone.get("http://check.mptcp.internal/")[0] == 200,
            "the check page is reached through relay and proxy",
            timeout=90,
        )
        # Each answer uses a new connection, whose second subflow joins after the request. Only the kernel is queried.
        answers = [phone.report("MPTCP-Client: 10.77.8.2 3128 10.77.8.2 3128") for _ in range(10)]
        assert {(answer["transport"], answer["throttler"]) for answer in answers} == {("multipath", "absent")}
        assert all("Another proxy, for instance a relay" in answer["lines"][0] for answer in answers)
        # The page waits one second for the second subflow, which may be too short on a busy machine.
        assert sum(answer["headline"] == "Multipath TCP with 2 subflows" for answer in answers) >= 6
        with site.run_throttler(LTE_CAPPED):
            answer = phone.until(
                lambda answer: any(each["capped"] for each in answer["subflows"]), "the page shows the relay's cap"
            )
            assert {each["address"] for each in answer["subflows"]} == {"10.77.1.2", "10.77.2.2"}
            assert "LTE is limited to 5 Mbit/s by rule evening." in answer["lines"]
