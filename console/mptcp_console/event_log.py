# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the events of the last hour, in bounded memory: the throttler's events, and the console's own, for example that
the throttler was restarted.

If there are many events, the oldest are dropped before the hour ends; the counts by kind are kept for the hour.
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

MAX_TEXT_CHARACTERS: Final = 400
"""Maximum length of an event's text, characters."""
MAX_EVENTS: Final = 40_000
MAX_BYTES: Final = 8 * 1024 * 1024
SPAN: Final = 3600.0
_MAX_TIME: Final = 1e11
"""Seconds since the epoch. Larger times are invalid, and so is NaN."""
_MAX_DROPPED: Final = 1000
"""Maximum number of dropped events that are still in ``_by_time``."""
_FILTER_BATCH: Final = 1000
"""Number of events that are filtered at a time. Then the number of matching events is checked."""
_TIME: Final = attrgetter("time")
_KEPT_FIELDS: Final = ("kind", "token", "client", "remote", "local", "path", "rule", "direction")


@dataclass(frozen=True, slots=True)
class LoggedEvent:
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
class EventFilter:
    """A filter for events; None matches any value."""

    after: int = 0
    first: float | None = None
    last: float | None = None
    kind: str | None = None
    token: str | None = None
    client: str | None = None
    rule: str | None = None

    def matching(self, events: list[LoggedEvent]) -> list[LoggedEvent]:
        """Return the matching *events*. A function call per event would take ten times as long as these loops."""
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


class EventLog:
    """The newest events. When there are too many, the oldest are dropped."""

    def __init__(self, limit: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._events: deque[LoggedEvent] = deque()
        """The events in order of arrival."""
        self._by_time: list[LoggedEvent] = []
        """The same events, and some that were already dropped, in order of time. This order differs from the order of
        arrival if a clock was set back."""
        self._limit, self._max_bytes = limit, max_bytes
        self._bytes = 0
        self.counts = EventCounts()
        self.serial = 0
        self.since: float | None = None
        """The time since which the events are complete; None if it is unknown and no event was dropped."""
        self.counted_since: float | None = None
        """The time since which the counts are complete."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def bytes(self) -> int:
        return self._bytes

    def mark_missing_before(self, time: float) -> None:
        """Record that events from before *time* may be missing."""
        self.since = max(time, self.since or 0.0)
        self.counted_since = max(time, self.counted_since or 0.0)

    def add(self, event: Mapping[str, Any]) -> None:
        """Keep an *event* of the throttler; ignore a malformed event."""
        time, text = event.get("time"), event.get("text")
        if not isinstance(time, int | float) or not 0 <= time < _MAX_TIME or not isinstance(text, str):
            return
        fields = {key: event[key] for key in _KEPT_FIELDS if isinstance(event.get(key), str) and len(event[key]) <= 128}
        self.serial += 1
        document = {"serial": self.serial, "time": time, **fields, "text": text[:MAX_TEXT_CHARACTERS]}
        event_record = LoggedEvent(
            self.serial,
            float(time),
            fields.get("kind", ""),
            fields.get("token"),
            fields.get("client"),
            fields.get("rule"),
            json.dumps(document, ensure_ascii=False, separators=(",", ":")),
        )
        self._events.append(event_record)
        insort(self._by_time, event_record, key=_TIME)
        self._bytes += len(event_record.text)
        self.counts.add(time, fields.get("kind", ""))
        while len(self._events) > self._limit or self._bytes > self._max_bytes:
            dropped = self._drop()
            self.since = max(self.since or 0.0, self._events[0].time if self._events else dropped.time)
        self._remove_dropped()

    def forget(self, now: float) -> None:
        """Drop events older than an hour, and counts of times later than now, which exist if a clock was set back."""
        while self._events and self._events[0].time < now - SPAN:
            self._drop()
        self._remove_dropped()
        self.counts.forget_after(now)
        if self.since is not None:
            self.since = min(max(self.since, now - SPAN), now)
        if self.counted_since is not None:
            self.counted_since = min(max(self.counted_since, now - SPAN), now)

    def _drop(self) -> LoggedEvent:
        dropped = self._events.popleft()
        self._bytes -= len(dropped.text)
        return dropped

    def _remove_dropped(self) -> None:
        """Remove dropped events from ``_by_time``, many at once, because removing a single one takes as long."""
        if len(self._by_time) - len(self._events) > _MAX_DROPPED:
            self._by_time = self._without_dropped(self._by_time)

    def _without_dropped(self, events: list[LoggedEvent]) -> list[LoggedEvent]:
        oldest = self._events[0].serial if self._events else self.serial + 1
        return [each for each in events if each.serial >= oldest]

    def nearest(self, event_filter: EventFilter, time: float, limit: int) -> tuple[list[LoggedEvent], bool]:
        """Return the *limit* matching events nearest to *time*, in order of arrival, and whether there are more.

        Only events from first to last are searched. Each condition takes a millisecond for 40,000 events.
        """
        begin = 0 if event_filter.first is None else bisect_left(self._by_time, event_filter.first, key=_TIME)
        end = (
            len(self._by_time)
            if event_filter.last is None
            else bisect_right(self._by_time, event_filter.last, key=_TIME)
        )
        found = event_filter.matching(self._without_dropped(self._by_time[begin:end]))
        position = bisect_left(found, time, key=_TIME)
        candidates = found[max(0, position - limit) : position + limit]
        nearest = heapq.nsmallest(limit, candidates, key=lambda event: abs(event.time - time))
        return sorted(nearest, key=lambda event: event.serial), len(found) > limit

    def newest(self, event_filter: EventFilter, limit: int) -> tuple[list[LoggedEvent], bool]:
        """Return the newest *limit* matching events, oldest first, and whether there are more."""
        new_events = islice(reversed(self._events), max(0, self.serial - event_filter.after))
        found: list[LoggedEvent] = []
        while len(found) <= limit and (batch := list(islice(new_events, _FILTER_BATCH))):
            found += event_filter.matching(batch)
        return found[:limit][::-1], len(found) > limit
