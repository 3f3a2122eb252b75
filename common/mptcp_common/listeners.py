# SPDX-License-Identifier: GPL-2.0-or-later
"""Opens listening sockets, also on an address that this host gets later, for example by DHCP or from a VPN.

Without IP_FREEBIND (ip(7)), the kernel binds only existing addresses: a server that starts before its address exists
would fail again and again, until the service manager gives up. With IP_FREEBIND, the kernel does not refuse a mistyped
address, so a check of the settings warns about addresses that the host does not have.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Final

from mptcp_common.problems import Problem, Severity

_IP_FREEBIND: Final = 15
_IPV6_FREEBIND: Final = 78
"""linux/in.h, linux/in6.h."""


def open_listener(address: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens on *address*, which this host may get later. Raises OSError."""
    listener = _socket(address)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET:
            listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
        else:
            # A socket on [::] also accepts IPv4; a socket on another IPv6 address does not.
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not ip_address(address).is_unspecified)
            listener.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        listener.bind((address, port))
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def missing_addresses(source: str, addresses: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a warning for each of *addresses* (by key in the settings file *source*) that this host does not have."""
    for key, address in addresses.items():
        if not _can_bind(address):
            message = f"no interface of this host has {address}; clients cannot reach it until one has it"
            yield Problem(source, 0, 0, key, address, message, Severity.WARNING)


def _can_bind(address: str) -> bool:
    """Return whether the kernel binds *address* without IP_FREEBIND. With the sysctl ip_nonlocal_bind (ip(7)), it binds
    every address."""
    try:
        with _socket(address) as probe:
            probe.bind((address, 0))
    except OSError as error:
        # The server reports all other errors, such as a host without IPv6.
        return error.errno != errno.EADDRNOTAVAIL
    return True


def _socket(address: str) -> socket.socket:
    family = socket.AF_INET6 if ip_address(address).version == 6 else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM)
