# SPDX-License-Identifier: GPL-2.0-or-later
"""Rotates Squid's logs: renames each log that is larger than a limit, deletes the oldest file, and lets Squid open a
new log. The module also reports a full disk, because Squid then drops lines without a message (``on-error=drop``).

Squid could rename its logs itself (logfile_rotate), but each of several workers would rename the same file. So this
module renames them, and Squid only reopens its logs (``logfile_rotate 0`` and SIGUSR1), as with logrotate(8).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mptcp_common.journal import WARNING
from mptcp_common.reasons import reason

from .reporter import say

MAX_BYTES = 16 * 1024 * 1024
"""Size above which a log is rotated."""
OLD_FILES = 4
"""Number of old files to keep for each log."""
MIN_FREE_BYTES = 65_536
"""Minimum free space for users other than root. With less, log lines are or will soon be lost."""


class Logs:
    """Rotates the logs in *directory*."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.full = False
        self._failure: str | None = None

    def rotate_and_report(self) -> bool:
        """Rotate the logs, and log a lack of space. Return whether Squid must reopen its logs."""
        step = "determine the free space for the logs"
        try:
            self._log_lack_of_space(is_full(self._directory))
            step = "begin a new log"
            rotated = rotate(self._directory)
        except OSError as error:
            failure = f"cannot {step}: {reason(error)}"
            # Log a failure only once while it lasts.
            if failure != self._failure:
                say(failure, WARNING)
            self._failure = failure
            return False
        self._failure = None
        return rotated

    def _log_lack_of_space(self, full: bool) -> None:
        if full and not self.full:
            text = "the disk of the logs is full; with on-error=drop requests are served without a log line"
            say(f"{self._directory}: {text}", WARNING)
        elif self.full and not full:
            say(f"{self._directory}: the disk has space again, requests are logged")
        self.full = full


def is_full(directory: Path) -> bool:
    """Return whether *directory* lacks space for log lines of Squid, which does not run as root. Raises OSError."""
    file_system = os.statvfs(directory)
    return file_system.f_bavail * file_system.f_frsize < MIN_FREE_BYTES


def rotate(directory: Path, max_bytes: int = MAX_BYTES, old_files: int = OLD_FILES) -> bool:
    """Rename each ``*.log`` larger than *max_bytes*. Return whether a log was renamed, so that Squid must reopen its
    logs. Raises OSError."""
    large = [log for log in sorted(directory.glob("*.log")) if log.stat().st_size > max_bytes]
    if large:
        # First test whether a file can be created: a Squid that cannot open its new log loses the old descriptor, too.
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=".")
        os.close(descriptor)
        os.unlink(name)
    for log in large:
        old = [log.with_name(f"{log.name}.{number}") for number in range(1, old_files + 1)]
        for target, source in zip(reversed(old), [*reversed(old[:-1]), log], strict=True):
            if source.exists():
                source.replace(target)
    return bool(large)
