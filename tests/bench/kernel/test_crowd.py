# SPDX-License-Identifier: GPL-2.0-or-later
"""Test that the crowd of ``load`` and ``soak`` has the requested size, though it has only one address per path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_bench.experiments.crowds import SHARE
from mptcp_bench.experiments.load_crowd import NODE, WORKERS, Crowd, with_crowd
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.services import wait_until
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

pytestmark = pytest.mark.kernel


@pytest.mark.nightly
def test_what_limits_a_client_does_not_limit_the_crowd(
    make_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> None:
    require("root", "mptcp", "squid", "ss", "gcc")
    more = WORKERS * SHARE + 100
    crowd = Crowd.built(make_testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))), more)
    crowd.hold(more)
    assert crowd.client.read().standing == more
    assert crowd.joined(more, within=300) == more


@pytest.mark.nightly
def test_without_squid_a_crowd_joins_though_it_closes_more_than_it_has_ports(
    make_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> None:
    require("root", "mptcp", "ss", "gcc")
    testbed = make_testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE))))
    testbed[NODE].run(["sysctl", "-qw", "net.ipv4.ip_local_port_range=10000 16000"])
    crowd = Crowd.without_squid(testbed, 1000)
    crowd.hold(200)
    crowd.churn(1000)
    wait_until(lambda: crowd.client.read().opened >= 9000, "more are opened than there are ports", timeout=120)
    crowd.churn(0)
    crowd.hold(200)
    # The proxy's side of connections that the client has closed ends a little later.
    wait_until(lambda: crowd.joined(200, within=0) == 200, "all that stand have both subflows, and they alone")
    assert crowd.client.read().refused == crowd.client.read().ended == 0
