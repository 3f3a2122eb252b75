# SPDX-License-Identifier: GPL-2.0-or-later
"""The gateway's nftables table, and the kernel's connection tracking. nft(8), ctnetlink."""

from __future__ import annotations

from pyroute2 import NFCTSocket
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.kernel_error import KernelError
from mptcp_common.programs import run
from mptcp_common.reasons import reason
from mptcp_gateway.firewall import REMOVAL, TABLE
from mptcp_gateway.model import MARK_MASK


def apply(text: str) -> None:
    """Apply *text* with nft(8), as a whole or not at all. Raises KernelError."""
    run("nft", "-f", "-", text=text)


def check_ruleset(text: str) -> None:
    """Check whether the kernel would accept *text*; change nothing. Raises KernelError if it would not."""
    run("nft", "-c", "-f", "-", text=text)


def exists() -> bool:
    """Return whether the table exists. Raises KernelError."""
    try:
        run("nft", "list", "chain", "inet", TABLE, "carry")
    except KernelError as error:
        if "No such file" in str(error):
            return False
        raise
    return True


def remove() -> None:
    """Remove the table. Raises KernelError."""
    apply(REMOVAL)


def forget_connections(mark: int) -> None:
    """Flush tracked connections with this mark, so that their next packet gets a new route and translation. Raises
    KernelError."""
    try:
        with NFCTSocket() as connections:
            connections.flush(mark=mark, mark_mask=MARK_MASK)
    except (NetlinkError, OSError) as error:
        raise KernelError(f"forget the connections with mark {mark:#x}: {reason(error)}") from error
