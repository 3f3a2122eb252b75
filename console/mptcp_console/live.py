# SPDX-License-Identifier: GPL-2.0-or-later
"""The stream to browsers: server-sent events (HTML Living Standard, 9.2), one for each answer of the throttler."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

from mptcp_console.address_names import AddressNames
from mptcp_console.event_log import EventFilter
from mptcp_console.watch import Watch

HEARTBEAT: Final = 10.0
"""Maximum seconds between two messages. After a longer silence, the page assumes that the console hangs."""
MAX_EVENTS: Final = 50
"""Maximum number of events per message; if there are more, the newest are sent."""


class Live:
    """The event stream of one :class:`Watch`, as text, shared by all browsers."""

    def __init__(self, watch: Watch, login: bool, names: AddressNames | None = None) -> None:
        """*login*: whether browsers must log in, and may log out."""
        self._watch = watch
        self._names = names or AddressNames(None)
        self._login = login
        self._cached: dict[int, tuple[str, int]] = {}
        """A cache, because most browsers get the same message. Key: number of the last event that the browser has;
        value: the message of the latest tick, and the number of its last event."""
        self._tick = -1

    async def stream(self) -> AsyncIterator[str]:
        """Yield messages until the console ends. A slow browser skips messages that it did not read in time."""
        watch = self._watch
        tick, serial = watch.tick, watch.event_log.serial
        yield "retry: 1000\n\n"
        if tick:
            text, serial = self._message(serial)
            yield text
        while not watch.is_closed:
            latest = await watch.next(tick, HEARTBEAT)
            if latest == tick:
                yield ": still here\n\n"
                continue
            tick = latest
            # Read the number before the yield, because events may arrive while a slow browser reads this message.
            text, serial = self._message(serial)
            yield text

    def _message(self, serial: int) -> tuple[str, int]:
        """Return the message for a browser that already has the events up to *serial*, and the number of the message's
        last event."""
        if self._tick != self._watch.tick:
            self._tick = self._watch.tick
            self._cached.clear()
        if serial not in self._cached:
            self._names.refresh()
            document = {"login": self._login, "names": self._names.version} | snapshot(self._watch, serial)
            text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
            message = f"id: {self._tick}\nevent: snapshot\ndata: {text}\n\n"
            self._cached[serial] = message, self._watch.event_log.serial
        return self._cached[serial]


def snapshot(watch: Watch, serial: int) -> dict[str, Any]:
    """Return the current state, and the events after number *serial*."""
    events, has_more = watch.event_log.newest(EventFilter(after=serial), MAX_EVENTS)
    throttler = watch.throttler
    return {
        "tick": watch.tick,
        "time": watch.now(),
        "throttler": {"state": throttler.state, "since": throttler.since, "text": throttler.text},
        "now": watch.overview if watch.is_current else None,
        "last": None if watch.is_current else watch.overview,
        "events": [json.loads(event.text) for event in events],
        "more_events": has_more,
    }
