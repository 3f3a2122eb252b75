"""One daemon at a time has the state directory, and one the network namespace: locks that end with their holder.

The first is a lock on a file. The second, for a daemon with another state directory, is an abstract address of
unix(7), of which each network namespace has its own: both would make sets, tables and classes of the same names.
Anybody may take such an address. One that neither root, nor this user, nor the throttler's holds is no daemon's, and
no reason to refuse.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mptcp_common.trust import throttler_uid
from mptcp_throttler.kernel.state_file import open_lock

log = logging.getLogger(__name__)

_ADDRESS = "\0mptcp-throttler"
_ASKED = 4096
"""How often others may ask who holds it: nobody accepts them."""
_CREDENTIALS = struct.Struct("=iII")
"""``struct ucred``: process, user, group."""


class AlreadyRunning(Exception):
    """Another daemon holds the state directory or the network namespace."""


@contextmanager
def locked(state_directory: Path) -> Iterator[None]:
    """Hold both for one daemon. Raises :class:`AlreadyRunning`; KernelError for a lock not to trust."""
    with os.fdopen(open_lock(state_directory / "lock"), "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(f"a throttler is running already: it holds {state_directory}/lock") from error
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
            _hold(held)
            yield


def _hold(held: socket.socket) -> None:
    try:
        held.bind(_ADDRESS)
        held.listen(_ASKED)
    except OSError as error:
        holder = _holder()
        if holder is not None and holder[1] in (0, os.geteuid(), throttler_uid()):
            what = f"a throttler is running already in this network namespace: process {holder[0]}"
            raise AlreadyRunning(what) from error
        log.warning("the address @%s is taken by no throttler; a second one would not be noticed", _ADDRESS[1:])


def _holder() -> tuple[int, int] | None:
    """Return process and user of who listens at our address; None where nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_ADDRESS)
        except OSError:
            return None
        process, user, _group = _CREDENTIALS.unpack(
            asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
    return process, user
