# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps numbers of the last hour, in bounded memory, at steps of one and of ten seconds.

A track is one number over time, for example the rate of a path. All tracks advance together, so a second without a
summary is unknown in all of them. Times are seconds since the epoch.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

FINE_STEP: Final = 1
FINE_SLOTS: Final = 600
"""Ten minutes, a second apart."""
COARSE_STEP: Final = 10
COARSE_SLOTS: Final = 360
"""An hour, ten seconds apart."""
SPAN: Final = COARSE_STEP * COARSE_SLOTS
MAX_TRACKS: Final = 400
"""Maximum number of tracks, each of which takes some 8 KB. Values of more tracks are only counted."""
_UNKNOWN: Final = math.nan

Merge = Callable[[float, float, int], float]
"""Returns a coarse slot's new value. Arguments: its present value, the value to add, the number of values so far."""


def mean(present: float, value: float, count: int) -> float:
    return present + (value - present) / (count + 1)


def latest(present: float, value: float, count: int) -> float:
    return value


def highest(present: float, value: float, count: int) -> float:
    return max(present, value)


class _Ring:
    def __init__(self, slots: int) -> None:
        self.values = array("d", [_UNKNOWN]) * slots

    def forget(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self.values[slot % len(self.values)] = _UNKNOWN

    def value_at(self, slot: int) -> float | None:
        value = self.values[slot % len(self.values)]
        return None if math.isnan(value) else value


class _Track:
    def __init__(self, merge: Merge) -> None:
        self.fine, self.coarse = _Ring(FINE_SLOTS), _Ring(COARSE_SLOTS)
        self._merge = merge
        self._merged: tuple[int, int] = (0, 0)
        """The coarse slot being filled, and its number of values."""

    def put(self, second: int, value: float) -> None:
        self.fine.values[second % FINE_SLOTS] = value
        slot = second // COARSE_STEP
        count = self._merged[1] if self._merged[0] == slot else 0
        index = slot % COARSE_SLOTS
        self.coarse.values[index] = self._merge(self.coarse.values[index], value, count) if count else value
        self._merged = slot, count + 1

    @property
    def is_empty(self) -> bool:
        return all(math.isnan(value) for value in self.coarse.values)


class Tracks:
    """All tracks, by the caller's keys."""

    def __init__(self, limit: int = MAX_TRACKS) -> None:
        self._limit = limit
        self._tracks: dict[Hashable, _Track] = {}
        self._first = 0
        self._now: int | None = None
        self.refused = 0
        """Number of values that were not stored, because there were too many tracks."""

    @property
    def now(self) -> int | None:
        """The latest second; None before the first."""
        return self._now

    @property
    def since(self) -> int | None:
        """The first second with values, at most ``SPAN`` before now; None before the first."""
        return None if self._now is None else max(self._first, self._now - SPAN)

    def __len__(self) -> int:
        return len(self._tracks)

    def advance(self, second: int) -> None:
        """Advance to *second*; seconds without a value are unknown. If the clock was set back, later seconds become
        unknown."""
        before, self._now = self._now, second
        if before is None or second < self._first or before - second >= SPAN:
            self._tracks.clear()
            self._first = second
            return
        earlier, later = min(before, second), max(before, second)
        fine = range(max(earlier + 1, later - FINE_SLOTS + 1), later + 1)
        first_slot, last_slot = earlier // COARSE_STEP, later // COARSE_STEP
        coarse = range(max(first_slot + 1, last_slot - COARSE_SLOTS + 1), last_slot + 1)
        for track in self._tracks.values():
            track.fine.forget(fine)
            track.coarse.forget(coarse)
        if coarse:
            self._tracks = {key: track for key, track in self._tracks.items() if not track.is_empty}

    def put(self, key: Hashable, first: int, value: float, merge: Merge = mean) -> None:
        """Set *key* to *value* from second *first* until now."""
        assert self._now is not None, "advance() must be called first"
        track = self._tracks.get(key)
        if track is None:
            if len(self._tracks) >= self._limit:
                self.refused += 1
                return
            track = self._tracks[key] = _Track(merge)
        for second in range(max(first, self._now - FINE_SLOTS + 1), self._now + 1):
            track.put(second, value)

    def window(self, first: int, last: int, step: int) -> Window:
        """Return the kept values from *first* to *last* at *step*, 1 or 10 s."""
        assert step in (FINE_STEP, COARSE_STEP)
        now = 0 if self._now is None else self._now
        slots = FINE_SLOTS if step == FINE_STEP else COARSE_SLOTS
        end = min(last, now) // step
        begin = max(first // step, self._first // step, now // step - slots + 1)
        return Window(self._tracks, begin, end, step)


@dataclass(frozen=True, slots=True)
class Window:
    """The values of all tracks from slot *begin* to slot *end*."""

    _tracks: dict[Hashable, _Track]
    begin: int
    end: int
    step: int
    """Seconds per slot."""

    @property
    def first(self) -> int:
        """The second at which the first value begins."""
        return self.begin * self.step

    @property
    def length(self) -> int:
        return max(0, self.end - self.begin + 1)

    def __iter__(self) -> Iterator[tuple[Hashable, list[float | None]]]:
        """Yield each track with a value in the window."""
        for key, track in self._tracks.items():
            ring = track.fine if self.step == FINE_STEP else track.coarse
            values = [ring.value_at(slot) for slot in range(self.begin, self.end + 1)]
            if any(value is not None for value in values):
                yield key, values
