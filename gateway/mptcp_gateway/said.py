"""What the daemons of this host say of themselves, in files that everybody may read."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

STALE_SECONDS: Final = 5.0
"""The forwarder says each second how it is."""


def status_of(directory: Path, forwarder: Path) -> dict[str, Any] | None:
    """Return what the gateway says, in ``home`` what its forwarder says; None where the gateway does not run.

    *directory*, *forwarder*: where each leaves its status. Raises OSError and ValueError.
    """
    try:
        found: dict[str, Any] = json.loads((directory / "status.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if found["home"]:
        found["home"]["forwarder"] = _forwarder(forwarder / "forwarder.json")
    return found


def _forwarder(path: Path) -> dict[str, Any] | None:
    try:
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            return None
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found
