"""Who asks for the check page, and for whom: by the owner of the socket, and by the one header that Squid writes."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_portal import netlink
from mptcp_portal.netlink import mptcp_connections
from mptcp_portal.own_connection import kernel_view
from mptcp_portal.squid_socket import HEADER, client_end, endpoint, is_squid


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_connection_belongs_to_who_opened_it(family: socket.AddressFamily) -> None:
    address = "127.0.0.1" if family == socket.AF_INET else "::1"
    with (
        socket.create_server((address, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2]) as client,
    ):
        ends = server.getsockname()[:2], client.getsockname()[:2]
        assert is_squid(os.getuid(), *ends)
        assert not is_squid(os.getuid() + 1, *ends)
        # One that is not there belongs to nobody.
        assert not is_squid(os.getuid(), ends[0], (address, 1))
        assert not is_squid(os.getuid(), ("no address", 1), ends[1])


def test_a_kernel_without_diagnosis_of_mptcp_is_not_one_without_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect: the error that ends the kernel's list was not read, and all were told that they came by plain TCP."""
    there = ip_address("192.0.2.1"), 5
    monkeypatch.setattr(netlink, "_IPPROTO_MPTCP", socket.IPPROTO_TCP)
    assert mptcp_connections(there) == []
    monkeypatch.setattr(netlink, "_IPPROTO_MPTCP", 263)  # no protocol of any kernel
    with pytest.raises(FileNotFoundError):
        mptcp_connections(there)
    assert kernel_view(there) is None


def said(*values: bytes, name: bytes = HEADER) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"check.mptcp.internal"), *((name, value) for value in values)]


def test_the_header_of_squid() -> None:
    assert client_end(said(b"10.77.1.2 40000")) == (IPv4Address("10.77.1.2"), 40000)
    assert client_end(said(b"fd77:1::2 40000")) == (IPv6Address("fd77:1::2"), 40000)
    assert client_end(said(b"::ffff:10.77.1.2 40000")) == (IPv4Address("10.77.1.2"), 40000)


@pytest.mark.parametrize(
    "headers",
    [
        said(),
        said(b"10.77.1.2 40000", b"10.77.1.3 40000"),
        said(b"10.77.1.2 40000", name=b"mptcp_client"),
        said(b"10.77.1.2 40000", name=b"x-forwarded-for"),
        *(
            said(value)
            for value in (b"", b"10.77.1.2", b"10.77.1.2 0", b"10.77.1.2 65536", b"10.77.1.2 -1", b"- -", b"a 1",
                          b"10.77.1.2 40000, 10.77.1.3 40000", b"10.77.1.2  40000", b"10.77.1.2 \xb2")
        ),
    ],
)  # fmt: skip
def test_anything_else_says_nothing(headers: list[tuple[bytes, bytes]]) -> None:
    assert client_end(headers) is None


@given(st.binary(max_size=60))
def test_no_bytes_break_it(value: bytes) -> None:
    found = client_end(said(value))
    assert found is None or 0 < found[1] < 65536


@given(st.ip_addresses(), st.integers(1, 65535))
def test_an_end_comes_back(address: IPv4Address | IPv6Address, port: int) -> None:
    found = client_end(said(f"{address} {port}".encode()))
    assert found is not None
    mapped = getattr(address, "ipv4_mapped", None)
    assert found == ((mapped or address) if not getattr(address, "scope_id", None) else ip_address(str(address)), port)


def test_the_end_as_the_throttler_takes_it() -> None:
    assert endpoint((IPv4Address("10.77.1.2"), 1)) == "10.77.1.2:1"
    assert endpoint((IPv6Address("fd77::2"), 1)) == "[fd77::2]:1"
