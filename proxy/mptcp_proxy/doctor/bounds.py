# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks how much memory one client can occupy by uploads that no program reads, and how many connections it can open
per second."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from mptcp_common.findings import Finding, ok, unseen, warn
from mptcp_common.units import approximate_size, counted

from ..configuration.source import Statement, last_with_value
from .kernel import lasting_sysctl

MEMORY_DIVISOR = 4
"""One client may occupy at most a quarter of the host's memory."""
RECEIVE_BUFFER = 2 << 20
"""Recommended third value of net.ipv4.tcp_rmem, bytes, if the clients are not trusted (docs/operator.md)."""
DESCRIPTORS = 65536
"""Number of descriptors of each worker, as set by LimitNOFILE of the unit."""
TABLE = "mptcp_proxy_new_connections"
"""Name of the table in conf/nftables/limit-new-connections.nft."""
_DIRECTIVE = "client_ip_max_connections"
_UPLOADS, _NEW_CONNECTIONS = "memory for one client", "new connections"


def connections_of_one_client(directives: Sequence[Statement]) -> int:
    """Return how many connections of one address a worker accepts according to squid.conf, at most one per
    descriptor."""
    stated = last_with_value(directives, _DIRECTIVE)
    if stated is None or not stated.words[1].isdigit():
        return DESCRIPTORS  # client_ip_max_connections -1 means no limit
    return min(int(stated.words[1]), DESCRIPTORS)


def unread_uploads(
    connections: int, workers: int, sizes: tuple[int, int, int], memory: int, all_tcp: int, file: str
) -> Finding:
    """Compare the memory that one client's uploads can occupy with the host's *memory* and with the limit for all TCP.

    *connections*: maximum number of connections of one address with each worker, according to squid.conf (*file*).
    *sizes*: net.ipv4.tcp_rmem (tcp(7)); a connection's buffer grows to the third value even if no program reads it.
    *all_tcp*: the second value of net.ipv4.tcp_mem, in bytes; above it, the kernel reduces the memory of connections.
    """
    minimum, initial, maximum = sizes
    bound = min(memory // MEMORY_DIVISOR, all_tcp)
    occupied = connections * workers * maximum
    per_worker = "the worker" if workers == 1 else f"each of {workers} workers"
    text = (
        f"unread uploads of one client may occupy {approximate_size(occupied)}:"
        f" {counted(connections, 'connection')} with {per_worker}, {approximate_size(maximum)} each"
    )
    if occupied <= bound:
        return ok(_UPLOADS, text)
    smaller_buffer, remedies = min(maximum, RECEIVE_BUFFER), []
    if smaller_buffer < maximum:
        value = f"{min(minimum, smaller_buffer)} {min(initial, smaller_buffer)} {smaller_buffer}"
        remedies.append(lasting_sysctl("net.ipv4.tcp_rmem", value))
    if connections * workers * smaller_buffer > bound:
        fewer_connections = max(1, bound // (workers * smaller_buffer))
        remedies.append(
            f"# in {file}: {_DIRECTIVE} {fewer_connections}, maxconn of too_many below it; then: mptcp-proxy reload"
        )
    name = (
        "a quarter of this host's memory"
        if bound < all_tcp
        else "the memory above which the kernel saves memory for TCP (tcp_mem)"
    )
    why = f"that is more than {approximate_size(bound)}, {name}, so other clients would wait"
    return warn(_UPLOADS, text, f"{why}; ignore this if you trust your clients", "   ".join(remedies))


def new_connections(listed: str | None, file: Path) -> Finding:
    """Check the limit of new connections. *listed*: output of ``nft list table``, or None if unknown. *file*: the file
    that defines the table."""
    if listed is None:
        return unseen(_NEW_CONNECTIONS, "whether nftables limits them")
    if listed.strip():
        return ok(_NEW_CONNECTIONS, f"limited for each client by the nftables table {TABLE}")
    return warn(
        _NEW_CONNECTIONS,
        f"the nftables table {TABLE} is not loaded",
        "without another limit, a client may open any number of connections per second, and other clients wait",
        f"nft -f {shlex.quote(str(file))}   # until the next boot; comments in the file describe how to load it at each"
        " boot, and a limit for many people with one address",
    )
