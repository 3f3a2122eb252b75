"""A quota tool as routers have them: it reads a counter from time to time, and has use capped that it finds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mptcp_lab.testbed import TestbedError

ALLOWED = 1_000_000
"""Bytes that may come between two readings: a transfer is seen by the first reading after it began."""


class Poller:
    """Reads a counter from :meth:`start` to :meth:`stop`, and calls for a cap once."""

    def __init__(self, read: Callable[[], int], cap: Callable[[], object], phase: float, period: float) -> None:
        """The first reading is *phase* seconds after the start, the others every *period* seconds."""
        self.capped_at: float | None = None
        """When the cap was there, as time.monotonic()."""
        self._read, self._cap = read, cap
        self._phase, self._period = phase, period
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def start(self, moment: float) -> None:
        """Begin at *moment*, as time.monotonic(): when a transfer began, whose bytes are not in a reading yet."""
        before = self._read()
        self._thread = threading.Thread(target=self._poll, args=(before, moment), name="poller", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and raise what reading or capping raised."""
        self._end.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _poll(self, before: int, moment: float) -> None:
        due = moment + self._phase
        try:
            while not self._end.wait(max(0.0, due - time.monotonic())):
                now = self._read()
                if now - before > ALLOWED:
                    self._cap()
                    self.capped_at = time.monotonic()
                    return
                before, due = now, due + self._period
        except (TestbedError, OSError, KeyError) as error:
            self._error = error
