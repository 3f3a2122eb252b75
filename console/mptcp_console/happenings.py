"""Events of the last hour, in bounded memory: the throttler's, and those that the console saw of the throttler."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

LONGEST_TEXT: Final = 400
"""Characters of an event's line for people."""
MOST_EVENTS: Final = 40_000
MOST_BYTES: Final = 8 * 1024 * 1024
SPAN: Final = 3600.0
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
        self.serial = 0
        """Of the newest event."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def since(self) -> float | None:
        """From when on all events are there; None: from the beginning."""
        return self._events[0].time if self._events and self._events[0].serial > 1 else None

    def add(self, event: Mapping[str, Any]) -> None:
        """Keep *event*, as the throttler tells it. What is no event is left out."""
        time, text = event.get("time"), event.get("text")
        if not isinstance(time, int | float) or not isinstance(text, str):
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
        while len(self._events) > self._most or self._bytes > self._most_bytes:
            self._drop()

    def forget(self, now: float) -> None:
        """Let go of what is older than an hour."""
        while self._events and self._events[0].time < now - SPAN:
            self._drop()

    def _drop(self) -> None:
        self._bytes -= len(self._events.popleft().text)

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
