# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that second subflows are counted at the proxy, which decides whether a join succeeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_bench.experiments.two_paths import client_ends
from mptcp_lab.testbed import Testbed, lab_of
from mptcp_lab.testbed.services import start_origin, start_proxy
from mptcp_lab.testbed.transfer import Observation, download, wget

pytestmark = pytest.mark.kernel


def test_join_that_the_proxy_refuses_is_not_counted(testbed: Testbed, require: Callable[..., None]) -> None:
    """The proxy refuses after its SYN/ACK, so that the join looks established to the client."""
    require("squid", "apache2", "wget", "mptcpize", "mptcp-pm", "ss")
    # The download takes three seconds, with two subflows nearly all the time, because a busy machine polls rarely.
    origin, proxy, client = start_origin(testbed["origin"], {"file": 50_000_000}), testbed["proxy"], testbed["client"]
    argv = wget(origin.url("file"), proxy=start_proxy(proxy), multipath=True)
    limits = ["ip", "mptcp", "limits", "set", "add_addr_accepted", "8", "subflow"]
    addresses = [client.address(device) for device in ("eth0", "wlan0")]
    ends: set[str] = set()

    def observed() -> Observation:
        return download(lab_of(testbed), argv, timeout=60, watch=lambda _: ends.update(client_ends(proxy, addresses)))

    with proxy.changed([*limits, "0"], [*limits, "8"]):
        refused = observed()
    assert refused.counters.get("MPTcpExtMPJoinSynAckRx", 0) > 0
    assert refused.protocol.complaint(multipath=True) == "no second subflow was established"
    assert ends == {addresses[0]}
    assert observed().protocol.joins == 1
    assert ends == set(addresses)
