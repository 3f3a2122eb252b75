# SPDX-License-Identifier: GPL-2.0-or-later
"""Installs a checked configuration, with its lists and pages, into the directory from which Squid reads it.

Each file is replaced atomically (rename(2)), so Squid and the preload library read either the old or the new file. All
new files are written before the first file is replaced. So if the disk is full, the old files stay, and a worker that
Squid restarts does not read a mixture of old and new files.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from . import shim
from .check_page import PORTAL_DOWN
from .configuration.check import CheckedConfiguration
from .configuration.lists import CopiedList
from .error_pages import error_pages
from .own_addresses import Network, render
from .places import PORTAL_SETTINGS, SHARED_MEMORY, WORKER_SOCKETS, Places


def make_directories(places: Places, checked: CheckedConfiguration) -> None:
    """Create the missing directories. Squid's user owns the directories to which Squid writes as that user."""
    _make_directory(places.runtime, 0o755)
    _make_directory(places.lists, 0o755)
    _make_directory(places.error_pages, 0o755)
    _make_directory(places.logs, 0o750)
    _set_owner(places.logs, checked.effective_user)
    if checked.workers.count > 1:
        # Create the directory as the distribution does. If it belongs to another Squid's user, do not change it.
        _make_directory(WORKER_SOCKETS, 0o755)
        if WORKER_SOCKETS.stat().st_uid == 0:
            _set_owner(WORKER_SOCKETS, checked.effective_user)


def _make_directory(directory: Path, mode: int) -> None:
    if not directory.is_dir():
        directory.mkdir(parents=True)
        directory.chmod(mode)  # because mkdir applies the umask


def remove_shared_files(places: Places) -> None:
    """Remove the sockets and shared memory of an ended Squid's workers. A killed Squid does not remove them. Files with
    the same names that another user has created are removed as well, because they would keep Squid from starting."""
    for directory, kind in ((WORKER_SOCKETS, "ipc"), (SHARED_MEMORY, "shm")):
        for path in directory.glob(f"{places.service_name}-*.{kind}"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def install(
    places: Places, checked: CheckedConfiguration, prefixes: Iterable[Network], workers: int, mptcp_option: bool = False
) -> None:
    """Write the files that Squid and the preload library read at the next start or reload.

    *workers*: the number of workers that Squid has, or with which it will be started. *mptcp_option*: whether Squid
    uses its own option ``mptcp``.
    """
    ports = (",".join(map(str, checked.ports)) + "\n").encode()
    group = _group_of(checked.effective_user)
    configuration = checked.render(workers, mptcp_option)
    previous_configuration = _read_or_empty(places.configuration_in_force)
    write_all(
        # The lists come first: Squid must not read a configuration that names a missing list.
        *(
            File(each.copy, each.content, 0o640, group)
            for each in checked.lists
            if each.content is not None and not _is_installed(each, group)
        ),
        # The file may contain passwords, for example of cache peers: only root and Squid's group may read it.
        File(places.configuration_in_force, configuration, 0o640, group),
        File(places.listen_ports, ports, 0o644),
        File(places.check_page_missing, PORTAL_DOWN.encode(), 0o644),
        *(
            File(places.error_pages / name, content, 0o644)
            for name, content in error_pages(with_check_page=PORTAL_SETTINGS.exists(), relay=bool(checked.parents))
        ),
        _own_addresses_file(places, prefixes),
    )
    # Keep the lists of the earlier configuration: a starting worker may have read it and not yet opened them.
    _remove_lists(places.lists, previous_configuration + configuration)


def _is_installed(copied: CopiedList, group: int) -> bool:
    """Return whether the copy exists. Its content need not be compared, because its name contains a hash of the
    content, and only a complete file gets this name."""
    try:
        found = copied.copy.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o640 and group in (-1, found.st_gid)


def _read_or_empty(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _remove_lists(directory: Path, configurations: bytes) -> None:
    """Remove the copies of lists that *configurations* do not name."""
    with suppress(OSError):
        for path in list(directory.iterdir()):
            if os.fsencode(path.name) not in configurations:
                path.unlink()


def install_own_addresses(places: Places, prefixes: Iterable[Network]) -> None:
    write_all(_own_addresses_file(places, prefixes))


def _own_addresses_file(places: Places, prefixes: Iterable[Network]) -> File:
    return File(places.own_addresses, render(frozenset(prefixes)).encode(), 0o644)


def install_library(places: Places, library: Path) -> Path:
    """Return *library*, or the path of a copy if LD_PRELOAD cannot name *library* or Squid's user cannot open it.

    Squid's workers start as that user, and a checkout is often below a home directory that other users cannot enter.
    The copy's path contains no blanks. It is not on a file system with the option noexec, which /run often has, because
    a library cannot be loaded from there.
    """
    if shim.can_be_preloaded(library) and (os.geteuid() != 0 or _is_readable_by_all(library)):
        return library
    directory = next((d for d in (places.runtime, places.state) if not _is_noexec(d)), places.state)
    _make_directory(directory, 0o755)
    copy = directory / library.name
    write(copy, library.read_bytes(), 0o755)
    return copy


def _is_readable_by_all(file: Path) -> bool:
    enterable = all(directory.stat().st_mode & 0o001 for directory in file.resolve().parents)
    return enterable and bool(file.stat().st_mode & 0o004)


def _is_noexec(directory: Path) -> bool:
    existing = next(d for d in (directory, *directory.parents) if d.exists())
    return bool(os.statvfs(existing).f_flag & os.ST_NOEXEC)


def _set_owner(directory: Path, owner: str) -> None:
    if os.geteuid() == 0:
        entry = pwd.getpwnam(owner)
        os.chown(directory, entry.pw_uid, entry.pw_gid)


def _group_of(user: str) -> int:
    """Return the group for files of *user*; -1 leaves the group unchanged (chown(2))."""
    return pwd.getpwnam(user).pw_gid if os.geteuid() == 0 else -1


class File(NamedTuple):
    """A file to replace atomically."""

    path: Path
    content: bytes
    mode: int
    group: int = -1
    """Group id; -1 leaves the group unchanged (chown(2))."""


def write(path: Path, content: bytes, mode: int) -> None:
    """Replace *path* atomically. Raises OSError, and then the file is unchanged."""
    write_all(File(path, content, mode))


def write_all(*files: File) -> None:
    """Write the content of all *files* to temporary files in the same directories, then rename these to *files*. Raises
    OSError. If the disk has no space for all of them, no file is replaced."""
    new_files: list[tuple[str, Path]] = []
    try:
        for file in files:
            descriptor, name = tempfile.mkstemp(dir=file.path.parent, prefix=f".{file.path.name}-")
            new_files.append((name, file.path))
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(file.content)
                os.fchown(stream.fileno(), -1, file.group)
                os.fchmod(stream.fileno(), file.mode)
        while new_files:
            os.replace(*new_files[0])
            del new_files[0]
    finally:
        for name, _ in new_files:
            # An error here must not hide the original error.
            with suppress(OSError):
                os.unlink(name)
