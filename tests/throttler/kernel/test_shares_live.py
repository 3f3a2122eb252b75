# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with a client that opens too many connections: it evades no cap, and takes no connections from others."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from throttler_site import IPPROTO_MPTCP, PORT, Site, listening, read_status, running, until

from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import write_throttler_config
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics

pytestmark = pytest.mark.kernel

MAX_CONNECTIONS = 8
CLIENT_SHARE = MAX_CONNECTIONS // 2
CONNECTION_COUNT = 7
POLICY = """\
version: 1
paths:
  all: {clients: [10.77.0.0/16, "fd77::/16"]}
rules:
  - {name: cap, paths: [all], when: {min_subflows: 1}, lift_last: false, throttle: {rate: 5 Mbit/s}}
"""


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def site(request: pytest.FixtureRequest, make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    backend = request.param
    require("htb", *(["ipset", "iptables-legacy"] if backend == "iptables" else ["nftables"]))
    testbed = make_module_testbed()
    policy = testbed.directory / "policy.yaml"
    policy.write_text(POLICY)
    settings = {"netfilter": backend, "verify_interval": 2, "max_connections": MAX_CONNECTIONS}
    return Site(testbed, backend, policy, write_throttler_config(testbed["proxy"], policy, settings=settings))


@contextmanager
def idle_connections(
    site: Site, listener: socket.socket, count: int, device: str, family: int = 4
) -> Iterator[list[int]]:
    """Open *count* connections from the client's address on *device*, and send one byte. Yields their client ports.

    A connection above the client's share may be closed during its handshake or immediately after.
    """
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    ports = []
    listener.setblocking(False)
    with ExitStack() as stack:
        for _ in range(count):
            with site.client.entered():
                client_socket = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM, IPPROTO_MPTCP))
            client_socket.settimeout(60)
            client_socket.bind((site.client.address(device, family), 0))
            ports.append(client_socket.getsockname()[1])
            with suppress(ConnectionError):
                client_socket.connect((site.proxy.address("wan0", family), PORT))
                client_socket.sendall(b"?")
            with suppress(BlockingIOError):
                while True:
                    stack.enter_context(listener.accept()[0])
        yield ports


def kernel_ports(site: Site) -> set[int]:
    """Return the client's ports of the initial subflows that the proxy's kernel has."""
    with site.proxy.entered():
        diagnostics = SocketDiagnostics((PORT,))
        found = {each.four_tuple.remote_port for each in diagnostics.subflows() if each.initial}
        diagnostics.close()
    return found


@pytest.mark.nightly(except_for=("iptables-4-connections first", "nftables-6-throttler first"))
@pytest.mark.parametrize("connections_first", [False, True], ids=["throttler first", "connections first"])
@pytest.mark.parametrize("family", [4, 6])
def test_connections_above_a_clients_share_are_closed_and_others_are_capped(
    site: Site, family: int, connections_first: bool
) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(listening(site))
        if not connections_first:
            throttler = stack.enter_context(running(site))
        connections = stack.enter_context(idle_connections(site, listener, CONNECTION_COUNT, "eth0", family))
        if connections_first:
            throttler = stack.enter_context(running(site))
        until(lambda: len(kernel_ports(site)) == CLIENT_SHARE)
        remaining = kernel_ports(site)
        assert remaining <= set(connections)

        def capped_ports() -> set[int]:
            """Return the client's ports of the initial subflows that the status shows as capped."""
            connections = read_status(throttler.socket)["connections"]
            first = [each for connection in connections for each in connection["subflows"] if each["initial"]]
            return {int(each["remote"].rpartition(":")[2]) for each in first if each["rate"] == 5_000_000}

        until(lambda: capped_ports() == remaining)
        (other_client,) = stack.enter_context(idle_connections(site, listener, 1, "wlan0", family))
        until(lambda: capped_ports() == {*remaining, other_client})
        assert kernel_ports(site) == {*remaining, other_client}, "connections within the share were closed"
        counted = read_status(throttler.socket)["counters"]["tracker"]["connections_refused"]
        assert counted >= CONNECTION_COUNT - CLIENT_SHARE
        assert throttler.process.output().count("too many connections of its client") >= CONNECTION_COUNT - CLIENT_SHARE
        assert "it is not capped" not in throttler.process.output()
