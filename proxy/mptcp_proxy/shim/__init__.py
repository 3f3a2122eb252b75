# SPDX-License-Identifier: GPL-2.0-or-later
"""Finds and builds the two preload libraries.

``mptcp_listen.so`` makes Squid's listeners, or its connections to parents, use MPTCP. ``squid_turns.so`` changes the
order in which Squid's event loop serves clients, and is optional. The libraries must be compiled for the host's C
library, so this is done at the installation, or otherwise at the first start. ``both/both.h`` describes their parts.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Collection
from pathlib import Path

_HERE = Path(__file__).parent
LISTEN, TURNS = "mptcp_listen.so", "squid_turns.so"
_DIRECTORIES = {LISTEN: ("both", "listen"), TURNS: ("both", "turns")}
DEFAULT_LIBRARY = _HERE.parent / LISTEN
FEATURES = ("zero-read", "late-writes", "may-write", "joined-writes")
"""Optional features of the libraries in addition to Multipath TCP and turns."""
_NEED_FAIR_TURNS = ("may-write", "joined-writes")
"""Features that ``--turns kernel`` also switches off."""
PACKAGED = "MPTCP_LISTEN_SHIM"
"""Environment variable with the path of ``mptcp_listen.so``, for a package that contains both libraries. Then they are
not compiled."""

_FLAGS = (
    *("-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-O2"),
    *("-Wall", "-Wextra", "-Werror", "-Wl,-z,relro,-z,now"),
)


class ShimError(Exception):
    """A library is missing and cannot be built. The text contains a remedy."""


def sources(name: str) -> list[Path]:
    """Return the source files of the library *name*."""
    return sorted(path for directory in _DIRECTORIES[name] for path in (_HERE / directory).glob("*.c"))


def switched_off(turns: str, without: Collection[str]) -> frozenset[str]:
    """Return the features that the options *turns* and *without* switch off; one of them may be "fair-turns"."""
    return frozenset(without) | (frozenset() if turns == "fair" else {"fair-turns", *_NEED_FAIR_TURNS})


def needed_libraries(off: Collection[str]) -> tuple[str, ...]:
    """Return the names of the libraries to load, in the order of LD_PRELOAD. *off*: features that are switched off."""
    return (LISTEN,) if {"fair-turns", "zero-read"} <= set(off) else (TURNS, LISTEN)


def library(name: str = LISTEN) -> Path:
    """Return the library *name*. Build it if it is missing or older than its sources."""
    return packaged_library(name) or build(DEFAULT_LIBRARY.with_name(name))


def packaged_library(name: str = LISTEN) -> Path | None:
    """Return the path of the library *name* next to the file in the environment variable PACKAGED; None if the variable
    is not set. Squid loads the library as root, so no other user may own the file. Raises ShimError."""
    configured = os.environ.get(PACKAGED)
    if not configured:
        return None
    path = Path(configured) if name == LISTEN else Path(configured).with_name(name)
    if not path.is_file():
        raise ShimError(f"{PACKAGED}={configured}: there is no such file{'' if name == LISTEN else f' as {path}'}")
    if why := _trust_problem(path):
        raise ShimError(f"{PACKAGED}={configured}: {why}")
    return path


def _trust_problem(file: Path) -> str:
    """Return why root must not run *file*; empty if only root, or this process's user, can replace it."""
    if not file.is_absolute():
        return "not an absolute name: in another directory, it would mean another file"
    real = file.resolve()
    for path in dict.fromkeys((real, *real.parents, *file.parents)):
        found = path.stat()
        # In a directory with the sticky bit, such as /tmp, other users cannot replace the file.
        is_sticky = path != real and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()):
            return f"{path} belongs to user {found.st_uid}; it must belong to root"
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not is_sticky:
            return f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return ""


def _compiler() -> str:
    """Return the compiler's absolute path. Raises ShimError."""
    configured = os.environ.get("CC", "cc")
    found = shutil.which(configured)
    if found is None:
        raise ShimError(f"there is no C compiler {configured}: apt install gcc libc6-dev")
    if why := _trust_problem(Path(found)):
        raise ShimError(f"the C compiler {found}: {why}")
    return found


def is_current(target: Path) -> bool:
    """Return whether *target* exists and is not older than its sources."""
    try:
        build_time = target.stat().st_mtime_ns
        return all(build_time >= source.stat().st_mtime_ns for source in (*_HERE.glob("*/*.c"), *_HERE.glob("*/*.h")))
    except FileNotFoundError:
        return False


def build(target: Path) -> Path:
    """Compile the library named by *target* unless it is current. Return its absolute path."""
    target = target.absolute()
    if is_current(target):
        return target
    try:
        compiler = _compiler()
    except ShimError as error:
        raise ShimError(f"{target} must be built, and {error}") from error
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Build the library in a temporary directory and then rename it, so that a starting Squid never loads a part.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".shim-") as directory:
            new_library = Path(directory) / target.name
            answer = subprocess.run(
                [compiler, *_FLAGS, "-o", str(new_library), *map(str, sources(target.name)), "-ldl"],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.returncode != 0:
                raise ShimError(f"{compiler} cannot compile the library in {_HERE}:\n{answer.stderr.strip()}")
            new_library.replace(target)
    except OSError as error:
        raise ShimError(
            f"cannot build {target}: {error.strerror}; run once, as root: mptcp-proxy build-shim"
        ) from error
    return target


def can_be_preloaded(library: Path) -> bool:
    """Return whether LD_PRELOAD can contain the path: blanks and colons separate its entries (ld.so(8))."""
    return not any(separator in str(library) for separator in ": \t\n")
