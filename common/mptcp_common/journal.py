# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes lines to stderr, with their priority (sd-daemon(3)) if stderr goes to the journal. Formats journal entries
with fields.

Entries use the journal's own protocol: https://systemd.io/JOURNAL_NATIVE_PROTOCOL.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress

ERROR, WARNING, INFO, DEBUG = 3, 4, 6, 7
"""Priorities of syslog(3)."""
SOCKET = "/run/systemd/journal/socket"
"""The socket on which the journal receives entries, one per datagram."""
_STDERR = 2


def is_journal() -> bool:
    """Return whether stderr goes to the journal. systemd puts the device and inode of the journal's stream into
    ``JOURNAL_STREAM`` (systemd.exec(5))."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(_STDERR)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def lines(text: str, priority: int, *, for_journal: bool) -> str:
    """Return *text* for printing. The journal treats each line as a separate message, so each gets the priority."""
    if not for_journal:
        return text
    return "\n".join(f"<{priority}>{line}" for line in text.split("\n"))


def entry(text: str, priority: int, fields: Mapping[str, str | tuple[str, ...]]) -> bytes:
    """Return the datagram of one entry. The names of *fields* are upper case; a field with several values is sent once
    per value."""
    pieces = []
    for name, values in {"MESSAGE": text, "PRIORITY": str(priority), **fields}.items():
        for value in (values,) if isinstance(values, str) else values:
            data = value.encode(errors="replace")
            if b"\n" in data:
                pieces.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
            else:
                pieces.append(name.encode() + b"=" + data + b"\n")
    return b"".join(pieces)


def say(text: object, priority: int = INFO) -> None:
    """Print *text* to stderr. Never raises OSError: on a full disk, for example, the text is lost."""
    with suppress(OSError):
        print(lines(str(text), priority, for_journal=is_journal()), file=sys.stderr, flush=True)
