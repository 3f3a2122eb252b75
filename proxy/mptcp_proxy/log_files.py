"""Keeps the logs small: a log that has grown past a limit is renamed, the oldest one goes, Squid opens a new one.

Says where there is no room for them: Squid, which loses lines then and goes on (``on-error=drop``), says nothing.

Squid can rename by itself (logfile_rotate), but each of several workers would rename the same file. So Squid only
closes and reopens (``logfile_rotate 0`` and SIGUSR1), as with logrotate(8), and the renaming is done here, once.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mptcp_common.journal import WARNING
from mptcp_common.reasons import reason

from .reported import say

LIMIT = 16 * 1024 * 1024
"""Bytes."""
KEEP = 4
"""Old files of each log."""
ROOM = 65_536
"""Bytes: where less is free for others than root, lines are lost, or soon will be."""


class Logs:
    """The logs in *directory*, looked at now and then."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.full = False
        """There was no room at the last look that could be had."""
        self._failure: str | None = None

    def look(self) -> bool:
        """Begin new files where they have grown, say where there is no room. True: Squid must reopen its logs."""
        doing = "see how much room the logs have"
        try:
            self._say_whether_full(is_full(self._directory))
            doing = "begin a new log"
            grown = rotate(self._directory)
        except OSError as error:
            failure = f"cannot {doing}: {reason(error)}"
            # What lasts is said once.
            if failure != self._failure:
                say(failure, WARNING)
            self._failure = failure
            return False
        self._failure = None
        return grown

    def _say_whether_full(self, full: bool) -> None:
        if full and not self.full:
            what = "the disk of the logs is full; with on-error=drop requests are served without a line"
            say(f"{self._directory}: {what}", WARNING)
        elif self.full and not full:
            say(f"{self._directory}: there is room again, requests are logged")
        self.full = full


def is_full(directory: Path) -> bool:
    """Say whether Squid, which is not root, has no room for a line in *directory*. Raises OSError."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize < ROOM


def rotate(directory: Path, limit: int = LIMIT, keep: int = KEEP) -> bool:
    """Rename each ``*.log`` of *directory* that is larger than *limit*. True if there was one: Squid must reopen.

    Raises OSError.
    """
    grown = [log for log in sorted(directory.glob("*.log")) if log.stat().st_size > limit]
    if grown:
        # A Squid that could not open its new log would write to no descriptor.
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=".")
        os.close(descriptor)
        os.unlink(name)
    for log in grown:
        older = [log.with_name(f"{log.name}.{number}") for number in range(1, keep + 1)]
        for target, source in zip(reversed(older), [*reversed(older[:-1]), log], strict=True):
            if source.exists():
                source.replace(target)
    return bool(grown)
