# SPDX-License-Identifier: GPL-2.0-or-later
"""Schedules look-ups of subflows in the kernel that may have ended without an event.

If a client aborts a connection (MP_FASTCLOSE), the kernel drops its token before it closes the subflows, so no event
reports their end. Therefore each captured RST or MP_FASTCLOSE causes a look-up of its subflow.

A look-up costs about 25 microseconds. Even if many segments ask for it, a subflow is looked up at most twice a second:
first when an event would have been read, and again later, because the kernel may be slow. All look-ups together are at
most :data:`RATE` a second, which is one percent of a processor.

Waiting subflows form a heap by due time, so that a flood of segments does not cause a walk over all of them. Dropped
entries stay in the heap until they are due, or until they are half of it.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple

RATE: Final = 400.0  # maximum look-ups a second
BURST: Final = 64  # maximum look-ups at once; these take about 2 ms
MAX_WAITING: Final = 1024  # Maximum number of waiting subflows. Others are checked by the next dump of all sockets.
_PAUSES: Final = (0.1, 0.9)  # seconds before each look-up of a subflow


class _Entry(NamedTuple):
    """A waiting subflow. Among those due at the same time, the oldest comes first."""

    due: float
    number: int
    four_tuple: FourTuple
    times: int  # how often it was looked up


class SocketLookupQueue:
    """Schedules the look-ups. Times are arguments."""

    def __init__(self) -> None:
        self._waiting: dict[FourTuple, _Entry] = {}
        self._heap: list[_Entry] = []
        self._number = 0
        self._allowed = float(BURST)
        self._as_of = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, four_tuple: FourTuple) -> bool:
        """Return whether the subflow waits for a look-up."""
        return four_tuple in self._waiting

    def ask(self, four_tuple: FourTuple, now: float) -> None:
        """Queue a look-up of the subflow, unless it already waits for one."""
        if len(self._waiting) < MAX_WAITING and four_tuple not in self._waiting:
            self._wait(now + _PAUSES[0], four_tuple, 0)

    def take(self, now: float) -> tuple[FourTuple, ...]:
        """Return the subflows to look up now. Each queued subflow is returned twice, at different times."""
        self._allowed = min(float(BURST), self._allowed + RATE * max(0.0, now - self._as_of))
        self._as_of = now
        due: list[_Entry] = []
        while len(due) < int(self._allowed) and (first := self._first()) is not None and first.due <= now:
            due.append(heapq.heappop(self._heap))
            del self._waiting[first.four_tuple]
        self._allowed -= len(due)
        for each in due:
            times = each.times + 1
            if times < len(_PAUSES):
                self._wait(now + _PAUSES[times], each.four_tuple, times)
        return tuple(each.four_tuple for each in due)

    def drop(self, four_tuple: FourTuple) -> None:
        """Cancel the look-up of a subflow that ended."""
        self._waiting.pop(four_tuple, None)
        if len(self._heap) > 2 * max(len(self._waiting), BURST):
            self._heap = list(self._waiting.values())
            heapq.heapify(self._heap)

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next look-up; None if none waits."""
        first = self._first()
        if first is None:
            return None
        return max(first.due - now, 0.0 if self._allowed >= 1 else (1 - self._allowed) / RATE)

    def _wait(self, due: float, four_tuple: FourTuple, times: int) -> None:
        self._number += 1
        entry = _Entry(due, self._number, four_tuple, times)
        self._waiting[four_tuple] = entry
        heapq.heappush(self._heap, entry)

    def _first(self) -> _Entry | None:
        """Return the next waiting entry, and discard dropped ones before it."""
        while self._heap:
            if self._waiting.get(self._heap[0].four_tuple) is self._heap[0]:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None
