"""Which subflows the kernel is to be asked about, and when: those that it may no longer have, and does not tell.

A connection that its client gives up (MP_FASTCLOSE) has lost its token before its subflows are closed, so that no event
tells of their end. The kernel is asked, therefore, whenever a RST or MP_FASTCLOSE is captured.

A question costs one look-up of a socket, some 25 microseconds. However many segments claim something of a subflow, it
is asked about at most twice in a second: soon, when its event would have been read, and once more, for the kernel may
take its time. All questions together take at most :data:`RATE` look-ups a second, one percent of a processor.

Those that wait are a heap by the time at which they are due, so that a flood of claims costs no walk over all of them
for each segment. One that is dropped stays in the heap until its turn comes, or until such entries are half of it.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple

RATE: Final = 400.0
"""Look-ups a second."""
BURST: Final = 64
"""Look-ups at once: some 2 ms."""
MAX_WAITING: Final = 1024
"""Subflows. What is claimed of more than these waits for the next dump of all sockets."""
_PAUSES: Final = (0.1, 0.9)
"""Seconds before each look-up of a subflow."""


class _Entry(NamedTuple):
    """A subflow that waits. Of those due at one time the first comes first."""

    due: float
    number: int
    four_tuple: FourTuple
    times: int
    """How often it was asked about."""


class SocketLookupQueue:
    """Times are arguments."""

    __slots__ = ("_allowed", "_as_of", "_heap", "_number", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[FourTuple, _Entry] = {}
        self._heap: list[_Entry] = []
        """All of these, and what was dropped since."""
        self._number = 0
        self._allowed = float(BURST)
        self._as_of = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, four_tuple: FourTuple) -> bool:
        """Tell whether the kernel is to be asked about the subflow."""
        return four_tuple in self._waiting

    def ask(self, four_tuple: FourTuple, now: float) -> None:
        """Have the kernel asked about the subflow, if it is not to be already."""
        if len(self._waiting) < MAX_WAITING and four_tuple not in self._waiting:
            self._wait(now + _PAUSES[0], four_tuple, 0)

    def take(self, now: float) -> tuple[FourTuple, ...]:
        """Return those that are to be looked up now. Each comes twice."""
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
        """Ask no more about a subflow that ended."""
        self._waiting.pop(four_tuple, None)
        if len(self._heap) > 2 * max(len(self._waiting), BURST):
            self._heap = list(self._waiting.values())
            heapq.heapify(self._heap)

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next is to be looked up; None where nothing is."""
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
        """Return the next that waits, and forget what was dropped before it."""
        while self._heap:
            if self._waiting.get(self._heap[0].four_tuple) is self._heap[0]:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None
