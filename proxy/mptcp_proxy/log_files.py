# SPDX-License-Identifier: GPL-2.0-or-later
"""Rotates logs: renames a log that has grown past a limit, drops the oldest file, and makes Squid open a new one.

Also reports a full disk: Squid then drops lines silently (``on-error=drop``).

Squid can rename by itself (logfile_rotate), but each of several workers would rename the same file. So Squid only
reopens its logs (``logfile_rotate 0`` and SIGUSR1), as with logrotate(8), and this module renames once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mptcp_common.journal import WARNING
from mptcp_common.reasons import reason

from .reported import say

LIMIT = 16 * 1024 * 1024
"""Size from which on a log is rotated, bytes."""
KEEP = 4
"""Number of old files that are kept per log."""
ROOM = 65_536
"""Minimum free space for users other than root, bytes. With less, log lines are lost, or soon will be."""


class Logs:
    """The logs in *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.full = False
        self._failure: str | None = None

    def look(self) -> bool:
        """Rotate, and log a lack of room. True: Squid must reopen its logs."""
        doing = "see how much room the logs have"
        try:
            self._log_lack_of_room(is_full(self._directory))
            doing = "begin a new log"
            grown = rotate(self._directory)
        except OSError as error:
            failure = f"cannot {doing}: {reason(error)}"
            # Log a failure only once while it lasts.
            if failure != self._failure:
                say(failure, WARNING)
            self._failure = failure
            return False
        self._failure = None
        return grown

    def _log_lack_of_room(self, full: bool) -> None:
        if full and not self.full:
            what = "the disk of the logs is full; with on-error=drop requests are served without a line"
            say(f"{self._directory}: {what}", WARNING)
        elif self.full and not full:
            say(f"{self._directory}: there is room again, requests are logged")
        self.full = full


def is_full(directory: Path) -> bool:
    """Tell whether *directory* lacks room for log lines of Squid, which does not run as root. Raises OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize < ROOM


def rotate(directory: Path, limit: int = LIMIT, keep: int = KEEP) -> bool:
    """Rename each ``*.log`` larger than *limit*. True if there was one: Squid must reopen. Raises OSError."""
    grown = [log for log in sorted(directory.glob("*.log")) if log.stat().st_size > limit]
    if grown:
        # First try to create a file: if Squid could not open its new log, it would have no descriptor to write to.
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=".")
        os.close(descriptor)
        os.unlink(name)
    for log in grown:
        older = [log.with_name(f"{log.name}.{number}") for number in range(1, keep + 1)]
        for target, source in zip(reversed(older), [*reversed(older[:-1]), log], strict=True):
            if source.exists():
                source.replace(target)
    return bool(grown)
