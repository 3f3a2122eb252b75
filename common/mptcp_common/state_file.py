# SPDX-License-Identifier: GPL-2.0-or-later
"""Files in a daemon's state directory, for example the kernel settings to restore after a crash.

A file is trusted if it is regular, has one hard link, and belongs to root, the throttler's user or the current user. No
other user may be able to write to the file or to the directory. Symbolic links below the directory are not followed
(open(2)). Files that root writes are given to the directory's owner, who must be able to rewrite them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mptcp_common.kernel_error import KernelError
from mptcp_common.trust import distrust

MAX_BYTES = 1 << 24
_OPEN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # non-blocking, because the file may be a pipe without a writer


def read_state(path: Path) -> str | None:
    """Return the text of *path*, None if it does not exist. Raises KernelError if it is not trusted or readable."""
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


def write_state(path: Path, text: str | None, mode: int = 0o600) -> None:
    """Replace *path* atomically, with permissions *mode*, or remove it if *text* is None. Raises KernelError."""
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
                os.fchmod(descriptor, mode)
                file.write(text)
                file.flush()
                os.fsync(descriptor)
                _give_to_owner(descriptor, directory)
            os.replace(temporary, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        raise KernelError(f"{path} cannot be written: {error.strerror}") from error


def open_lock(path: Path) -> int:
    """Return a descriptor for flock(2) of *path*, created if necessary, never truncated. Raises KernelError."""
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
    """Open the directory *path*. Raises KernelError if others can write to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if why := distrust(os.fstat(descriptor)):
            raise KernelError(f"{path} {why}")
        yield descriptor
    finally:
        os.close(descriptor)


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise KernelError(f"{path}: not a regular file; remove it")
    if found.st_nlink > 1:
        raise KernelError(f"{path} has a second name in the file system; remove it")
    if why := distrust(found):
        raise KernelError(f"{path} {why}")


def _give_to_owner(descriptor: int, directory: int) -> None:
    found = os.fstat(directory)
    if os.geteuid() == 0 and found.st_uid != 0:
        os.fchown(descriptor, found.st_uid, found.st_gid)
