"""The answer to ``events`` as lines for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, tzinfo
from typing import Any


class EventLines:
    """Formats events in the time of *zone* (None: this host's). Each day begins with a line of its date."""

    def __init__(self, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._day: str | None = None

    def lines(self, event: Mapping[str, Any]) -> Iterator[str]:
        """Yield the line of *event*: time, kind, connection, what happened."""
        when = datetime.fromtimestamp(event["time"], self._zone)
        day = when.strftime("%A, %Y-%m-%d")
        if day != self._day:
            self._day = day
            yield day
        token = event.get("token") or "-"
        rule = f" ({event['rule']})" if event.get("rule") and event["rule"] not in event["text"] else ""
        yield f"{when.strftime('%H:%M:%S.%f')[:-3]}  {event['kind']:<10}  {token:<8}  {event['text']}{rule}"


def is_another(answer: Mapping[str, Any], after: int, pid: int | None) -> bool:
    """Return whether *answer* is from another daemon than *pid* (None: any), whose last event was *after*."""
    return bool(answer["last"] < after or answer["pid"] != (pid or answer["pid"]))


def missed(answer: Mapping[str, Any], after: int, pid: int | None = None) -> str | None:
    """Return a message if the daemon no longer keeps all events after *after*, or is a new one; otherwise None."""
    first = answer["first"]
    if is_another(answer, after, pid):
        return "the daemon was started anew; its events begin here"
    lost = first - after - 1
    return f"{lost} events are missing: the daemon keeps the latest ones alone" if after and lost > 0 else None
