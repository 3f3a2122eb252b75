# SPDX-License-Identifier: GPL-2.0-or-later
"""Locks that allow only one daemon of a program, because a second daemon would remove the kernel objects of the first.

One lock is an abstract unix(7) address; each network namespace has its own addresses. Every user can bind it, so it
counts only if root, this user or the throttler's user holds it. With a full backlog, the holder is unknown, and the
lock does not count. The other lock, if the program has a state directory, is on a file there. The kernel releases both
locks when the process ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from mptcp_common.kernel_error import KernelError
from mptcp_common.state_file import open_lock
from mptcp_common.trust import throttler_uid

log = logging.getLogger(__name__)

_BACKLOG: Final = 4096  # connections are never accepted, so only this many processes can query who holds the address
_CREDENTIALS: Final = struct.Struct("=iII")  # struct ucred: process, user, group


class AlreadyRunning(KernelError):
    """Another daemon holds the network namespace or the state directory."""


@contextmanager
def single_daemon(program: str, state_directory: Path | None = None) -> Iterator[None]:
    """Hold the locks. Raises AlreadyRunning, and KernelError for an untrusted lock file."""
    path = None if state_directory is None else state_directory / "lock"
    with nullcontext() if path is None else os.fdopen(open_lock(path), "rb") as lock:
        if lock is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise AlreadyRunning(f"{program} already runs: it holds {path}") from error
        with socket.socket(socket.AF_UNIX) as lock_socket:
            address = f"\0{program}"
            try:
                lock_socket.bind(address)
                lock_socket.listen(_BACKLOG)
            except OSError as error:
                process, user = _holder(address)
                if user in (0, os.geteuid(), throttler_uid()):
                    text = f"{program} already runs in this network namespace: process {process}"
                    raise AlreadyRunning(text) from error
                log.warning(
                    "the address @%s is in use by another program; a second %s would not be noticed", program, program
                )
            yield


def _holder(address: str) -> tuple[int, int | None]:
    """Return the process and the user that listen at *address*; the user is None if that is unknown."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(address)
        except OSError:
            return 0, None  # also if the backlog is full: any user could have filled it
        process, user, _ = _CREDENTIALS.unpack(
            probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
    return process, user
