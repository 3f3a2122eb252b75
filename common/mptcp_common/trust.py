# SPDX-License-Identifier: GPL-2.0-or-later
"""Decides which files are trusted: files that only root, the daemon, or the calling user can write."""

from __future__ import annotations

import os
import pwd
import stat

THROTTLER_USER = "mptcp-throttler"
"""The throttler's user. Root, who cleans up after the throttler, trusts this user's state files."""


def distrust(found: os.stat_result) -> str | None:
    """Return why a file with the status *found* is not trusted; None if it is trusted."""
    if found.st_uid not in (0, os.geteuid(), throttler_uid()):
        return f"belongs to user {found.st_uid}; it must belong to root or {THROTTLER_USER}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o}); only its owner may"
    return None


def throttler_uid() -> int:
    """Return the ID of the throttler's user; root's if the host has none."""
    try:
        return pwd.getpwnam(THROTTLER_USER).pw_uid
    except KeyError:
        return 0
