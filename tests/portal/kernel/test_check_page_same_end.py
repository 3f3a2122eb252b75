# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the check page with two clients at the same address and port: each sees only its own connection.

A NAT may give the same outer address and port to two clients that use different addresses or ports of the proxy,
because only the pair of both ends must be unique. Also, the client's end of a connection may later belong to another
client.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from persistent_connection import Connection
from portal_site import LTE_CAPPED, PortalSite

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.topologies import TWO_PATHS, with_second_client

pytestmark = pytest.mark.kernel
FIRST, SECOND = "10.77.1.2", "10.77.2.2"
OTHER_ADDRESS = "10.77.8.77"
"""A second address of the proxy's host."""


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> PortalSite:
    require("htb", "bpf-pacing")
    testbed = make_module_testbed(with_second_client(TWO_PATHS, "neighbour"))
    # Add the address before Squid starts, because Squid refuses clients for a moment when it learns of a new address.
    testbed["proxy"].run(["ip", "address", "add", f"{OTHER_ADDRESS}/24", "dev", "wan0"])
    site = PortalSite.create(testbed)
    site.start_portal()
    site.wait_for_all_workers()
    return site


@contextmanager
def victim(site: PortalSite, port: int) -> Iterator[Connection]:
    """Yield a client with two paths and a cap that its page shows.

    *port*: the client's source port, outside of the range that the kernel assigns. The port stays in use for a while
    after the test.
    """
    source = (FIRST, port)
    with (
        site.run_throttler(LTE_CAPPED),
        Connection(site.client, site.node.service_address(), source=source) as client,
    ):
        client.until(lambda answer: any(each["capped"] for each in answer["subflows"]), "the page shows the cap")
        yield client


@pytest.mark.nightly(except_for=("262-",))
@pytest.mark.parametrize(("protocol", "port"), [(socket.IPPROTO_TCP, 25555), (socket.IPPROTO_MPTCP, 25556)])
def test_clients_behind_one_nat_see_their_own_connections(site: PortalSite, protocol: int, port: int) -> None:
    """Defect: a client that used another address of the proxy was shown the other client's paths, caps and bytes."""
    core = site.testbed["core"]
    core.run(["nft", "add table ip lan; add chain ip lan out { type nat hook postrouting priority 100; }"])
    core.run(["nft", f"add rule ip lan out ip saddr {{ 10.77.3.0/24, 10.77.4.0/24 }} snat to {FIRST}"])
    try:
        source = ("10.77.3.2", port)
        node = site.testbed["neighbour"]
        with victim(site, port), Connection(node, OTHER_ADDRESS, protocol, source) as neighbour:
            answer = neighbour.until(lambda answer: answer["throttler"] == "answered", "the throttler has answered")
            ends = site.node.run(["ss", "-Htn", "src", OTHER_ADDRESS, "dst", f"{FIRST}:{port}"]).stdout
            assert ends.count("ESTAB") == 1, "the NAT has not given the neighbour the other client's address and port"
            assert answer["transport"] == ("tcp" if protocol == socket.IPPROTO_TCP else "multipath")
            assert SECOND not in json.dumps(answer)
            assert not any(each["capped"] for each in answer["subflows"])
            if protocol == socket.IPPROTO_TCP:
                assert (answer["subflows"], answer["budgets"]) == ([], [])
    finally:
        core.run(["nft", "delete table ip lan"])


def test_client_that_reuses_ends_does_not_see_the_older_connection(site: PortalSite) -> None:
    """Defect: an MPTCP connection keeps the ends of its first subflow after that has ended.

    A client that later got these ends, by a new lease or from a NAT, was shown the connection.
    """
    neighbour, core = site.testbed["neighbour"], site.testbed["core"]
    port = 25557
    with victim(site, port) as client, site.client.link_down("eth0"):
        # The kernel closes a dead subflow when it sends data on it; until then, the other subflow carries answers.
        site.node.run(["ss", "-K", "dst", FIRST, "sport", "=", ":3128"], check=False)
        client.until(
            lambda answer: [each["path"] for each in answer["subflows"]] == ["LTE"],
            "the page shows only the other path",
        )
        neighbour.run(["ip", "address", "add", f"{FIRST}/32", "dev", "lo"])
        core.run(["ip", "route", "add", FIRST, "via", "10.77.3.2"])
        try:
            source = (FIRST, port)
            address = site.node.service_address()
            with Connection(neighbour, address, socket.IPPROTO_TCP, source) as other:
                answer = other.until(lambda answer: answer["throttler"] == "answered", "the throttler has answered")
                assert (answer["transport"], answer["subflows"], answer["budgets"]) == ("tcp", [], [])
                assert SECOND not in json.dumps(answer)
        finally:
            core.run(["ip", "route", "delete", FIRST])
            neighbour.run(["ip", "address", "delete", f"{FIRST}/32", "dev", "lo"])
