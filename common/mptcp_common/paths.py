# SPDX-License-Identifier: GPL-2.0-or-later
"""File names in settings. Pure: the files need not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from mptcp_common.fields import Parsed
from mptcp_common.problems import shown

LONGEST_SOCKET_PATH: Final = 107
"""Maximum length of a Unix socket's path, bytes: ``sun_path`` has 108 bytes, including the final zero; unix(7)."""


def _file(value: object) -> Path:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError(f"{shown(value)} is not a path; write the name of a file")
    return Path(value)


def _absolute(value: object) -> Path:
    path = _file(value)
    if not path.is_absolute():
        raise ValueError(f'{shown(value)} is not an absolute path; start it with "/"')
    return path


def _socket(value: object) -> Path:
    path = _absolute(value)
    if len(bytes(path)) > LONGEST_SOCKET_PATH:
        raise ValueError(f"{shown(value)} is too long for a Unix socket; Linux allows {LONGEST_SOCKET_PATH} bytes")
    return path


_ABSOLUTE: Final = {"type": "string", "pattern": "^/"}
FileName = Annotated[Path, Parsed(_file, {"type": "string", "minLength": 1})]
AbsoluteFileName = Annotated[Path, Parsed(_absolute, _ABSOLUTE)]
SocketName = Annotated[Path, Parsed(_socket, _ABSOLUTE)]
"""An absolute path that is short enough for a Unix socket."""
