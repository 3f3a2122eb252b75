# SPDX-License-Identifier: GPL-2.0-or-later
"""Queries the throttler once for all browsers: about once a second while a browser watches, otherwise every five
seconds.

Answers are kept as history, and passed to all tasks that wait for the next answer. The page also shows if the throttler
does not answer, gives an invalid answer, or was restarted.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mptcp_common.reasons import reason
from mptcp_common.status_client import ask_async
from mptcp_console.event_log import EventLog
from mptcp_console.health import Health
from mptcp_console.history import Tracks
from mptcp_console.overviews import overview
from mptcp_console.query_queue import Query
from mptcp_console.rates import RateMeter, record
from mptcp_console.volumes import Volumes

WATCHED_SECONDS: Final = 0.7
"""Pause between two queries while a browser watches. Events must appear within a second, and with ten thousand
connections, the answer itself takes 0.2 s or more."""
UNWATCHED_SECONDS: Final = 5.0
ANSWER_TIMEOUT: Final = 3.0
"""Maximum seconds for an answer. A throttler with ten thousand connections needs only a fraction of a second."""
MAX_WATCHERS: Final = 64
EVENTS_SECONDS: Final = 1.3
"""Seconds between two queries for events after an answer with many events. Otherwise events are queried together with
the summary."""
MANY_EVENTS: Final = 200
MAX_EVENTS_PER_REQUEST: Final = 10_000
FIRST_EVENTS: Final = 10_000
"""Maximum number of events from before the console's start that are fetched."""

DOWN, CRASHED, SILENT, REFUSED, ODD, UP = "down", "crashed", "silent", "refused", "odd", "up"
"""The throttler's states, as observed by the console. ``down``: stopped, or not started yet. A throttler that stops
removes the status socket and all caps; a throttler that crashes does not. ``odd``: its answer cannot be read."""


class TooManyWatchers(Exception):
    """Too many browsers watch already."""


@dataclass(frozen=True, slots=True)
class Throttler:
    """The throttler's state, the time of its last change (seconds since the epoch), and a line of text about it."""

    state: str
    since: float
    text: str = ""


def make_query(path: Path, timeout: float = ANSWER_TIMEOUT) -> Query:
    """Return a function that sends queries to the throttler at *path*. The function raises OSError."""

    async def query(request: Mapping[str, object]) -> dict[str, Any]:
        async with asyncio.timeout(timeout):
            return await ask_async(path, request)

    return query


def state_of_error(error: OSError, path: Path) -> tuple[str, str]:
    """Return the state that *error* means for the throttler at *path*, and a line about it."""
    if isinstance(error, TimeoutError):
        return SILENT, f"the throttler does not answer within {ANSWER_TIMEOUT:g} s; it hangs, or the host is overloaded"
    if error.errno == errno.ENOENT:
        return DOWN, f"the throttler does not run: it was stopped, or not started yet ({path} does not exist)"
    if error.errno == errno.ECONNREFUSED:
        return CRASHED, f"the throttler does not run: it crashed or was killed (no program listens at {path})"
    if isinstance(error, PermissionError):
        return REFUSED, f"the console has no access: only root and members of its group may use {path}"
    return ODD, f"the throttler's answer cannot be read: {reason(error)}"


