# SPDX-License-Identifier: GPL-2.0-or-later
"""Locks a network namespace for one daemon: a second daemon would remove the device and the rules of the first.

The lock is an abstract address (unix(7)). Each network namespace has its own, and the kernel frees it when its holder
ends. Any user can bind it, so the lock counts only if root or this user holds it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mptcp_common.kernel_error import KernelError

log = logging.getLogger(__name__)
_ADDRESS: Final = "\0mptcp-tunnel"
_CREDENTIALS = struct.Struct("=iII")
"""``struct ucred``: process, user, group."""


@contextmanager
def single_daemon() -> Iterator[None]:
    """Hold the lock of the network namespace. Raises KernelError if another daemon holds it."""
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(_ADDRESS)
            held.listen(4096)  # connections are never accepted, so this many processes can find the holder
        except OSError as error:
            process, user = _holder()
            if user in (0, os.geteuid()):
                raise KernelError(f"mptcp-tunnel already runs in this network namespace: process {process}") from error
            log.warning(
                "the address @%s is in use by another program; a second mptcp-tunnel would not be detected",
                _ADDRESS[1:],
            )
        yield


def _holder() -> tuple[int, int | None]:
    """Return the process and the user that listen at the address; the user is None if nobody listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            connection.connect(_ADDRESS)
        except BlockingIOError:
            return 0, 0  # the backlog is full
        except OSError:
            return 0, None
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(credentials)
    return process, user
