"""The state directory: files that say what to put back, and locks that let one daemon at a time work.

Of files only what nobody else can write is believed.

A file is refused unless it is a regular one with one name, belongs to root, to the throttler's user or to whoever runs
this, and can be written by nobody else; so is a directory that others can write to. No symbolic link is followed below
the directory. open(2). What root writes here belongs to the owner of the directory, who has to go on with it.

Of two locks, which end with their holder, one is on a file. The other, for a daemon with another state directory, is an
abstract address of unix(7), of which each network namespace has its own: both would make sets, tables and classes of
the same names. Anybody may take such an address; one that neither root, nor this user, nor the throttler's holds is no
daemon's, and no reason to refuse.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_common.trust import distrust, throttler_uid

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
"""No state file of ours is longer."""
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Not blocking: opening a pipe that somebody put there must not wait."""
_ADDRESS = "\0mptcp-throttler"
_ASKED = 4096
"""How often others may ask who holds it: nobody accepts them."""
_CREDENTIALS = struct.Struct("=iII")
"""``struct ucred``: process, user, group."""


def read_state(path: Path) -> str | None:
    """Return the text of *path*, None where there is none. Raises KernelError where it cannot be believed or read."""
    try:
        with state_directory(path.parent) as directory:
            descriptor = os.open(path.name, os.O_RDONLY | _OPEN, dir_fd=directory)
            with os.fdopen(descriptor, "rb") as file:
                _check(os.fstat(descriptor), path)
                return file.read(MAX_BYTES).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise KernelError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def write_state(path: Path, text: str | None) -> None:
    """Replace *path* whole, or remove it where *text* is None. Raises KernelError where that cannot be done."""
    temporary = f"{path.name}.new"
    try:
        if text is None:
            with suppress(FileNotFoundError), state_directory(path.parent) as directory:
                os.unlink(path.name, dir_fd=directory)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with state_directory(path.parent) as directory:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OPEN, 0o600, dir_fd=directory)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                _give_to_owner(descriptor, directory)
            os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        raise KernelError(f"{path} cannot be written: {error.strerror}") from error


def open_lock(path: Path) -> int:
    """Return a descriptor of the lock file *path*, for flock(2); it is made where it is not there, never truncated."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with state_directory(path.parent) as directory:
            descriptor = os.open(path.name, os.O_RDWR | os.O_CREAT | _OPEN, 0o600, dir_fd=directory)
            try:
                _check(os.fstat(descriptor), path)
                _give_to_owner(descriptor, directory)
            except BaseException:
                os.close(descriptor)
                raise
    except OSError as error:
        raise KernelError(f"{path} cannot be opened: {error.strerror}") from error
    return descriptor


@contextmanager
def state_directory(path: Path) -> Iterator[int]:
    """Open the directory *path*, which others must not be able to change. Raises KernelError where they are."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_owner(os.fstat(descriptor), path)
        yield descriptor
    finally:
        os.close(descriptor)


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise KernelError(f"{path} is no regular file; remove it")
    if found.st_nlink > 1:
        raise KernelError(f"{path} has a second name in the file system; remove it")
    _check_owner(found, path)


def _check_owner(found: os.stat_result, path: Path) -> None:
    if why := distrust(found):
        raise KernelError(f"{path} {why}")


def _give_to_owner(descriptor: int, directory: int) -> None:
    owner = os.fstat(directory)
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


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
