# SPDX-License-Identifier: GPL-2.0-or-later
"""Events of the last hour, in bounded memory: the throttler's, and those that the console observed of the throttler.

If there are many events, the oldest are dropped before the hour ends; the number of events by kind is kept for the
hour.
"""

from __future__ import annotations

import heapq
import json
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from mptcp_console.event_counts import EventCounts

LONGEST_TEXT: Final = 400
"""Maximum length of an event's text, characters."""
MAX_EVENTS: Final = 40_000
MAX_BYTES: Final = 8 * 1024 * 1024
SPAN: Final = 3600.0
_END_OF_TIME: Final = 1e11
"""Seconds since the epoch; larger times are invalid, and so is NaN."""
_MOST_GONE: Final = 1000
"""Maximum number of dropped events that are still in ``_by_time``."""
_SOME: Final = 1000
"""Number of events to filter at a time, before checking whether enough were found."""
_TIME: Final = attrgetter("time")
_KEPT: Final = ("kind", "token", "client", "remote", "local", "path", "rule", "direction")


@dataclass(frozen=True, slots=True)
class Happening:
    """One event for browsers."""

    serial: int
    """The console's number of the event. The throttler's own numbers restart with the throttler."""
    time: float
    kind: str
    token: str | None
    client: str | None
    rule: str | None
    text: str
    """The event as JSON."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter for events; None matches any value."""

    after: int = 0
    first: float | None = None
    last: float | None = None
    kind: str | None = None
    token: str | None = None
    client: str | None = None
    rule: str | None = None

    def of(self, events: list[Happening]) -> list[Happening]:
        """Return the matching *events*. A call per event would take ten times as long as these passes."""
        if self.after:
            events = [each for each in events if each.serial > self.after]
        if self.first is not None:
            events = [each for each in events if each.time >= self.first]
        if self.last is not None:
            events = [each for each in events if each.time <= self.last]
        if self.kind is not None:
            events = [each for each in events if each.kind == self.kind]
        if self.token is not None:
            events = [each for each in events if each.token == self.token]
        if self.client is not None:
            events = [each for each in events if each.client == self.client]
        if self.rule is not None:
            events = [each for each in events if each.rule == self.rule]
        return events


class Happenings:
    """The newest events; the oldest are dropped."""

    def __init__(self, limit: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._events: deque[Happening] = deque()
        """In order of arrival."""
        self._by_time: list[Happening] = []
        """The same events in order of time, which differs if a clock was set back. It still has some dropped events."""
        self._limit, self._max_bytes = limit, max_bytes
        self._bytes = 0
        self.counts = EventCounts()
        self.serial = 0
        self.since: float | None = None
        """Time since which the events are complete; None if it is unknown and no event was dropped."""
        self.counted_since: float | None = None
        """Time since which the counts are complete."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def bytes(self) -> int:
        return self._bytes

    def missing_before(self, time: float) -> None:
        """Record that events from before *time* may be missing."""
        self.since = max(time, self.since or 0.0)
        self.counted_since = max(time, self.counted_since or 0.0)

    def add(self, event: Mapping[str, Any]) -> None:
        """Keep an *event* of the throttler; ignore a malformed one."""
        time, text = event.get("time"), event.get("text")
        if not isinstance(time, int | float) or not 0 <= time < _END_OF_TIME or not isinstance(text, str):
            return
        fields = {key: event[key] for key in _KEPT if isinstance(event.get(key), str) and len(event[key]) <= 128}
        self.serial += 1
        document = {"serial": self.serial, "time": time, **fields, "text": text[:LONGEST_TEXT]}
        happening = Happening(
            self.serial,
            float(time),
            fields.get("kind", ""),
            fields.get("token"),
            fields.get("client"),
            fields.get("rule"),
            json.dumps(document, ensure_ascii=False, separators=(",", ":")),
        )
        self._events.append(happening)
        insort(self._by_time, happening, key=_TIME)
        self._bytes += len(happening.text)
        self.counts.add(time, fields.get("kind", ""))
        while len(self._events) > self._limit or self._bytes > self._max_bytes:
            gone = self._drop()
            self.since = max(self.since or 0.0, self._events[0].time if self._events else gone.time)
        self._tidy()

    def forget(self, now: float) -> None:
        """Drop events older than an hour, and counts of times later than now, which exist if a clock was set back."""
        while self._events and self._events[0].time < now - SPAN:
            self._drop()
        self._tidy()
        self.counts.forget_after(now)
        if self.since is not None:
            self.since = min(max(self.since, now - SPAN), now)
        if self.counted_since is not None:
            self.counted_since = min(max(self.counted_since, now - SPAN), now)

    def _drop(self) -> Happening:
        gone = self._events.popleft()
        self._bytes -= len(gone.text)
        return gone

    def _tidy(self) -> None:
        """Remove dropped events from ``_by_time``, many at once, because removing one takes as long."""
        if len(self._by_time) - len(self._events) > _MOST_GONE:
            self._by_time = self._without_dropped(self._by_time)

    def _without_dropped(self, events: list[Happening]) -> list[Happening]:
        oldest = self._events[0].serial if self._events else self.serial + 1
        return [each for each in events if each.serial >= oldest]

    def nearest(self, wanted: Wanted, time: float, limit: int) -> tuple[list[Happening], bool]:
        """Return the *limit* matching events nearest to *time*, in order of arrival, and whether there are more.

        Only events from first to last are searched. Each condition takes a millisecond for 40,000 events.
        """
        begin = 0 if wanted.first is None else bisect_left(self._by_time, wanted.first, key=_TIME)
        end = len(self._by_time) if wanted.last is None else bisect_right(self._by_time, wanted.last, key=_TIME)
        found = wanted.of(self._without_dropped(self._by_time[begin:end]))
        at = bisect_left(found, time, key=_TIME)
        around = found[max(0, at - limit) : at + limit]
        nearest = heapq.nsmallest(limit, around, key=lambda event: abs(event.time - time))
        return sorted(nearest, key=lambda event: event.serial), len(found) > limit

    def newest(self, wanted: Wanted, limit: int) -> tuple[list[Happening], bool]:
        """Return the newest *limit* matching events, oldest first, and whether there are more."""
        unseen = islice(reversed(self._events), max(0, self.serial - wanted.after))
        found: list[Happening] = []
        while len(found) <= limit and (some := list(islice(unseen, _SOME))):
            found += wanted.of(some)
        return found[:limit][::-1], len(found) > limit
