# SPDX-License-Identifier: GPL-2.0-or-later
"""Schedules look-ups of subflows in the kernel that may have ended without an event.

If a client aborts a connection (MP_FASTCLOSE), the kernel drops its token before it closes the subflows, so no event
reports their end. Therefore each captured RST or MP_FASTCLOSE causes a look-up of its subflow.

A look-up costs about 25 microseconds. Even if many segments cause look-ups, a subflow is looked up at most twice a
second. All look-ups together are at most :data:`RATE` a second, which is one percent of a processor.
"""

from __future__ import annotations

from typing import Final

from mptcp_throttler.mptcp.model import FourTuple

RATE: Final = 400.0  # maximum look-ups a second
BURST: Final = 64  # maximum look-ups at once; 64 look-ups take about 2 ms
MAX_WAITING: Final = 1024  # Maximum number of waiting subflows. The next dump of all sockets checks the others.
DELAY: Final = 0.5  # seconds until a look-up: the kernel may be slow to end a subflow


class SocketLookupQueue(dict[FourTuple, float]):
    """The waiting subflows in the order of the requests, each with the time of its look-up. No clock is read."""

    def __init__(self) -> None:
        super().__init__()
        self._allowed = float(BURST)
        self._as_of = float("-inf")

    def ask(self, four_tuple: FourTuple, now: float) -> None:
        """Queue a look-up of the subflow, unless a look-up of it is already queued."""
        if len(self) < MAX_WAITING:
            self.setdefault(four_tuple, now + DELAY)

    def take(self, now: float) -> tuple[FourTuple, ...]:
        """Remove the subflows to look up now, and return them."""
        self._allowed = min(float(BURST), self._allowed + RATE * max(0.0, now - self._as_of))
        self._as_of = now
        taken: list[FourTuple] = []
        for four_tuple, due in self.items():
            if due > now or len(taken) >= int(self._allowed):
                break
            taken.append(four_tuple)
        for four_tuple in taken:
            del self[four_tuple]
        self._allowed -= len(taken)
        return tuple(taken)

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next look-up; None if no subflow waits."""
        if not self:
            return None
        return max(next(iter(self.values())) - now, 0.0 if self._allowed >= 1 else (1 - self._allowed) / RATE)
