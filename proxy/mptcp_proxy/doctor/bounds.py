# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks how much of this host one client can use up: memory, by uploads that no program reads, and new connections."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from mptcp_common.findings import Finding, ok, unseen, warn
from mptcp_common.units import approximate_size, counted

from ..configuration.source import Statement, last
from .kernel import lasting_sysctl

SHARE = 4
"""One client may hold at most this fraction (1/4) of the host's memory."""
RECEIVE_BUFFER = 2 << 20
"""Recommended third value of net.ipv4.tcp_rmem, bytes, if the clients are not trusted (docs/operator.md)."""
DESCRIPTORS = 65536
"""Number of descriptors of each worker, as set by LimitNOFILE of the unit."""
TABLE = "mptcp_proxy_new_connections"
"""Name of the table in conf/nftables/limit-new-connections.nft."""
_DIRECTIVE = "client_ip_max_connections"
_UPLOADS, _OPENED = "memory for one client", "new connections"


def connections_of_one_client(directives: Sequence[Statement]) -> int:
    """Return how many connections of one address a worker accepts by squid.conf, at most one per descriptor."""
    stated = last(directives, _DIRECTIVE)
    if stated is None or not stated.words[1].isdigit():
        return DESCRIPTORS  # client_ip_max_connections -1 means no limit
    return min(int(stated.words[1]), DESCRIPTORS)


def unread_uploads(
    connections: int, workers: int, sizes: tuple[int, int, int], memory: int, all_tcp: int, file: str
) -> Finding:
    """Compare the memory that one client's uploads can occupy with the host's *memory* and with the limit for all TCP.

    *connections*: maximum number of connections of one address with each worker, by squid.conf (*file*). *sizes*:
    net.ipv4.tcp_rmem (tcp(7)); a connection's buffer grows to the third value even if no program reads it. *all_tcp*:
    the second value of net.ipv4.tcp_mem, in bytes; beyond it the kernel saves memory on every connection.
    """
    least, middle, largest = sizes
    bound = min(memory // SHARE, all_tcp)
    held = connections * workers * largest
    with_whom = "the worker" if workers == 1 else f"each of {workers} workers"
    text = (
        f"unread uploads of one client may occupy {approximate_size(held)}:"
        f" {counted(connections, 'connection')} with {with_whom}, {approximate_size(largest)} each"
    )
    if held <= bound:
        return ok(_UPLOADS, text)
    smaller, remedies = min(largest, RECEIVE_BUFFER), []
    if smaller < largest:
        value = f"{min(least, smaller)} {min(middle, smaller)} {smaller}"
        remedies.append(lasting_sysctl("net.ipv4.tcp_rmem", value))
    if connections * workers * smaller > bound:
        fewer = max(1, bound // (workers * smaller))
        remedies.append(f"# in {file}: {_DIRECTIVE} {fewer}, maxconn of too_many below it; then: mptcp-proxy reload")
    of_what = "a quarter of this host's memory" if bound < all_tcp else "all TCP of this host has in plenty (tcp_mem)"
    why = f"that is more than {of_what}, {approximate_size(bound)}: others wait then; trusted clients may have it"
    return warn(_UPLOADS, text, why, "   ".join(remedies))


def new_connections(listed: str | None, file: Path) -> Finding:
    """Check the bound on new connections. *listed*: from ``nft list table``, or None if unknown. *file*: loads it."""
    if listed is None:
        return unseen(_OPENED, "whether nftables limits them")
    if listed.strip():
        return ok(_OPENED, f"limited for each client by the nftables table {TABLE}")
    return warn(
        _OPENED,
        f"the nftables table {TABLE} is not loaded",
        "unless something else limits them, a client may open any number per second, and others wait",
        f"nft -f {shlex.quote(str(file))}   # until the next boot; its head says how it lasts, and what many people"
        " behind one address need",
    )
