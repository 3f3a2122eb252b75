"""Events of the last hour, in bounded memory: the throttler's, and those that the console saw of the throttler.

Where there are many, the oldest give way before the hour is over; how many there were of each kind is kept for it.
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
"""Characters of an event's line for people."""
MOST_EVENTS: Final = 40_000
MOST_BYTES: Final = 8 * 1024 * 1024
SPAN: Final = 3600.0
_END_OF_TIME: Final = 1e11
"""Seconds since the epoch; whoever says more does not tell a time, and neither does who says NaN."""
_MOST_GONE: Final = 1000
"""Events that gave way and are still in the order of times."""
_SOME: Final = 1000
"""Events looked at before it is asked whether these are enough."""
_TIME: Final = attrgetter("time")
_KEPT: Final = ("kind", "token", "client", "remote", "local", "path", "rule", "direction")


@dataclass(frozen=True, slots=True)
class Happening:
    """One event, as it is given to browsers."""

    serial: int
    """Counted by the console: the throttler's own numbers begin anew when it does."""
    time: float
    kind: str
    token: str | None
    client: str | None
    rule: str | None
    text: str
    """JSON."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events somebody asks for; None: whatever."""

    after: int = 0
    first: float | None = None
    last: float | None = None
    kind: str | None = None
    token: str | None = None
    client: str | None = None
    rule: str | None = None

    def of(self, events: list[Happening]) -> list[Happening]:
        """Return which of *events* are wanted. A call for each would take ten times as long as these passes."""
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
    """The newest events; the oldest give way."""

    def __init__(self, most: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._events: deque[Happening] = deque()
        """In the order in which they came."""
        self._by_time: list[Happening] = []
        """The same in the order of their times, which is another where a clock was set back; and some that gave way."""
        self._most, self._most_bytes = most, most_bytes
        self._bytes = 0
        self.counts = EventCounts()
        self.serial = 0
        """Of the newest event."""
        self.since: float | None = None
        """From when on every event is there; None while nobody has said, and none has given way."""
        self.counted_since: float | None = None
        """From when on every event was counted."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def bytes(self) -> int:
        return self._bytes

    def missing_before(self, time: float) -> None:
        """Say that of what happened before *time* some may never have come here."""
        self.since = max(time, self.since or 0.0)
        self.counted_since = max(time, self.counted_since or 0.0)

    def add(self, event: Mapping[str, Any]) -> None:
        """Keep *event*, as the throttler tells it. What is no event is left out."""
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
        while len(self._events) > self._most or self._bytes > self._most_bytes:
            gone = self._drop()
            self.since = max(self.since or 0.0, self._events[0].time if self._events else gone.time)
        self._tidy()

    def forget(self, now: float) -> None:
        """Let go of what is older than an hour, and of times that a clock was set back from."""
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
        """Let go of the events that gave way in the order of times, too: many at once, for it takes as long for one."""
        if len(self._by_time) - len(self._events) > _MOST_GONE:
            self._by_time = self._those_left(self._by_time)

    def _those_left(self, events: list[Happening]) -> list[Happening]:
        oldest = self._events[0].serial if self._events else self.serial + 1
        return [each for each in events if each.serial >= oldest]

    def nearest(self, wanted: Wanted, time: float, limit: int) -> tuple[list[Happening], bool]:
        """Return the *limit* events nearest to *time* that are *wanted*, in their order, and whether there are more.

        What is not from first to last is not looked at. Of 40,000 events each condition takes a millisecond.
        """
        begin = 0 if wanted.first is None else bisect_left(self._by_time, wanted.first, key=_TIME)
        end = len(self._by_time) if wanted.last is None else bisect_right(self._by_time, wanted.last, key=_TIME)
        found = wanted.of(self._those_left(self._by_time[begin:end]))
        at = bisect_left(found, time, key=_TIME)
        around = found[max(0, at - limit) : at + limit]
        nearest = heapq.nsmallest(limit, around, key=lambda event: abs(event.time - time))
        return sorted(nearest, key=lambda event: event.serial), len(found) > limit

    def newest(self, wanted: Wanted, limit: int) -> tuple[list[Happening], bool]:
        """Return the newest *limit* events that are *wanted*, the oldest of them first, and whether there are more."""
        unseen = islice(reversed(self._events), max(0, self.serial - wanted.after))
        found: list[Happening] = []
        while len(found) <= limit and (some := list(islice(unseen, _SOME))):
            found += wanted.of(some)
        return found[:limit][::-1], len(found) > limit
