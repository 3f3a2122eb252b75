# SPDX-License-Identifier: GPL-2.0-or-later
"""Identifies requests for the check page: whether Squid sends them, and for which client.

Every program of this host can connect to the portal's port and write any header. The kernel knows which user owns the
other socket (as identd(8) reports). Clients cannot forge Squid's HEADER: conf/squid.conf removes it from requests,
and adds its own.
"""

from __future__ import annotations

from ipaddress import ip_address

from mptcp_common.kernel_error import KernelError
from mptcp_portal.netlink import End, Ends, tcp_owner, unmap_ipv4

HEADER = b"mptcp-client"
"""Its value: ``ADDRESS PORT`` of the client's end, then of the proxy's end. The name is in lower case, as in ASGI."""
SQUID_CONF_LINE = 'request_header_add MPTCP-Client "%>a %>p %>la %>lp" check_page'
"""The line of squid.conf that adds it."""


class OldHeaderError(Exception):
    """Squid names only the client's end, as with early versions of squid.conf, so the connection is unknown."""


def is_squid(uid: int, ours: tuple[str, int], theirs: tuple[str, int]) -> bool:
    """Return whether the connection from *theirs* to *ours*, both on this host, belongs to user *uid*."""
    try:
        local, remote = ((ip_address(address), port) for address, port in (theirs, ours))
        return tcp_owner(local, remote) == uid
    except (KernelError, ValueError):
        return False


def client_ends(headers: list[tuple[bytes, bytes]]) -> Ends | None:
    """Return both ends of the client's connection; None unless HEADER occurs exactly once. Raises OldHeaderError."""
    values = [value for name, value in headers if name == HEADER]
    if len(values) != 1:
        return None
    try:
        words = values[0].decode("ascii").split(" ")
        ends = [_end(address, port) for address, port in zip(words[::2], words[1::2], strict=True)]
    except ValueError:
        return None
    if len(ends) == 1:
        raise OldHeaderError
    return Ends(*ends) if len(ends) == 2 else None


def _end(address: str, port: str) -> End:
    """Return the parsed end. Raises ValueError."""
    number = int(port) if port.isdecimal() else 0
    if not 0 < number < 65536:
        raise ValueError(port)
    return unmap_ipv4(ip_address(address)), number


def is_relayed(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether another proxy forwarded the request to this one: Via names each proxy (RFC 9110, 7.6.3). A forged
    Via changes only the client's own page."""
    proxies = b",".join(value for name, value in headers if name == b"via")
    return sum(bool(each.strip()) for each in proxies.split(b",")) > 1


def has_body(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether the request has a body."""
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers)


def endpoint(end: End) -> str:
    """Return *end* in the throttler's format."""
    address, port = end
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
