# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests with a client that opens more subflows than the throttler tracks: no subflow evades a cap."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import pytest
from throttling import PATHS, ThrottledSite

from mptcp_common.netlink import NLA_NESTED, NetlinkSocket, attribute
from mptcp_lab.testbed import Testbed
from mptcp_lab.testbed.services import Origin, start_origin, wait_until
from mptcp_throttler.kernel.mptcp_pm.family import find_family
from mptcp_throttler.kernel.sockets.diagnostics import SocketDiagnostics
from mptcp_throttler.mptcp.limits import TrackerLimits

pytestmark = pytest.mark.kernel

CAP_AND_STEERING = (
    PATHS
    + """\
rules:
  - {name: order, steer: {mode: active-standby, active: wifi, standby: ethernet}}
  - {name: cap, paths: [ethernet, wifi], throttle: {rate: 5 Mbit/s}, when: {min_subflows: 1}}
"""
)
MAX_SUBFLOWS = TrackerLimits().max_subflows_per_connection
JOIN_COUNT = 20
SOL_MPTCP, MPTCP_INFO, TOKEN = 284, 1, 12
"""From linux/mptcp.h. TOKEN is an offset in struct mptcp_info."""
SUBFLOW_CREATE, ADDRESS, TOKEN_OF, REMOTE = 10, 1, 4, 6
FAMILY, ID, ADDRESS_4, ADDRESS_6, PORT = 1, 2, 3, 4, 5
"""From linux/mptcp_pm.h."""
NETLINK_GENERIC = 16
"""From linux/netlink.h."""


@dataclass
class Site(ThrottledSite):
    origin: Origin

    @contextmanager
    def connection(self, family: int) -> Iterator[socket.socket]:
        """Open a connection from a client with a user-space path manager, so that only the test adds subflows."""
        client = self.testbed["client"]
        client.run(["sysctl", "-qw", "net.mptcp.pm_type=1"])
        with ExitStack() as stack:
            stack.callback(client.run, ["sysctl", "-qw", "net.mptcp.pm_type=0"])
            with client.entered():
                kind = socket.AF_INET if family == 4 else socket.AF_INET6
                client_socket = stack.enter_context(socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_MPTCP))
            client_socket.settimeout(60)
            client_socket.connect((self.node.service_address(family), 3128))
            yield client_socket

    def join(self, client_socket: socket.socket, family: int, count: int) -> None:
        """Add *count* subflows from the client, alternately on its two paths."""
        client = self.testbed["client"]
        token = client_socket.getsockopt(SOL_MPTCP, MPTCP_INFO, 64)[TOKEN : TOKEN + 4]
        with client.entered():
            commands = NetlinkSocket(NETLINK_GENERIC)
        with commands:
            for number in range(count):
                device = number % 2
                local = self.address_attributes(client.address(("eth0", "wlan0")[device], family=family))
                request = attribute(TOKEN_OF, token)
                request += attribute(ADDRESS | NLA_NESTED, local + attribute(ID, bytes([1 + device])))
                port = attribute(PORT, struct.pack("=H", 3128))
                remote = self.address_attributes(self.node.service_address(family)) + port
                request += attribute(REMOTE | NLA_NESTED, remote)
                commands.request(find_family()[0], 0, struct.pack("=BBH", SUBFLOW_CREATE, 1, 0) + request, "join")

    @staticmethod
    def address_attributes(address: str) -> bytes:
        packed = ip_address(address).packed
        v4 = len(packed) == 4
        kind = socket.AF_INET if v4 else socket.AF_INET6
        return attribute(FAMILY, struct.pack("=H", kind)) + attribute(ADDRESS_4 if v4 else ADDRESS_6, packed)

    def client_endpoints(self) -> set[tuple[bytes, int]]:
        """Return the client's address and port of each subflow in the proxy's kernel.

        Two subflows may have the same port.
        """
        with self.node.entered():
            diagnostics = SocketDiagnostics((3128,))
            found = {(each.four_tuple.remote, each.four_tuple.remote_port) for each in diagnostics.subflows()}
            diagnostics.close()
        return found

    def answers_request(self, client_socket: socket.socket) -> bool:
        client_socket.sendall(f"GET {self.origin.url('small')} HTTP/1.1\r\nHost: origin\r\n\r\n".encode())
        answer = b""
        while len(answer.partition(b"\r\n\r\n")[2]) < self.origin.sizes["small"]:
            more = client_socket.recv(10_000)
            if not more:
                return False
            answer += more
        return b" 200 " in answer


@pytest.fixture(scope="module")
def site(make_module_testbed: Callable[..., Testbed], require: Any) -> Site:
    require("htb", "nftables")
    testbed = make_module_testbed()
    return Site.start_on(testbed, start_origin(testbed["origin"], {"small": 1000}))


@pytest.mark.nightly(except_for=("[6]",))
@pytest.mark.parametrize("family", [4, 6])
def test_excess_subflows_are_closed_and_others_are_capped(site: Site, family: int) -> None:
    throttler = site.start(CAP_AND_STEERING)
    before = site.node.mib()["MPTcpExtMPJoinAckRx"]
    with site.connection(family) as client_socket:
        assert site.answers_request(client_socket)
        site.join(client_socket, family, JOIN_COUNT - 1)
        wait_until(
            lambda: site.node.mib()["MPTcpExtMPJoinAckRx"] == before + JOIN_COUNT - 1,
            "the kernel has accepted all joins",
        )
        wait_until(lambda: len(site.client_endpoints()) == MAX_SUBFLOWS, "the excess subflows are closed")

        def client_rates() -> dict[tuple[bytes, int], Any]:
            (connection,) = throttler.status()["connections"]
            ends = (each["remote"].rpartition(":") for each in connection["subflows"])
            rates = (each["rate"] for each in connection["subflows"])
            return {
                (ip_address(end[0].strip("[]")).packed, int(end[2])): rate
                for end, rate in zip(ends, rates, strict=True)
            }

        wait_until(
            lambda: client_rates().keys() == site.client_endpoints(), "the throttler knows all remaining subflows"
        )
        assert set(client_rates().values()) == {5_000_000}
        assert throttler.process.output().count("too many subflows") == JOIN_COUNT - MAX_SUBFLOWS
        assert site.answers_request(client_socket), "the connection no longer works"
    site.stop_cleanly(throttler)


def test_excess_subflows_are_closed_if_the_listener_is_ipv4_only(site: Site) -> None:
    """To the kernel, the addresses of an IPv4 listener's sockets differ from those of a dual-stack listener.

    The throttler closes sockets by their addresses.
    """
    site.proxy.process.stop(60)
    with site.node.entered():
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("0.0.0.0", 3128))
        listener.listen()
        throttler = site.start(CAP_AND_STEERING)
        with site.connection(4) as client_socket:
            accepted, _ = listener.accept()
            with accepted:
                accepted.settimeout(60)
                client_socket.sendall(b"?")
                assert accepted.recv(1) == b"?"
                accepted.sendall(b"!")
                assert client_socket.recv(1) == b"!"
                site.join(client_socket, 4, JOIN_COUNT - 1)
                wait_until(
                    lambda: throttler.process.output().count("too many subflows") == JOIN_COUNT - MAX_SUBFLOWS,
                    "the throttler has closed the excess subflows",
                )
                wait_until(lambda: len(site.client_endpoints()) == MAX_SUBFLOWS, "the excess subflows are closed")
                assert "it is not capped" not in throttler.process.output()
        throttler.process.stop(60)
