# SPDX-License-Identifier: GPL-2.0-or-later
"""A client's subflows as the proxy's kernel knows them. To the client, a refused subflow looks established, too."""

from __future__ import annotations

from collections.abc import Collection

from mptcp_lab.testbed import LiveNode
from mptcp_lab.testbed.services import PROXY_PORT


def client_ends(proxy: LiveNode, addresses: Collection[str]) -> list[str]:
    """Return the client's address of each established subflow from one of *addresses* to *proxy*."""
    # Let the kernel filter, because the proxy may have thousands of other subflows.
    ends = " or ".join(f"dst {f'[{each}]' if ':' in each else each}" for each in addresses)
    wanted = f"( sport = :{PROXY_PORT} and ( {ends} ) )"
    return peers(proxy.run(["ss", "-tnH", "state", "established", wanted]).stdout)


def peers(listing: str) -> list[str]:
    """Return the peers' addresses in the output of ``ss -tnH state established``; IPv4-mapped ones as IPv4."""
    ends = [line.split()[3].rpartition(":")[0] for line in listing.splitlines()]
    return [end.partition("%")[0].strip("[]").removeprefix("::ffff:") for end in ends]
