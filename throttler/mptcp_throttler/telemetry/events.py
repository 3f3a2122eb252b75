# SPDX-License-Identifier: GPL-2.0-or-later
"""Keeps the latest events in bounded memory. Pure.

The sentences of events are formatted only when a client requests events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.telemetry.decision import Decision
from mptcp_throttler.telemetry.traffic import Traffic

MAX_EVENTS: Final = 30_000
"""Maximum number of events in memory: up to 19 MB. A connection of two subflows causes eight to ten events."""
MAX_DETAIL: Final = 150  # characters
ELLIPSIS: Final = "..."  # in ASCII, because a character outside Latin-1 would multiply the size of the string
MAX_REFUSED_JOINS: Final = 20  # maximum events per minute about refused joins, so that these do not displace all others

CONNECTION, SUBFLOW, CLOSED = "connection", "subflow", "closed"
DECIDED, APPLIED, LIFTED = "decided", "applied", "lifted"
GUARD, BUDGET, GRANT, STEERING, RELOAD, FAULT = "guard", "budget", "grant", "steering", "reload", "fault"
KINDS: Final = (CONNECTION, SUBFLOW, CLOSED, DECIDED, APPLIED, LIFTED, GUARD, BUDGET, GRANT, STEERING, RELOAD, FAULT)

_EVENTS: Final = {
    EventKind.CONNECTION_OPENED: (CONNECTION, "{}"),
    EventKind.CONNECTION_CLOSED: (CLOSED, "{}"),
    EventKind.SUBFLOW_ACTIVE: (SUBFLOW, "active"),
    EventKind.SUBFLOW_CHANGED: (SUBFLOW, "{}"),
    EventKind.SUBFLOW_CLOSED: (CLOSED, "{}"),
    EventKind.JOIN_REFUSED: (FAULT, "join refused: {}"),
    EventKind.DISAGREEMENT: (FAULT, "the kernel's records disagree: {}"),
}
"""Kind and detail of the tracker's events; the other kinds are logged as warnings."""


class RateLimiter:
    """Limits the number of reports per minute, for events that any client can cause."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._minute = self._count = 0

    def allow(self, now: float) -> bool:
        """Count one report at *now*, seconds of any clock; return whether it is within the limit of its minute."""
        minute = int(now // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        return self._count <= self._limit


class RecordedEvent(NamedTuple):
    sequence: int
    time: float  # seconds since the epoch
    kind: str
    token: int | None
    four_tuple: FourTuple | None
    path: str | None
    rule: str | None
    direction: str | None
    detail: str


class EventRing:
    """The events of one daemon. Sequence numbers begin at 1 and have no gaps."""

    def __init__(self, limit: int = MAX_EVENTS) -> None:
        self._events: deque[RecordedEvent] = deque(maxlen=limit)
        self.last = 0  # sequence number of the latest event; 0 before the first

    @property
    def first(self) -> int:
        """Sequence number of the oldest event in the ring; ``last + 1`` if the ring is empty."""
        return self.last - len(self._events) + 1

    def add(
        self,
        time: float,
        kind: str,
        token: int | None = None,
        four_tuple: FourTuple | None = None,
        path: str | None = None,
        rule: str | None = None,
        direction: str | None = None,
        detail: str = "",
    ) -> None:
        """Add an event; drop the oldest event if the ring is full."""
        if len(detail) > MAX_DETAIL:
            detail = f"{detail[: MAX_DETAIL - len(ELLIPSIS)]}{ELLIPSIS}"
        self.last += 1
        self._events.append(RecordedEvent(self.last, time, kind, token, four_tuple, path, rule, direction, detail))

    def events_after(self, sequence: int) -> Iterator[RecordedEvent]:
        """Return the events after *sequence*, the oldest first."""
        return islice(self._events, max(0, sequence - self.first + 1), None)


class EventRecorder:
    """Turns reports of the daemon's parts into events. Reports have monotonic times, events have wall-clock times."""

    def __init__(self, traffic: Traffic, clock_offset: Callable[[], float]) -> None:
        """*clock_offset* returns by how many seconds the wall clock is ahead of the monotonic clock."""
        self.ring = EventRing()
        self._clock_offset, self._traffic = clock_offset, traffic
        self._refused_joins = RateLimiter(MAX_REFUSED_JOINS)

    def record_tracker_events(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind not in _EVENTS:
                continue
            if event.kind is EventKind.JOIN_REFUSED and not self._refused_joins.allow(event.time):
                continue
            (kind, detail), token, time = _EVENTS[event.kind], event.token or None, event.time + self._clock_offset()
            self.ring.add(time, kind, token, event.four_tuple, detail=detail.format(event.detail))

    def record_decision(self, decision: Decision) -> None:
        """Record caps that began, changed or ended."""
        verdicts = [*decision.gained, *(new for _, new in decision.changed)]
        if not decision.is_dry_run_change:
            verdicts += [new for _, new in decision.lost]
        for verdict in verdicts:
            rule = None if verdict.rule is None else verdict.rule.name
            fields = verdict.four_tuple, verdict.path, rule, verdict.direction.value
            self.ring.add(decision.now + self._clock_offset(), DECIDED, decision.token, *fields, verdict.reason)

    def record_entries(self, direction: Direction, four_tuples: Collection[FourTuple], added: bool, now: float) -> None:
        """Record that entries of *four_tuples* were *added* to the kernel, or removed."""
        for four_tuple in four_tuples:
            subflow = self._traffic.find(four_tuple, direction)
            if subflow is None:
                continue  # the subflow has ended; another event reports that
            token, path, rule = subflow
            # An added entry without a rule exempts a subflow that began in a cap's class: its cap is lifted.
            kind = APPLIED if added and rule is not None else LIFTED
            self.ring.add(now + self._clock_offset(), kind, token, four_tuple, path, rule, direction.value)

    def record(self, now: float, kind: str, detail: str, client: str = "", rule: str | None = None) -> None:
        """Record an event that is not about one connection; it may be about all connections of *client*."""
        text = f"client {client}: {detail}" if client else detail
        self.ring.add(now + self._clock_offset(), kind, rule=rule, detail=text)

    def record_guard(self, now: float, token: int, rules: Iterable[str], state: str) -> None:
        """Record a new state of the caps of *rules*: one event per rule, so that a search for a rule finds it."""
        for rule in rules:
            self.ring.add(now + self._clock_offset(), GUARD, token, rule=rule, detail=f"caps of rule {rule} {state}")

    def record_steering(self, now: float, token: int, four_tuple: FourTuple, rule: str | None, detail: str) -> None:
        subflow = self._traffic.find(four_tuple, Direction.DOWN)
        path = None if subflow is None else subflow[1]
        self.ring.add(now + self._clock_offset(), STEERING, token, four_tuple, path, rule, detail=detail)
