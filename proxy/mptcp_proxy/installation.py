# SPDX-License-Identifier: GPL-2.0-or-later
"""Installs a checked configuration, with its lists and pages, in the directory from which Squid reads it.

Each file is replaced atomically (rename(2)), so Squid and the preload library read either the old or the new file. All
files are written before the first is replaced: if a reload fails, a restarting worker must not read a part of it.
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
from .check_page import MISSING
from .configuration.check import Checked
from .configuration.lists import CopiedList
from .error_pages import error_pages
from .own_addresses import Network, render
from .places import PORTAL_SETTINGS, SHARED_MEMORY, WORKER_SOCKETS, Places


def make_directories(places: Places, checked: Checked) -> None:
    """Make the missing directories. Squid's user owns those that Squid writes to as that user."""
    _make(places.runtime, 0o755)
    _make(places.lists, 0o755)
    _make(places.error_pages, 0o755)
    _make(places.logs, 0o750)
    _own(places.logs, checked.effective_user)
    if checked.workers.count > 1:
        # Make the directory as the distribution does. An existing directory of another Squid is not changed.
        _make(WORKER_SOCKETS, 0o755)
        if WORKER_SOCKETS.stat().st_uid == 0:
            _own(WORKER_SOCKETS, checked.effective_user)


def _make(directory: Path, mode: int) -> None:
    if not directory.is_dir():
        directory.mkdir(parents=True)
        directory.chmod(mode)  # because mkdir applies the umask


def remove_shared_files(places: Places) -> None:
    """Remove the sockets and shared memory that the workers of an ended Squid left; a killed Squid leaves all of them.
    Files of the same names that another user made are removed as well, because they keep Squid from starting."""
    for directory, kind in ((WORKER_SOCKETS, "ipc"), (SHARED_MEMORY, "shm")):
        for path in directory.glob(f"{places.service_name}-*.{kind}"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def install(places: Places, checked: Checked, prefixes: Iterable[Network], workers: int, option: bool = False) -> None:
    """Write the files that Squid and the preload library read at their next start or reload. *workers*: the number of
    workers that Squid has or will be started with. *option*: whether Squid uses its own option mptcp."""
    ports = (",".join(map(str, checked.ports)) + "\n").encode()
    group = _group(checked.effective_user)
    configuration = checked.rendered(workers, option)
    before = _content(places.configuration_in_force)
    write_all(
        # Write the lists first: Squid must not read a configuration that names a missing list.
        *(
            File(each.copy, each.content, 0o640, group)
            for each in checked.lists
            if each.content is not None and not _is_there(each, group)
        ),
        # The file may contain passwords, for example of cache peers: only root and Squid's group may read it.
        File(places.configuration_in_force, configuration, 0o640, group),
        File(places.listen_ports, ports, 0o644),
        File(places.check_page_missing, MISSING.encode(), 0o644),
        *(
            File(places.error_pages / name, content, 0o644)
            for name, content in error_pages(with_check_page=PORTAL_SETTINGS.exists(), relay=bool(checked.parents))
        ),
        _own_addresses(places, prefixes),
    )
    # Keep the lists of the earlier configuration: a worker that is just starting may have read it.
    _remove_lists(places.lists, before + configuration)


def _is_there(wanted: CopiedList, group: int) -> bool:
    """Tell whether the copy exists. Its content need not be compared: the name is a hash of the content, and the
    complete file was renamed to it."""
    try:
        found = wanted.copy.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o640 and group in (-1, found.st_gid)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _remove_lists(directory: Path, named: bytes) -> None:
    with suppress(OSError):
        for path in list(directory.iterdir()):
            if os.fsencode(path.name) not in named:
                path.unlink()


def install_own_addresses(places: Places, prefixes: Iterable[Network]) -> None:
    write_all(_own_addresses(places, prefixes))


def _own_addresses(places: Places, prefixes: Iterable[Network]) -> File:
    return File(places.own_addresses, render(frozenset(prefixes)).encode(), 0o644)


def install_library(places: Places, library: Path) -> Path:
    """Return *library*, or a copy if LD_PRELOAD cannot name it or Squid's user cannot open it.

    Squid's workers are started as that user, and a checkout is often below a home directory closed to others. The
    copy's path contains only the service name, hence no blanks. A library cannot be loaded from a file system mounted
    noexec, as /run often is.
    """
    if shim.can_be_preloaded(library) and (os.geteuid() != 0 or _open_to_all(library)):
        return library
    directory = next((d for d in (places.runtime, places.state) if not _is_noexec(d)), places.state)
    _make(directory, 0o755)
    copy = directory / library.name
    write(copy, library.read_bytes(), 0o755)
    return copy


def _open_to_all(file: Path) -> bool:
    enterable = all(directory.stat().st_mode & 0o001 for directory in file.resolve().parents)
    return enterable and bool(file.stat().st_mode & 0o004)


def _is_noexec(directory: Path) -> bool:
    there = next(d for d in (directory, *directory.parents) if d.exists())
    return bool(os.statvfs(there).f_flag & os.ST_NOEXEC)


def _own(directory: Path, owner: str) -> None:
    if os.geteuid() == 0:
        entry = pwd.getpwnam(owner)
        os.chown(directory, entry.pw_uid, entry.pw_gid)


def _group(user: str) -> int:
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
    """Replace *path* atomically. Raises OSError; then the file is unchanged."""
    write_all(File(path, content, mode))


def write_all(*files: File) -> None:
    """Replace *files* after all new ones were written to the same directories. Raises OSError; if the new files do not
    all fit on the disk, no file is replaced."""
    beside: list[tuple[str, Path]] = []
    try:
        for file in files:
            descriptor, name = tempfile.mkstemp(dir=file.path.parent, prefix=f".{file.path.name}-")
            beside.append((name, file.path))
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(file.content)
                os.fchown(stream.fileno(), -1, file.group)
                os.fchmod(stream.fileno(), file.mode)
        while beside:
            os.replace(*beside[0])
            del beside[0]
    finally:
        for name, _ in beside:
            # An error here must not hide the original one.
            with suppress(OSError):
                os.unlink(name)
