"""Asks a running daemon for its status, over its Unix socket."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mptcp_common import status_client

RELOAD_SECONDS = 60.0
"""A reload that takes longer is not waited for."""
_PAUSE_SECONDS = 0.1


def ask_pieces(path: Path) -> Iterator[bytes]:
    """Yield the JSON text of the status of the daemon that listens at *path*, as it comes. Raises OSError where none
    does."""
    return status_client.ask_pieces(path, {"query": "status"})


def ask(path: Path) -> dict[str, Any]:
    """Return the status of the daemon that listens at *path*. Raises OSError where none does."""
    return status_client.ask(path, {"query": "status"})


def ask_head(path: Path) -> dict[str, Any]:
    """Return what the status says before the connections, of which there may be thousands. Raises OSError."""
    return status_client.ask(path, {"query": "head"})


def reload_outcome(path: Path) -> list[str]:
    """Have the daemon at *path* take its policy anew; return why it refused, nothing where it did not.

    Raises OSError where it does not answer, or not in time.
    """
    before = ask_head(path)
    if "reloads" not in before:
        raise OSError(errno.EPROTO, f"it is of version {before['version']}, older than this command; restart it")
    os.kill(before["pid"], signal.SIGHUP)
    deadline = time.monotonic() + RELOAD_SECONDS
    while True:
        now = ask_head(path)
        if now["reloads"]["accepted"] > before["reloads"]["accepted"]:
            return []
        if now["reloads"]["refused"] > before["reloads"]["refused"]:
            refused: list[str] = now["reloads"]["last_refused"]["errors"]
            return refused
        if time.monotonic() > deadline:
            raise TimeoutError("the reload takes too long")
        time.sleep(_PAUSE_SECONDS)
