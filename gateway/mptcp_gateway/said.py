# SPDX-License-Identifier: GPL-2.0-or-later
"""The status that this host's daemons leave in files that everybody may read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

STALE_SECONDS: Final = 5.0
"""The forwarder writes each second; so does the gateway, which may wait for the kernel."""
_PATIENCE: Final = 3


def status_of(directory: Path, forwarder: Path) -> dict[str, Any] | None:
    """Return the gateway's status, with its forwarder's in ``home``; None if the gateway does not run.

    *directory*, *forwarder*: where each leaves its status. Raises OSError and ValueError.
    """
    found = _recent(directory / "status.json", _PATIENCE * STALE_SECONDS)
    if found is None:
        return None
    if found["home"]:
        found["home"]["forwarder"] = _recent(forwarder / "forwarder.json", STALE_SECONDS)
    return found


def _recent(path: Path, seconds: float) -> dict[str, Any] | None:
    """Return the file's object; None if the file is older, because its writer has been killed."""
    try:
        if time.time() - path.stat().st_mtime > seconds:
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
