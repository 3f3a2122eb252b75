# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for listening on an address that the host does not have yet, and for the warning about such an address."""

from __future__ import annotations

import errno
import socket

import pytest
from reserved_port import reserved_port

from mptcp_common.listeners import missing_addresses, open_listener

ABSENT = ["192.0.2.1", "2001:db8::1"]
"""Addresses reserved for documentation (RFC 5737, RFC 3849)."""


@pytest.mark.parametrize("address", ABSENT)
def test_listening_on_an_absent_address_succeeds(address: str) -> None:
    """Defect: the console failed if the host got the address later, and systemd ended its attempts after five."""
    with open_listener(address, 0, 5) as listener:
        assert listener.getsockname()[0] == address
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


@pytest.mark.parametrize("address", ["::", "0::0"])
def test_ipv6_wildcard_also_listens_on_ipv4(address: str) -> None:
    with open_listener(address, 0, 5) as listener:
        for local in ("127.0.0.1", "::1"):
            socket.create_connection((local, listener.getsockname()[1]), 60).close()


@pytest.mark.parametrize(("address", "other"), [("0.0.0.0", "::1"), ("::1", "127.0.0.1")])
def test_other_address_listens_only_on_its_own_family(address: str, other: str) -> None:
    with open_listener(address, 0, 5) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, listener.getsockname()[1]), 60)


def test_port_in_use_is_an_error() -> None:
    port = reserved_port()
    with open_listener("127.0.0.1", port, 5), pytest.raises(OSError, match="in use") as raised:
        open_listener("127.0.0.1", port, 5)
    assert raised.value.errno == errno.EADDRINUSE


def test_warnings_name_the_keys_of_absent_addresses() -> None:
    present = {"a": "127.0.0.1", "b": "127.8.8.8", "c": "::1", "d": "0.0.0.0", "e": "::"}
    absent = {f"key{number}": each for number, each in enumerate(ABSENT)}
    warnings = list(missing_addresses("portal.yaml", present | absent))
    assert [str(each) for each in warnings] == [
        f"portal.yaml: warning: {key}: no interface of this host has {each}; clients cannot reach it until one has it"
        for key, each in absent.items()
    ]
