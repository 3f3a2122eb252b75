# SPDX-License-Identifier: GPL-2.0-or-later
"""Saves the volumes of paths in a file, so that they survive a restart of the console."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mptcp_common import journal
from mptcp_common.reasons import reason
from mptcp_console.volumes import Volumes

WRITE_INTERVAL: Final = 60.0
"""Seconds between two writes; a crash loses the counts since the last write."""


class SavedVolumes:
    """The file in the unit's state directory (systemd.exec(5), StateDirectory=). Without a *directory*, nothing is
    saved."""

    def __init__(self, directory: str | None) -> None:
        self._path = None if not directory else Path(directory) / "volumes.json"

    def read(self) -> Volumes:
        """Return the saved volumes; empty volumes if the file is missing or cannot be read."""
        if self._path is not None:
            try:
                return Volumes(self._path.read_bytes())
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                why = reason(error) if isinstance(error, OSError) else error
                text = f"{self._path}: {why}; the volumes of today and this month restart at 0"
                journal.say(f"mptcp-console: {text}", journal.WARNING)
        return Volumes()

    async def keep_writing(self, serialize: Callable[[], bytes]) -> None:
        """Write the result of *serialize* once a minute, and once more when cancelled."""
        writing: asyncio.Future[None] | None = None
        try:
            while True:
                await asyncio.sleep(WRITE_INTERVAL)
                writing = asyncio.ensure_future(asyncio.to_thread(self._write, serialize()))
                await asyncio.shield(writing)
        finally:
            if writing is not None:
                await writing
            self._write(serialize())

    def _write(self, content: bytes) -> None:
        if self._path is None or not content:
            return
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(content)
            os.replace(temporary, self._path)
        except OSError as error:
            journal.say(f"mptcp-console: {self._path}: {reason(error)}", journal.WARNING)
