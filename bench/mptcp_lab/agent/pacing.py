# SPDX-License-Identifier: GPL-2.0-or-later
"""Call a function at a steady pace, in parallel to a measurement: reading counters."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Paced:
    """Calls *take* every *interval* seconds, from :meth:`start` to :meth:`stop`, in its own thread."""

    def __init__(self, take: Callable[[], None], interval: float) -> None:
        self.error: Exception | None = None
        """The error of *take*, after which it is not called again."""
        self._take, self._interval = take, interval
        self._stop = threading.Event()
        self._due = 0.0
        self._thread = threading.Thread(target=self._run, name="paced", daemon=True)

    def start(self, first: float | None = None) -> None:
        """Call *take* now, raising its error, or at *first* (time.monotonic()) in the thread, and then at the pace."""
        self._due = time.monotonic() if first is None else first - self._interval
        if first is None:
            self._take()
        self._thread.start()

    def stop(self) -> None:
        """Wait for the last call, if the thread was started."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                # From the start, not from the last call: delays must not add up.
                self._due += self._interval
                if self._stop.wait(max(0.0, self._due - time.monotonic())):
                    return
                self._take()
        except Exception as error:
            self.error = error
