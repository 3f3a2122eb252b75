# SPDX-License-Identifier: GPL-2.0-or-later
"""Schedules look-ups of subflows in the kernel that may have ended without an event.

If a client aborts a connection (MP_FASTCLOSE), the kernel drops its token before it closes the subflows, so no event
reports their end. Therefore each captured RST or MP_FASTCLOSE causes a look-up of its subflow.

A look-up costs about 25 microseconds. Even if many segments ask for it, a subflow is looked up at most twice a second:
first when an event would have been read, and again later, because the kernel may be slow. All look-ups together are at
most :data:`RATE` a second, which is one percent of a processor.

Each of the two look-ups has a queue, which is in the order of due times, because all its subflows wait equally long.
"""

from __future__ import annotations

from typing import Final

from mptcp_throttler.mptcp.model import FourTuple

RATE: Final = 400.0  # maximum look-ups a second
BURST: Final = 64  # maximum look-ups at once; these take about 2 ms
MAX_WAITING: Final = 1024  # Maximum number of waiting subflows. The next dump of all sockets checks the others.
_PAUSES: Final = (0.1, 0.9)  # seconds before each look-up of a subflow


class SocketLookupQueue:
    """Schedules the look-ups. Times are arguments."""

    def __init__(self) -> None:
        self._first: dict[FourTuple, float] = {}
        self._second: dict[FourTuple, float] = {}
        """When each subflow is due."""
        self._allowed = float(BURST)
        self._as_of = float("-inf")

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __contains__(self, four_tuple: FourTuple) -> bool:
        return four_tuple in self._first or four_tuple in self._second

    def ask(self, four_tuple: FourTuple, now: float) -> None:
        """Queue a look-up of the subflow, unless it already waits for one."""
        if len(self) < MAX_WAITING and four_tuple not in self:
            self._first[four_tuple] = now + _PAUSES[0]

    def take(self, now: float) -> tuple[FourTuple, ...]:
        """Return the subflows to look up now. Each queued subflow is returned twice, at different times."""
        self._allowed = min(float(BURST), self._allowed + RATE * max(0.0, now - self._as_of))
        self._as_of = now
        taken: list[FourTuple] = []
        for queue in (self._second, self._first):
            due: list[FourTuple] = []
            for four_tuple, at in queue.items():
                if at > now or len(taken) + len(due) >= int(self._allowed):
                    break
                due.append(four_tuple)
            for four_tuple in due:
                del queue[four_tuple]
                if queue is self._first:
                    self._second[four_tuple] = now + _PAUSES[1]
            taken += due
        self._allowed -= len(taken)
        return tuple(taken)

    def drop(self, four_tuple: FourTuple) -> None:
        self._first.pop(four_tuple, None)
        self._second.pop(four_tuple, None)

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next look-up; None if none waits."""
        due = [next(iter(queue.values())) for queue in (self._first, self._second) if queue]
        if not due:
            return None
        return max(min(due) - now, 0.0 if self._allowed >= 1 else (1 - self._allowed) / RATE)
