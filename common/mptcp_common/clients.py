# SPDX-License-Identifier: GPL-2.0-or-later
"""Defines which addresses count as one client, for limits per client. Pure.

A client is an IPv4 address, or the first 64 bits of an IPv6 address, because a host with one IPv6 address can use 2**64
addresses. An IPv4 address in an IPv6 prefix, the kernel's (``::ffff:0:0/96``) or a translator's (``64:ff9b::/96``, RFC
6052), counts as IPv4, because the hosts behind one NAT64 are different clients.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Final

_NETWORK_BYTES: Final = 8
"""Length of the network part of an IPv6 address (RFC 4291, 2.5.4)."""
_IPV4_PREFIXES: Final = tuple(
    ip_network(each).network_address.packed[:12] for each in ("::ffff:0:0/96", "64:ff9b::/96")
)


def client_of(address: bytes) -> bytes:
    """Return the client's key for a packed *address*."""
    if address.startswith(_IPV4_PREFIXES):
        return address[12:]
    return address if len(address) == 4 else address[:_NETWORK_BYTES]


def client_text(client: bytes) -> str:
    """Return *client* in the usual notation: an IPv4 address, or an IPv6 prefix."""
    if len(client) == 4:
        return str(ip_network(client).network_address)
    return str(ip_network((client.ljust(16, b"\0"), 8 * _NETWORK_BYTES)))
