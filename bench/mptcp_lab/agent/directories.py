# SPDX-License-Identifier: GPL-2.0-or-later
"""The directory of a run, on this host or on a host that is reached by ssh: its parent directory, and its removal."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parent_directory() -> str:
    """Return the temporary directory, or /tmp if other users cannot enter the temporary directory.

    Apache's and Squid's workers run as other users, but TMPDIR may be private to one user (libpam-tmpdir).
    """
    directory = Path(tempfile.gettempdir()).resolve()
    open_to_others = all(each.stat().st_mode & 0o001 for each in (directory, *directory.parents))
    return str(directory) if open_to_others else "/tmp"


def removed(path: Path) -> str | None:
    """Remove the directory tree *path*. Return what could not be removed and why, or None."""
    failures: list[str] = []

    def note(function: Callable[..., Any], failed: str, raised: tuple[type, BaseException, Any]) -> None:
        failures.append(f"remove {failed}: {getattr(raised[1], 'strerror', raised[1])}")

    shutil.rmtree(path, onerror=note)
    # The first failure has the real reason, because a directory cannot be removed before its content. If the path
    # has vanished, nothing remains.
    return failures[0] if failures and os.path.lexists(path) else None
