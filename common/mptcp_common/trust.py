"""Whose files are believed: those that nobody could have written but root, the daemon, or whoever asks."""

from __future__ import annotations

import os
import pwd
import stat

THROTTLER_USER = "mptcp-throttler"
"""Whom the throttler's unit starts it as; root, who clears up after it, believes what it noted."""


def distrust(found: os.stat_result) -> str | None:
    """Return why what *found* describes is not to be believed; None where it is."""
    if found.st_uid not in (0, os.geteuid(), throttler_uid()):
        return f"belongs to user {found.st_uid}; it must belong to root or {THROTTLER_USER}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o}); only its owner may"
    return None


def throttler_uid() -> int:
    """Return the number of the throttler's user; root's where the host has none."""
    try:
        return pwd.getpwnam(THROTTLER_USER).pw_uid
    except KeyError:
        return 0