class Watch:
    """Queries the throttler, and keeps its answers."""

    def __init__(
        self,
        query: Query,
        path: Path,
        on_query: Callable[[str], None] = lambda text: None,
        on_change: Callable[[], None] = lambda: None,
        sleep: Callable[[float], Awaitable[None]] | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        volumes: Volumes | None = None,
    ) -> None:
        """*on_query* is called after each query, with a line about its result; *on_change* after an answer with
        changes."""
        self._query = query
        self._path = path
        self._on_query = on_query
        self._on_change = on_change
        self._last_event = 0
        self._clock = clock
        self._monotonic = monotonic
        self._sleep = sleep or self._pause
        self.watchers = 0
        """Number of browsers that watch. If it is not 0, the throttler is queried once a second."""
        self._pause_end = asyncio.Event()
        self._updated = asyncio.Condition()
        self._last_fetched = 0
        self._busy_until = 0.0
        """No events are queried before this time, monotonic seconds."""
        self._pid: int | None = None
        self._started: float | None = None
        """The start of a new throttler whose events were not fetched yet; otherwise None."""
        self._meter = RateMeter()
        self._health = Health()
        self.volumes = volumes or Volumes()
        self.tracks = Tracks()
        self.event_log = EventLog()
        self.throttler = Throttler(DOWN, clock(), "the throttler was not queried yet")
        self.summary: Mapping[str, Any] | None = None
        """The last answer, even if it is old; None before the first answer."""
        self.overview: dict[str, Any] | None = None
        """The excerpt of the last answer for all pages, with the paths' rates."""
        self.tick = 0
        """Number of queries."""
        self.is_closed = False

    async def run(self) -> None:
        """Query the throttler until closed."""
        while not self.is_closed:
            start = self._monotonic()
            await self.poll()
            pause = (WATCHED_SECONDS if self.watchers else UNWATCHED_SECONDS) - (self._monotonic() - start)
            await self._sleep(max(pause, 0.05))

    async def _pause(self, seconds: float) -> None:
        self._pause_end.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._pause_end.wait()
        except TimeoutError:
            pass

    async def poll(self) -> None:
        """Query the throttler once, keep the answer, and notify all waiting tasks."""
        try:
            summary = await self._query({"query": "summary"})
            self._process_summary(summary)
            if self.throttler.state == UP:
                await self._fetch_events()
        except OSError as error:
            self._set_state(*state_of_error(error, self._path))
        self.event_log.forget(self._clock())
        self._on_query(self.throttler.text or "the throttler answers")
        async with self._updated:
            self.tick += 1
            self._updated.notify_all()

    def _process_summary(self, summary: Mapping[str, Any]) -> None:
        problem = _problem(summary)
        if problem is not None:
            self._set_state(ODD, problem)
            return
        try:
            record(self.tracks, self._meter, summary)
            new_overview = overview(summary, self._meter.paths) | {
                "faults": self._health.update(summary),
                "volumes": self.volumes.update(summary),
            }
            started = float(summary.get("started") or summary["time"])  # .get, because an older throttler lacks it
            last_event = int(summary.get("last_event") or 0)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            self._set_state(ODD, f"the throttler's answer cannot be read: {type(error).__name__} {error}")
            return
        if self._pid not in (None, summary.get("pid")):
            self._last_fetched, self._busy_until = 0, 0.0
            self._add_event(f"the throttler was restarted (process {summary.get('pid')})")
        if (summary.get("pid"), last_event) != (self._pid, self._last_event):
            self._on_change()
        if summary.get("pid") != self._pid:
            self._started = started
        self._pid, self._last_event = summary.get("pid"), last_event
        self.summary = summary
        self.overview = new_overview
        self._set_state(UP, "")

    async def _fetch_events(self) -> None:
        last = self._last_event
        if last <= self._last_fetched:
            self._busy_until = 0.0
            self._note_missing_events()
            return
        if self._monotonic() < self._busy_until:
            return
        after = self._last_fetched or max(0, last - FIRST_EVENTS)
        if last - after > MANY_EVENTS:
            self._busy_until = self._monotonic() + EVENTS_SECONDS
        answer = await self._query({"query": "events", "after": after, "limit": MAX_EVENTS_PER_REQUEST})
        self._note_missing_events()
        for number, event in _numbered_events(answer):
            if number > self._last_fetched + 1:
                # Older events are lost: the throttler keeps a limited number, and the first query is limited as well.
                self.event_log.mark_missing_before(event["time"])
            if number > self._last_fetched:
                self._last_fetched = number
                self.event_log.add(event)

    def _note_missing_events(self) -> None:
        """Record, after a throttler's first answer, that events from before its start are unknown."""
        if self._started is not None:
            self.event_log.mark_missing_before(self._started)
            self._started = None

    def _set_state(self, state: str, text: str) -> None:
        previous = self.throttler
        if (state, text) != (previous.state, previous.text):
            since = previous.since if state == previous.state else self._clock()
            self.throttler = Throttler(state, since, text)
        if state == previous.state:
            return
        if state == UP:
            if self.tick:
                self._add_event("the throttler answers")
        elif previous.state == UP:
            self._add_event(text)

    def _add_event(self, text: str) -> None:
        self.event_log.add({"time": self._clock(), "kind": "console", "text": text})

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Query the throttler once a second while the context is active. Raises TooManyWatchers."""
        if self.watchers >= MAX_WATCHERS:
            raise TooManyWatchers
        self.watchers += 1
        if self.watchers == 1:
            self._pause_end.set()
        try:
            yield
        finally:
            self.watchers -= 1

    @property
    def is_current(self) -> bool:
        """Whether the last answer is current."""
        return self.throttler.state == UP

    def now(self) -> float:
        """Return the local time, seconds since the epoch."""
        return self._clock()

    async def next(self, tick: int, max_seconds: float) -> int:
        """Wait for an answer after *tick*; return its tick, or the same *tick* if there is none for *max_seconds*."""
        try:
            async with asyncio.timeout(max_seconds), self._updated:
                await self._updated.wait_for(lambda: self.tick > tick or self.is_closed)
        except TimeoutError:
            pass
        return self.tick

    async def close(self) -> None:
        """Release all waiting tasks."""
        self.is_closed = True
        self._pause_end.set()
        async with self._updated:
            self._updated.notify_all()


def _problem(summary: Mapping[str, Any]) -> str | None:
    """Return why *summary* is not a valid summary; None if it is valid."""
    if "error" in summary:
        return f"the throttler refuses to answer: {summary['error']}"
    if summary.get("schema") != 2:
        version = summary.get("version", "unknown")
        return f"the throttler has version {version}, which the console does not support; restart it"
    return None


def _numbered_events(answer: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the events of *answer* with their numbers; skip malformed events."""
    events = answer.get("events")
    for event in events if isinstance(events, list) else ():
        if isinstance(event, dict) and isinstance(event.get("time"), int | float):
            number = event.get("seq")
            if isinstance(number, int):
                yield number, event
