# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads and checks the operator's files: settings, policy and connections."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

DEFAULT_SETTINGS: Final = Path("/etc/mptcp-throttler/throttler.yaml")
DEFAULT_SOCKET: Final = "/run/mptcp-throttler/status.sock"
_PLAIN_LINE: Final = re.compile(r"""^status_socket:[ ]+(["']?)(/[\w./-]+)\1[ ]*(?:\#.*)?$""", re.MULTILINE | re.VERBOSE)


def status_socket(settings: Path) -> Path:
    """Return the status socket in the file *settings*. Raises DocumentError.

    If the setting is a plain line, the rest of the file is not checked: the check takes longer than the daemon's answer
    about ten thousand connections.
    """
    with suppress(OSError, UnicodeDecodeError):
        text = settings.read_text(encoding="utf-8")
        matches = _PLAIN_LINE.findall(text)
        if text.count("status_socket") == len(matches) <= 1:
            return Path(matches[0][1] if matches else DEFAULT_SOCKET)
    from mptcp_throttler.config.files import read_settings

    return read_settings(settings).status_socket
