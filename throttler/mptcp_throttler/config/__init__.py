# SPDX-License-Identifier: GPL-2.0-or-later
"""The operator's files: read and check settings, policy and connections.

Here: find the daemon's status socket in the settings file, fast. Checking the whole file takes longer than the daemon's
answer about ten thousand connections.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-throttler/throttler.yaml")
DEFAULT_SOCKET: Final = "/run/mptcp-throttler/status.sock"
_PLAIN: Final = re.compile(r"""^status_socket:[ ]+(["']?)(/[\w./-]+)\1[ ]*(?:\#.*)?$""", re.MULTILINE | re.VERBOSE)


def plain_status_socket(settings: Path) -> Path | None:
    """Return the path in a plain ``status_socket`` line, or the default; None if the whole file must be parsed."""
    try:
        text = settings.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    mentions = text.count("status_socket")
    found = _PLAIN.findall(text)
    if mentions == len(found) == 1:
        return Path(found[0][1])
    return Path(DEFAULT_SOCKET) if not mentions else None
