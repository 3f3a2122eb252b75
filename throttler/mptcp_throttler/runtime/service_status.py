"""Tells the service manager, where there is one, that the event loop turns and what the daemon does."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

from mptcp_common.reasons import reason
from mptcp_common.service_manager import READY, WATCHDOG, is_managed, notify, status, watchdog_seconds

log = logging.getLogger(__name__)

STATUS_SECONDS = 5.0
"""Between two looks whether the text has changed."""


def tell(*lines: str, descriptors: Sequence[int] = ()) -> None:
    """Send *lines*; that they could not be sent is logged."""
    try:
        notify(*lines, descriptors=descriptors)
    except OSError as error:
        log.warning("tell the service manager %s: %s", lines[0], reason(error))


class ServiceStatus:
    """One daemon's status text and signs of life."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text
        self._told = ""

    def ready(self) -> None:
        """Say that the daemon is at work, and what it does."""
        tell(READY, *self._changes())

    async def run(self) -> None:
        """Tell, forever. It is a task of the event loop: one that hangs gives no sign, and is started anew."""
        watched = watchdog_seconds(os.environ)
        signs = () if watched is None else (WATCHDOG,)
        while True:
            changes = self._changes() if is_managed() else ()
            if signs or changes:
                tell(*signs, *changes)
            # Half of it, as sd_watchdog_enabled(3) advises.
            await asyncio.sleep(STATUS_SECONDS if watched is None else min(STATUS_SECONDS, watched / 2))

    def _changes(self) -> Sequence[str]:
        text = self._text()
        if text == self._told:
            return ()
        self._told = text
        return (status(text),)
