# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the status that the daemons of this host write to files that every user may read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

STALE_SECONDS: Final = 5.0
"""Age from which a status file counts as stale. Forwarder and gateway write each second, but the gateway may have to
wait for the kernel."""
_GATEWAY_FACTOR: Final = 3


def status_of(directory: Path, forwarder: Path) -> dict[str, Any] | None:
    """Return the gateway's status, with its forwarder's in ``home``; None if the gateway does not run.

    *directory*, *forwarder*: the directories with the status files of gateway and forwarder. Raises OSError and
    ValueError.
    """
    found = _recent(directory / "status.json", _GATEWAY_FACTOR * STALE_SECONDS)
    if found is None:
        return None
    if found["home"]:
        found["home"]["forwarder"] = _recent(forwarder / "forwarder.json", STALE_SECONDS)
    return found


def _recent(path: Path, seconds: float) -> dict[str, Any] | None:
    """Return the file's object; None if the file is older than *seconds*, because its writer has been killed."""
    try:
        if time.time() - path.stat().st_mtime > seconds:
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
