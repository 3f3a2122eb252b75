"""Events of the last hour, in bounded memory: the throttler's, and those that the console saw of the throttler.

Where there are many, the oldest give way before the hour is over; how many there were of each kind is kept for it.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mptcp_console.event_counts import EventCounts

LONGEST_TEXT: Final = 400
"""Characters of an event's line for people."""
MOST_EVENTS: Final = 40_000
MOST_BYTES: Final = 8 * 1024 * 1024
SPAN: Final = 3600.0
_END_OF_TIME: Final = 1e11
"""Seconds since the epoch; whoever says more does not tell a time, and neither does who says NaN."""
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

    def takes(self, event: Happening) -> bool:
        return (
            event.serial > self.after
            and (self.first is None or event.time >= self.first)
            and (self.last is None or event.time <= self.last)
            and self.kind in (None, event.kind)
            and self.token in (None, event.token)
            and self.client in (None, event.client)
            and self.rule in (None, event.rule)
        )


class Happenings:
    """The newest events; the oldest give way."""

    def __init__(self, most: int = MOST_EVENTS, most_bytes: int = MOST_BYTES) -> None:
        self._events: deque[Happening] = deque()
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
        self._events.append(
            Happening(
                self.serial,
                float(time),
                fields.get("kind", ""),
                fields.get("token"),
                fields.get("client"),
                fields.get("rule"),
                json.dumps(document, ensure_ascii=False, separators=(",", ":")),
            )
        )
        self._bytes += len(self._events[-1].text)
        self.counts.add(time, fields.get("kind", ""))
        while len(self._events) > self._most or self._bytes > self._most_bytes:
            gone = self._drop()
            self.since = max(self.since or 0.0, self._events[0].time if self._events else gone.time)

    def forget(self, now: float) -> None:
        """Let go of what is older than an hour, and of times that a clock was set back from."""
        while self._events and self._events[0].time < now - SPAN:
            self._drop()
        self.counts.forget_after(now)
        if self.since is not None:
            self.since = min(max(self.since, now - SPAN), now)
        if self.counted_since is not None:
            self.counted_since = min(max(self.counted_since, now - SPAN), now)

    def _drop(self) -> Happening:
        gone = self._events.popleft()
        self._bytes -= len(gone.text)
        return gone

    def nearest(self, wanted: Wanted, time: float, limit: int) -> tuple[list[Happening], bool]:
        """Return the *limit* events nearest to *time* that are *wanted*, in their order, and whether there are more."""
        found = heapq.nsmallest(
            limit + 1,
            (event for event in self._newest_first(wanted.after) if wanted.takes(event)),
            key=lambda event: abs(event.time - time),
        )
        return sorted(found[:limit], key=lambda event: event.serial), len(found) > limit

    def newest(self, wanted: Wanted, limit: int) -> tuple[list[Happening], bool]:
        """Return the newest *limit* events that are *wanted*, the oldest of them first, and whether there are more."""
        found: list[Happening] = []
        for event in self._newest_first(wanted.after):
            if wanted.takes(event):
                if len(found) == limit:
                    return found[::-1], True
                found.append(event)
        return found[::-1], False

    def _newest_first(self, after: int) -> Iterator[Happening]:
        for event in reversed(self._events):
            if event.serial <= after:
                return
            yield event
