# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the volumes of paths in a file, so that they survive a restart of the console."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mptcp_common import journal
from mptcp_common.reasons import reason
from mptcp_console.volumes import Volumes

SECONDS: Final = 60.0
"""Seconds between two writes; a crash loses the bytes of this time."""


class KeptVolumes:
    """The file in the service manager's directory (systemd.exec(5), StateDirectory=); None: no file."""

    def __init__(self, directory: str | None) -> None:
        self._path = None if not directory else Path(directory) / "volumes.json"

    def read(self) -> Volumes:
        """Return the saved volumes; new ones if there are none, or if they cannot be read."""
        if self._path is not None:
            try:
                return Volumes(self._path.read_bytes())
            except FileNotFoundError:
                pass
            except (OSError, ValueError) as error:
                why = reason(error) if isinstance(error, OSError) else error
                journal.say(
                    f"mptcp-console: {self._path}: {why}; bytes of today and of the month begin anew", journal.WARNING
                )
        return Volumes()

    async def keep(self, saved: Callable[[], bytes]) -> None:
        """Write the result of *saved* once a minute, and finally when cancelled."""
        writing: asyncio.Future[None] | None = None
        try:
            while True:
                await asyncio.sleep(SECONDS)
                writing = asyncio.ensure_future(asyncio.to_thread(self._write, saved()))
                await asyncio.shield(writing)
        finally:
            if writing is not None:
                await writing
            self._write(saved())

    def _write(self, content: bytes) -> None:
        if self._path is None or not content:
            return
        fresh = self._path.with_suffix(".new")
        try:
            fresh.write_bytes(content)
            os.replace(fresh, self._path)
        except OSError as error:
            journal.say(f"mptcp-console: {self._path}: {reason(error)}", journal.WARNING)
