# SPDX-License-Identifier: GPL-2.0-or-later
"""Schedules look-ups in the kernel of subflows that may have ended without an event.

If a client aborts a connection (MP_FASTCLOSE), the kernel drops its token before it closes the subflows, so no event
reports their end. Therefore a captured RST causes a look-up of its subflow, MP_FASTCLOSE of the connection's subflows.

A look-up costs about 25 microseconds. Even if many segments cause look-ups, a subflow is looked up at most twice a
second. All look-ups together are at most :data:`MAX_RATE` a second, which is one percent of a processor.
"""

from __future__ import annotations

from typing import Final

from mptcp_throttler.mptcp.model import FourTuple

MAX_RATE: Final = 400.0  # maximum look-ups a second
MAX_BURST: Final = 64  # maximum look-ups at once; 64 look-ups take about 2 ms
MAX_WAITING: Final = 1024  # Maximum number of waiting subflows. The next dump of all sockets checks the others.
LOOKUP_DELAY: Final = 0.5  # seconds until a look-up: the kernel may be slow to end a subflow


class SocketLookupQueue(dict[FourTuple, float]):
    """The waiting subflows in the order of the requests, each with the time of its look-up. Callers pass the time."""

    def __init__(self) -> None:
        super().__init__()
        self._allowed = float(MAX_BURST)
        self._updated = float("-inf")

    def add(self, four_tuple: FourTuple, now: float) -> None:
        """Queue a look-up of the subflow, unless a look-up of it is already queued."""
        if len(self) < MAX_WAITING:
            self.setdefault(four_tuple, now + LOOKUP_DELAY)

    def pop_due(self, now: float) -> tuple[FourTuple, ...]:
        """Remove the subflows to look up now, and return them."""
        self._allowed = min(float(MAX_BURST), self._allowed + MAX_RATE * max(0.0, now - self._updated))
        self._updated = now
        due_subflows: list[FourTuple] = []
        for four_tuple, lookup_time in self.items():
            if lookup_time > now or len(due_subflows) >= int(self._allowed):
                break
            due_subflows.append(four_tuple)
        for four_tuple in due_subflows:
            del self[four_tuple]
        self._allowed -= len(due_subflows)
        return tuple(due_subflows)

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next look-up; None if no subflow waits."""
        if not self:
            return None
        return max(next(iter(self.values())) - now, 0.0 if self._allowed >= 1 else (1 - self._allowed) / MAX_RATE)
