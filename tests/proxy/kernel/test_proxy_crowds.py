# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with many idle connections and an active client: no client gets more than its share, and the active client is
served.

The experiment ``crowds`` measures the client's response times, compared with the times without other clients.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from idle_connections import add_addresses, idle_connections
from proxying import worker_pids, write_configuration

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.crowds import RequestTimes, timed_requests, worker_descriptors
from mptcp_lab.testbed.services import Origin, Proxy, start_origin, start_proxy, wait_until

pytestmark = pytest.mark.kernel
MAX_OPEN, MAX_SERVED = 1000, 800
"""Limits for one client address: client_ip_max_connections and the ACL too_many in conf/squid.conf."""
ACCEPTS_PER_TURN = 8
"""Number of connections accepted in one turn (shim/turns/fair_turns.c). Squid checks its limit only after the turn."""
MAX_MEMORY = 500_000
"""Maximum resident kB of Squid's worker with 7,500 connections. Measurements gave 200,000 to 260,000."""
MAX_DESCRIPTORS = 9000
"""Maximum number of this worker's descriptors.

Measurements gave 8,013, because a tunnel needs two. LimitNOFILE of mptcp-proxy.service is 65,536.
"""
SETTLE_SECONDS = 3.0
"""Seconds without a closed connection after which the number counts as final: on a busy machine Squid may pause."""
REQUEST_COUNT = 40
LONG_TIMEOUTS = [
    f"{name} 20 minutes" for name in ("request_start_timeout", "request_timeout", "client_idle_pconn_timeout")
]
"""Long timeouts, so that Squid does not give up incomplete headers and idle connections during the test.

A busy machine may need a long time to open all connections.
"""


@pytest.fixture(scope="module")
def origin(module_testbed: Testbed, require: Callable[..., None]) -> Origin:
    require("squid", "apache2", "gcc", "mptcpize")
    return start_origin(module_testbed["origin"], {"file": 1000})


@pytest.fixture(scope="module")
def proxy(module_testbed: Testbed, origin: Origin) -> Proxy:
    return start_proxy(
        module_testbed["proxy"], write_configuration(module_testbed["proxy"], *LONG_TIMEOUTS, "workers 1")
    )


def open_descriptors(proxy: Proxy) -> int:
    (worker,) = worker_descriptors(proxy)
    return worker.open


def resident_kilobytes(proxy: Proxy) -> int:
    (pid,) = worker_pids(proxy.process)
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1])


def wait_until_closed(proxy: Proxy) -> None:
    wait_until(lambda: open_descriptors(proxy) < 200, "the connections are closed", timeout=120)


def all_are_served(timed: RequestTimes) -> bool:
    return (len(timed.seconds), timed.failed, timed.multipath) == (REQUEST_COUNT, 0, REQUEST_COUNT)


def test_slow_headers_of_one_client_are_bounded(module_testbed: Testbed, proxy: Proxy, origin: Origin) -> None:
    """Defect: 2,500 such connections took all of Squid's descriptors, so that no other client was served."""
    client = module_testbed["client"]
    # The attacking client gets another address, because the limit applies to each address.
    [attacker] = add_addresses(client, "eth0", [9])
    with idle_connections(client, proxy, origin, "slow-headers", 2500, [attacker]) as slow:
        wait_until(
            lambda: slow.count_open() <= MAX_OPEN + ACCEPTS_PER_TURN,
            "connections above the limit are closed",
            timeout=300,
        )
        open_connections = slow.final_count(SETTLE_SECONDS)
        assert open_connections >= MAX_OPEN - 1, "Squid closed connections below the limit"
        assert open_descriptors(proxy) < MAX_OPEN + 200
        assert all_are_served(timed_requests(client, proxy, origin, REQUEST_COUNT))
    assert attacker in (proxy.logs / "cache.log").read_text()
    wait_until_closed(proxy)


def test_requests_of_one_client_above_its_limit_get_429(module_testbed: Testbed, proxy: Proxy, origin: Origin) -> None:
    with idle_connections(
        module_testbed["client"], proxy, origin, "keep-alives", MAX_OPEN + 200, ["10.77.1.2"]
    ) as idle:
        assert abs(idle.statuses["200"] - MAX_SERVED) <= 2
        assert abs(idle.statuses["429"] - (MAX_OPEN - MAX_SERVED)) <= 2
    wait_until_closed(proxy)


def test_thousands_of_idle_connections_do_not_block_another_client(
    module_testbed: Testbed, proxy: Proxy, origin: Origin
) -> None:
    client = module_testbed["client"]
    addresses = add_addresses(client, "eth0", range(10, 24))
    with (
        idle_connections(client, proxy, origin, "keep-alives", 5000, addresses[:10]) as idle,
        idle_connections(client, proxy, origin, "tunnels", 500, addresses[10:11]) as tunnels,
        idle_connections(client, proxy, origin, "slow-headers", 2000, addresses[11:]) as slow,
    ):
        assert idle.statuses == {"200": 5000}
        assert tunnels.statuses == {"200": 500}
        assert [each.count_open() for each in (idle, tunnels, slow)] == [5000, 500, 2000]
        assert all_are_served(timed_requests(client, proxy, origin, REQUEST_COUNT))
        print(f"{open_descriptors(proxy)} descriptors, {resident_kilobytes(proxy)} kB")
        assert 8000 <= open_descriptors(proxy) < MAX_DESCRIPTORS
        assert resident_kilobytes(proxy) < MAX_MEMORY
    wait_until_closed(proxy)


@pytest.mark.nightly
def test_client_limit_applies_to_each_worker(testbed: Testbed, require: Callable[..., None]) -> None:
    """The kernel distributes connections to workers by a hash, about evenly. Each worker counts its own connections."""
    require("squid", "apache2", "gcc", "mptcpize")
    origin = start_origin(testbed["origin"], {"file": 1000})
    proxy = start_proxy(testbed["proxy"], write_configuration(testbed["proxy"], *LONG_TIMEOUTS, "workers 2"))
    with idle_connections(testbed["client"], proxy, origin, "keep-alives", 2 * MAX_OPEN + 400, ["10.77.1.2"]) as idle:
        assert abs(idle.statuses["200"] - 2 * MAX_SERVED) <= 4
        assert abs(idle.statuses["429"] - 2 * (MAX_OPEN - MAX_SERVED)) <= 4
        # worker_descriptors omits the coordinator, which accepts no connections.
        assert [MAX_OPEN <= each.open < MAX_OPEN + 200 for each in worker_descriptors(proxy)] == [True, True]
