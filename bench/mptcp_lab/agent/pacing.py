# SPDX-License-Identifier: GPL-2.0-or-later
"""Call a function at a steady pace during a measurement, for example to read counters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Paced:
    """A thread that calls *take* every *interval* seconds, from :meth:`start` to :meth:`stop`."""

    def __init__(self, take: Callable[[], object], interval: float) -> None:
        self.error: Exception | None = None
        """The error that *take* raised. After an error, *take* is not called again."""
        self._take, self._interval = take, interval
        self._stop = threading.Event()
        self._due = 0.0
        self._thread = threading.Thread(target=self._run, name="paced", daemon=True)

    def start(self, first: float | None = None) -> None:
        """Call *take* now and raise its error, or at *first* (time.monotonic()) in the thread; then every interval."""
        self._due = time.monotonic() if first is None else first - self._interval
        if first is None:
            self._take()
        self._thread.start()

    def stop(self) -> None:
        """Stop the calls and wait for the last one, if the thread was started."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                # Delays must not add up. But the time between two readings must not be short either, or their rate
                # would depend on a single packet.
                self._due = max(self._due + self._interval, time.monotonic() + self._interval / 2)
                if self._stop.wait(max(0.0, self._due - time.monotonic())):
                    return
                self._take()
        except Exception as error:
            self.error = error
