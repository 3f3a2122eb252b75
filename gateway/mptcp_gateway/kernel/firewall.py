# SPDX-License-Identifier: GPL-2.0-or-later
"""The gateway's nftables table, and the kernel's connection tracking. nft(8), ctnetlink."""

from __future__ import annotations

import os
import subprocess

from pyroute2 import NFCTSocket
from pyroute2.netlink.exceptions import NetlinkError

from mptcp_common.kernel_error import KernelError
from mptcp_common.reasons import reason
from mptcp_gateway.firewall import REMOVAL, TABLE
from mptcp_gateway.model import MARK_MASK

_TIMEOUT = 10


def apply(text: str) -> None:
    """Apply *text* with nft(8), as a whole or not at all. Raises KernelError."""
    _nft(["-f", "-"], text)


def would_accept(text: str) -> None:
    """Check whether the kernel would accept :func:`apply`; change nothing. Raises KernelError."""
    _nft(["-c", "-f", "-"], text)


def exists() -> bool:
    """Return whether the table exists. Raises KernelError."""
    try:
        _nft(["list", "chain", "inet", TABLE, "carry"])
    except KernelError as error:
        if "No such file" in str(error):
            return False
        raise
    return True


def remove() -> None:
    """Remove the table. Raises KernelError."""
    apply(REMOVAL)


def forget(mark: int) -> None:
    """Flush tracked connections with this mark, so that their next packet gets a new route and translation. Raises
    KernelError."""
    try:
        with NFCTSocket() as connections:
            connections.flush(mark=mark, mark_mask=MARK_MASK)
    except (NetlinkError, OSError) as error:
        raise KernelError(f"forget the connections with mark {mark:#x}: {reason(error)}") from error


def _nft(arguments: list[str], text: str = "") -> None:
    try:
        finished = subprocess.run(
            ["nft", *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
            env=os.environ | {"LC_ALL": "C"},  # exists() reads its errors
        )
    except FileNotFoundError:
        raise KernelError("nft is not installed (Debian: nftables)") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"nft: {error}") from error
    if finished.returncode:
        lines = [each for each in finished.stderr.splitlines() if each.strip()]
        raise KernelError(f"nft: {lines[0] if lines else 'failed'}")
