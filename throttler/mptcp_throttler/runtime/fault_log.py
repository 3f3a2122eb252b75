"""Makes an event of every warning and error that the daemon logs: so no fault is told in two places."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

TOLD: Final = {"told": True}
"""``extra`` of a line that is an event of another kind already."""
_LOGGER: Final = "mptcp_throttler"


class _Faults(logging.Handler):
    def __init__(self, take: Callable[[float, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._pid, self._thread = os.getpid(), threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        # A child that answers for the status logs, too; it must not touch the loop's descriptors.
        if getattr(record, "told", False) or self._loop.is_closed() or os.getpid() != self._pid:
            return
        try:
            text = record.getMessage()
        except Exception:
            self.handleError(record)
            return
        text = text.replace("\n", " ")
        if threading.get_ident() == self._thread:
            self._take(record.created, text)
        else:
            self._loop.call_soon_threadsafe(self._take, record.created, text)


@contextmanager
def faults_told(take: Callable[[float, str], None]) -> Iterator[None]:
    """Have *take* told when, in seconds since the epoch, and of what warnings and errors are logged meanwhile."""
    handler = _Faults(take)
    logger = logging.getLogger(_LOGGER)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
