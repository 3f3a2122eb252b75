# SPDX-License-Identifier: GPL-2.0-or-later
"""A quota tool like those on routers: it reads a counter periodically, and caps a client that transferred too much."""

from __future__ import annotations

import time
from collections.abc import Callable

from mptcp_lab.agent.pacing import Paced

ALLOWED = 1_000_000
"""Bytes allowed between two readings: so few that the first reading during a transfer sets the cap."""


class Poller:
    """Reads a counter periodically from :meth:`start` to :meth:`stop`, and calls *cap* once if it grew too much."""

    def __init__(self, read: Callable[[], int], cap: Callable[[], object], phase: float, period: float) -> None:
        """Read first *phase* seconds after the start, then every *period* seconds."""
        self.capped_at: float | None = None
        """When the cap was set, as time.monotonic()."""
        self._read, self._cap = read, cap
        self._phase, self._before = phase, 0
        self._paced = Paced(self._look, period)

    def start(self, moment: float) -> None:
        """Start at *moment*, as time.monotonic(), when a transfer began. No reading includes its bytes yet."""
        self._before = self._read()
        self._paced.start(moment + self._phase)

    def stop(self) -> None:
        """Stop, and raise the error that reading or capping raised."""
        self._paced.stop()
        if self._paced.error is not None:
            raise self._paced.error

    def _look(self) -> None:
        if self.capped_at is not None:
            return
        now = self._read()
        if now - self._before > ALLOWED:
            self._cap()
            self.capped_at = time.monotonic()
        self._before = now
