"""The crowd of ``scale`` and ``soak`` is as large as it was asked for, though all of it has one address a path."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mptcp_bench.experiments.scale_crowd import WORKERS, Crowd, with_crowd
from mptcp_lab.testbed import Testbed, paths
from mptcp_lab.testbed.topologies import ETHERNET_RATE, WIFI_RATE

pytestmark = pytest.mark.kernel
MOST_OF_A_CLIENT = 1000
"""Connections of one address that each of Squid's workers takes: client_ip_max_connections in conf/squid.conf."""


def test_what_limits_a_client_does_not_limit_the_crowd(
    make_testbed: Callable[..., Testbed], require: Callable[..., None]
) -> None:
    require("root", "mptcp", "squid", "ss", "gcc")
    more = WORKERS * MOST_OF_A_CLIENT + 100
    crowd = Crowd.built(make_testbed(with_crowd(paths((ETHERNET_RATE, WIFI_RATE)))), more)
    crowd.hold(more)
    assert crowd.client.read().standing == more
    assert crowd.joined(more, within=300).two_subflows == more
