# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for listening on an address that the host does not have yet, and for the warning about it."""

from __future__ import annotations

import errno
import socket

import pytest
from reserved_port import reserved_port

from mptcp_common.listeners import listening, not_there

NOBODYS = ["192.0.2.1", "2001:db8::1"]
"""Addresses reserved for documentation (RFC 5737, RFC 3849)."""


@pytest.mark.parametrize("address", NOBODYS)
def test_an_address_that_is_not_there_yet_is_listened_on(address: str) -> None:
    """Defect: the console could not, and systemd gave up after five starts when the address came late."""
    with listening(address, 0, 5) as listener:
        assert listener.getsockname()[0] == address
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1


@pytest.mark.parametrize("address", ["::", "0::0"])
def test_every_address_is_those_of_ipv4_as_well(address: str) -> None:
    with listening(address, 0, 5) as listener:
        for own in ("127.0.0.1", "::1"):
            socket.create_connection((own, listener.getsockname()[1]), 60).close()


@pytest.mark.parametrize(("address", "other"), [("0.0.0.0", "::1"), ("::1", "127.0.0.1")])
def test_any_other_is_of_its_family_alone(address: str, other: str) -> None:
    with listening(address, 0, 5) as listener, pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, listener.getsockname()[1]), 60)


def test_a_port_that_is_taken_is_an_error() -> None:
    port = reserved_port()
    with listening("127.0.0.1", port, 5), pytest.raises(OSError, match="in use") as raised:
        listening("127.0.0.1", port, 5)
    assert raised.value.errno == errno.EADDRINUSE


def test_addresses_that_are_not_there_are_warned_of_by_their_keys() -> None:
    there = {"a": "127.0.0.1", "b": "127.8.8.8", "c": "::1", "d": "0.0.0.0", "e": "::"}
    absent = {f"key{number}": each for number, each in enumerate(NOBODYS)}
    told = list(not_there("portal.yaml", there | absent))
    assert [str(each) for each in told] == [
        f"portal.yaml: warning: {key}: no interface of this host has {each}; nobody is answered there until one has"
        for key, each in absent.items()
    ]
