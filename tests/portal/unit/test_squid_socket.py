# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the portal identifies Squid by the owner of its socket, and the client by the header that Squid adds."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack, suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_common.kernel_error import KernelError
from mptcp_portal import netlink, own_connection
from mptcp_portal.check_report import KernelView
from mptcp_portal.netlink import Ends, MptcpSocket, mptcp_connections, tcp_inodes
from mptcp_portal.own_connection import kernel_view
from mptcp_portal.squid_socket import HEADER, SQUID_CONF_LINE, OldHeaderError, client_ends, endpoint, is_squid


def test_line_named_in_the_journal_is_in_the_shipped_squid_conf() -> None:
    conf = Path(__file__).parents[3] / "conf" / "squid.conf"
    assert SQUID_CONF_LINE in conf.read_text().splitlines()


PROXY_END = "10.77.8.2 3128"
"""The proxy's end of the connection, which follows the client's end in the header."""


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_connection_belongs_to_the_user_that_opened_it(family: socket.AddressFamily) -> None:
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with (
        socket.create_server((address, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        ends = server.getsockname()[:2], client.getsockname()[:2]
        assert is_squid(os.getuid(), *ends)
        assert not is_squid(os.getuid() + 1, *ends)
        # A socket that does not exist has no owner.
        assert not is_squid(os.getuid(), ends[0], (address, 1))
        assert not is_squid(os.getuid(), ("no address", 1), ends[1])


def test_kernel_without_mptcp_diagnosis_gives_no_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the error at the end of the kernel's list was ignored, so the page showed plain TCP to all clients."""
    ends = Ends((ip_address("192.0.2.1"), 5), (ip_address("192.0.2.2"), 3128))
    monkeypatch.setattr(netlink, "_IPPROTO_MPTCP", socket.IPPROTO_TCP)
    assert mptcp_connections(ends) == []
    monkeypatch.setattr(netlink, "_IPPROTO_MPTCP", 263)  # no kernel has this protocol
    with pytest.raises(KernelError):
        mptcp_connections(ends)
    assert kernel_view(ends) is None


@pytest.mark.parametrize(("listen", "address"), [("127.0.0.1",) * 2, ("::1",) * 2, ("::", "127.0.0.1")])
def test_sockets_are_distinguished_by_both_ends(listen: str, address: str) -> None:
    """Defect: sockets were distinguished only by the client's end, which connections to two ports may share."""
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with ExitStack() as stack:

        def enter(each: socket.socket) -> socket.socket:
            return stack.enter_context(each)

        ports: list[int] = []
        clients: list[socket.socket] = []
        accepted: list[socket.socket] = []
        for _ in range(2):
            server = enter(socket.create_server((listen, 0), family=family, dualstack_ipv6=listen == "::"))
            ports.append(server.getsockname()[1])
            client = enter(socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            client.bind((address, clients[0].getsockname()[1] if clients else 0))
            client.connect((address, ports[-1]))
            clients.append(client)
            accepted.append(enter(server.accept()[0]))
        client_end = clients[0].getsockname()
        for port, each in zip(ports, accepted, strict=True):
            assert tcp_inodes(ends_of(client_end, (address, port))) == {os.fstat(each.fileno()).st_ino}
        # A listening socket is not a connection.
        assert tcp_inodes(ends_of((address, 1), (address, ports[0]))) == set()


def ends_of(client: tuple[str, int], proxy: tuple[str, int]) -> Ends:
    return Ends(*((netlink.unmap_ipv4(ip_address(address)), port) for address, port, *_ in (client, proxy)))


@pytest.mark.parametrize(
    ("connections", "inodes", "view"),
    [
        ([], set(), KernelView(False)),
        ([MptcpSocket(2, 5, False, 70)], {70}, KernelView(True, 2, 5)),
        # The connection's first subflow has ended.
        ([MptcpSocket(1, 5, False, 70)], set(), KernelView(True, 1, 5)),
        # The connection has fallen back to plain TCP.
        ([MptcpSocket(1, 5, True, 70)], {70}, KernelView(False, 1, 5)),
        # The first subflow has ended, and another client has its ends, with plain TCP or with Multipath TCP.
        ([MptcpSocket(1, 5, False, 70)], {71}, KernelView(False)),
        ([MptcpSocket(1, 5, False, 70), MptcpSocket(2, 6, False, 71)], {71}, KernelView(False)),
        ([MptcpSocket(1, 5, False, 70), MptcpSocket(2, 6, False, 71)], set(), KernelView(False)),
        # Two clients have the same link-local ends.
        ([MptcpSocket(1, 5, False, 70)], {70, 71}, KernelView(False)),
    ],
)
def test_connection_is_the_clients_only_if_no_other_has_its_ends(
    monkeypatch: pytest.MonkeyPatch, connections: list[MptcpSocket], inodes: set[int], view: KernelView
) -> None:
    """Defect: a later client that got the ends of another connection's first subflow was shown that connection."""
    monkeypatch.setattr(own_connection, "mptcp_connections", lambda _: connections)
    monkeypatch.setattr(own_connection, "tcp_inodes", lambda _: inodes)
    assert kernel_view(ends_of(("10.77.1.2", 1), ("10.77.8.2", 3128))) == view


def headers_with(*values: bytes, name: bytes = HEADER) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"check.mptcp.internal"), *((name, value) for value in values)]


@pytest.mark.parametrize("client", ["10.77.1.2", "fd77:1::2"])
def test_header_of_squid_is_parsed(client: str) -> None:
    assert client_ends(headers_with(f"{client} 40000 {PROXY_END}".encode())) == ends_of(
        (client, 40000), ("10.77.8.2", 3128)
    )


def test_mapped_ipv4_address_is_read_as_ipv4() -> None:
    found = client_ends(headers_with(b"::ffff:10.77.1.2 40000 ::ffff:10.77.8.2 3128"))
    assert found == Ends((IPv4Address("10.77.1.2"), 40000), (IPv4Address("10.77.8.2"), 3128))


def test_header_of_an_earlier_version_raises_its_own_error() -> None:
    with pytest.raises(OldHeaderError):
        client_ends(headers_with(b"10.77.1.2 40000"))


@pytest.mark.parametrize(
    "headers",
    [
        headers_with(),
        headers_with(f"10.77.1.2 40000 {PROXY_END}".encode(), f"10.77.1.3 40000 {PROXY_END}".encode()),
        headers_with(f"10.77.1.2 40000 {PROXY_END}".encode(), name=b"mptcp_client"),
        headers_with(f"10.77.1.2 40000 {PROXY_END}".encode(), name=b"x-forwarded-for"),
        *(
            headers_with(value)
            for value in (b"", b"10.77.1.2", b"10.77.1.2 0", b"10.77.1.2 65536", b"10.77.1.2 -1", b"- -", b"a 1",
                          b"10.77.1.2 40000, 10.77.1.3 40000", b"10.77.1.2  40000", b"10.77.1.2 \xb2",
                          b"10.77.1.2 40000 10.77.8.2", b"10.77.1.2 40000 10.77.8.2 0", b"10.77.1.2 40000 - -",
                          b"10.77.1.2 40000 10.77.8.2 3128 10.77.8.2 3128", b"10.77.1.2 40000 10.77.8.2  3128")
        ),
    ],
)  # fmt: skip
def test_malformed_headers_give_no_ends(headers: list[tuple[bytes, bytes]]) -> None:
    assert client_ends(headers) is None


@given(st.binary(max_size=60))
def test_arbitrary_bytes_give_no_ends_or_valid_ports(value: bytes) -> None:
    with suppress(OldHeaderError):
        found = client_ends(headers_with(value))
        assert found is None or all(0 < port < 65536 for _, port in found)


@given(st.ip_addresses(), st.integers(1, 65535), st.ip_addresses(), st.integers(1, 65535))
def test_formatted_ends_are_parsed_again(
    address: IPv4Address | IPv6Address, port: int, proxy: IPv4Address | IPv6Address, proxy_port: int
) -> None:
    found = client_ends(headers_with(f"{address} {port} {proxy} {proxy_port}".encode()))
    assert found == ends_of((str(address), port), (str(proxy), proxy_port))


def test_endpoint_has_the_notation_of_the_throttler() -> None:
    assert endpoint((IPv4Address("10.77.1.2"), 1)) == "10.77.1.2:1"
    assert endpoint((IPv6Address("fd77::2"), 1)) == "[fd77::2]:1"
