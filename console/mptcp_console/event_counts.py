# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts events by kind, for each ten seconds of the last hour, in constant memory.

If there are many events, the events themselves are kept only for minutes, but their counts for an hour.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final

from mptcp_console.history import COARSE_SLOTS, COARSE_STEP

MAX_KINDS: Final = 20
"""Maximum number of kinds, each of which takes 1.4 KB. The throttler has eleven, the console one."""
OTHERS: Final = "other"
"""The kind that counts all other kinds."""
_NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class CountsInSpan:
    """Number of events by kind, from second *first* to second *last*: the requested span, extended to whole slots."""

    first: int
    last: int
    kinds: dict[str, int]


class EventCounts:
    """Counts by kind, in a ring of slots."""

    def __init__(self) -> None:
        self._slots = array("q", [_NEVER]) * COARSE_SLOTS
        """The slot at each index of the ring."""
        self._kinds: dict[str, array[int]] = {}
        self._newest = _NEVER

    def add(self, time: float, kind: str) -> None:
        """Count an event; ignore it if it is too old."""
        slot = int(time) // COARSE_STEP
        index = slot % COARSE_SLOTS
        if slot < self._slots[index]:
            return
        if slot > self._slots[index]:
            self._empty(index, slot)
        self._newest = max(self._newest, slot)
        if kind not in self._kinds and len(self._kinds) >= MAX_KINDS - 1:
            kind = OTHERS
        if kind not in self._kinds:
            self._kinds[kind] = array("Q", [0]) * COARSE_SLOTS
        self._kinds[kind][index] += 1

    def forget_after(self, time: float) -> None:
        """Drop counts later than *time*, after the clock was set back."""
        slot = int(time) // COARSE_STEP
        if self._newest <= slot:
            return
        for index, number in enumerate(self._slots):
            if number > slot:
                self._empty(index, _NEVER)
        self._newest = slot

    def between(self, first: float, last: float) -> CountsInSpan:
        """Return the counts from *first* to *last*, at most an hour."""
        end = int(last) // COARSE_STEP
        begin = max(int(first) // COARSE_STEP, end - COARSE_SLOTS + 1)
        indexes = [slot % COARSE_SLOTS for slot in range(begin, end + 1) if self._slots[slot % COARSE_SLOTS] == slot]
        sums = {kind: sum(counts[index] for index in indexes) for kind, counts in self._kinds.items()}
        return CountsInSpan(
            begin * COARSE_STEP, (end + 1) * COARSE_STEP, {kind: count for kind, count in sums.items() if count}
        )

    def _empty(self, index: int, slot: int) -> None:
        self._slots[index] = slot
        for counts in self._kinds.values():
            counts[index] = 0
