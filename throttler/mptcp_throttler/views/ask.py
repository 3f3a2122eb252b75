"""Asks a running daemon for its status, over its Unix socket."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 5.0
"""How long a pause in the answer may be."""


def ask_text(path: Path) -> bytes:
    """Return the JSON text of the daemon that listens at *path*. Raises OSError where none does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ANSWER_SECONDS)
        client.connect(str(path))
        return b"".join(iter(lambda: client.recv(1 << 20), b""))


def ask(path: Path) -> dict[str, Any]:
    """Return the status of the daemon that listens at *path*. Raises OSError where none does."""
    status: dict[str, Any] = json.loads(ask_text(path))
    return status
