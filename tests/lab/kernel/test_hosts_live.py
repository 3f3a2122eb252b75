# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the hosts of a testbed: the host keeps its congestion control, and changes are undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_lab.testbed import Testbed, congestion, ownership
from mptcp_lab.testbed.services import wait_until

pytestmark = pytest.mark.kernel


def test_namespace_uses_cubic_and_the_host_is_unchanged(make_testbed: Callable[..., Testbed]) -> None:
    with ownership.registry():
        before = congestion.ALLOWED.read_text()
    testbed = make_testbed()
    if "cubic" in before.split():
        assert testbed["proxy"].run(["sysctl", "-n", "net.ipv4.tcp_congestion_control"]).stdout == "cubic\n"
    # Another run may allow another algorithm for a moment. It then holds this lock.
    with ownership.registry():
        assert congestion.ALLOWED.read_text() == before


def test_scoped_changes_are_undone(testbed: Testbed) -> None:
    client = testbed["client"]

    def state() -> str:
        # The kernel's own routes for an IPv6 address appear only after duplicate address detection.
        routes = "ip -4 route show table all; ip -6 route show table all | grep -v 'proto kernel'"
        return client.run(["sh", "-c", f"sysctl net.mptcp.enabled; {routes}"]).stdout

    wait_until(lambda: "linkdown" not in state(), "the links are up")
    before = state()
    with client.sysctl("net.mptcp.enabled", "0"):
        assert state() != before
    with client.link_down("wlan0"):
        assert "dev wlan0" not in client.run(["ip", "-4", "route"]).stdout
    # The kernel notices a moment later that the other end is up. The routes then show this.
    wait_until(lambda: state() == before, "the state is restored")
