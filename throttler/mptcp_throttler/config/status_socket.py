"""Where the daemon answers, from the settings file alone and fast.

Checking the whole file takes longer than the daemon needs to answer about ten thousand connections. Only what stands
there plainly is read; for everything else the settings are read as ever.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-throttler/throttler.yaml")
DEFAULT_SOCKET: Final = "/run/mptcp-throttler/status.sock"
_PLAIN: Final = re.compile(r"""^status_socket:[ ]+(["']?)(/[\w./-]+)\1[ ]*(?:\#.*)?$""", re.MULTILINE | re.VERBOSE)


def plain_status_socket(settings: Path) -> Path | None:
    """Return the path of the status socket; None where only the whole file says what it is, or that it is wrong."""
    try:
        text = settings.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    mentions = text.count("status_socket")
    found = _PLAIN.findall(text)
    if mentions == len(found) == 1:
        return Path(found[0][1])
    return Path(DEFAULT_SOCKET) if not mentions else None
