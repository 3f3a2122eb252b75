# SPDX-License-Identifier: GPL-2.0-or-later
"""Parsers for file names in settings. Pure: the files need not exist."""

from __future__ import annotations

from typing import Final

from mptcp_common.problems import shown

MAX_SOCKET_PATH_BYTES: Final = 107
"""Maximum length of a Unix socket's path, bytes: ``sun_path`` has 108 bytes, including the final zero; unix(7)."""


def file_path(value: object) -> str:
    """Return *value*, which must be a file's name. Raises ValueError with a one-line message."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{shown(value)} is not a path; write the name of a file")
    return value


def absolute_path(value: object) -> str:
    """Return *value*, which must be a file's name that begins with a slash. Raises ValueError."""
    path = file_path(value)
    if not path.startswith("/"):
        raise ValueError(f'{shown(value)} is not an absolute path; start it with "/"')
    return path


def socket_path(value: object) -> str:
    """Return *value*, which must be an absolute path that is short enough for a Unix socket. Raises ValueError."""
    path = absolute_path(value)
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"{shown(value)} is too long for a Unix socket; Linux allows {MAX_SOCKET_PATH_BYTES} bytes")
    return path
