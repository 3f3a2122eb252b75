"""The latest events, in bounded memory: what happened to whom, and by which rule.

An event is a plain tuple of atoms: the garbage collector has nothing to follow, and addresses are shared with who keeps
them anyway. Words are made where somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple

MAX_EVENTS: Final = 30_000
"""At most 16 MB with IPv6 addresses and the longest details; a connection of two subflows takes eight to ten."""
LONGEST_DETAIL: Final = 150
"""Characters."""
CUT: Final = "..."
"""What a longer one ends with: one character beyond Latin-1 would take as much as all."""

CONNECTION, SUBFLOW, CLOSED = "connection", "subflow", "closed"
DECIDED, APPLIED, LIFTED = "decided", "applied", "lifted"
GUARD, BUDGET, STEERING, RELOAD, FAULT = "guard", "budget", "steering", "reload", "fault"
KINDS: Final = (
    CONNECTION,
    SUBFLOW,
    CLOSED,
    DECIDED,
    APPLIED,
    LIFTED,
    GUARD,
    BUDGET,
    STEERING,
    RELOAD,
    FAULT,
)


class Happened(NamedTuple):
    """One event, as it is read."""

    sequence: int
    time: float
    """Seconds since the epoch."""
    kind: str
    token: int | None
    four_tuple: FourTuple | None
    path: str | None
    rule: str | None
    direction: str | None
    detail: str


class EventRing:
    """The events of one daemon. Sequence numbers begin at 1 and have no gaps."""

    def __init__(self, most: int = MAX_EVENTS) -> None:
        self._events: deque[tuple] = deque(maxlen=most)  # type: ignore[type-arg]
        self.last = 0
        """Sequence number of the latest event; 0 before the first."""

    @property
    def first(self) -> int:
        """Sequence number of the oldest event that is kept; one more than the last where none is."""
        return self.last - len(self._events) + 1

    @property
    def whole_since(self) -> float:
        """Since when no event has gone, seconds since the epoch; 0 where none has."""
        return self._events[0][0] if self.first > 1 and self._events else 0.0

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
        """Keep one event; the oldest goes where there are too many."""
        if len(detail) > LONGEST_DETAIL:
            detail = f"{detail[: LONGEST_DETAIL - len(CUT)]}{CUT}"
        self.last += 1
        self._events.append((time, kind, token, *(four_tuple or _NOWHERE), path, rule, direction, detail))

    def after(self, sequence: int) -> Iterator[Happened]:
        """Yield the events after *sequence*, the oldest first."""
        first = self.first
        skipped = max(0, sequence - first + 1)
        for number, event in enumerate(islice(self._events, skipped, None), first + skipped):
            time, kind, token, local, local_port, remote, remote_port, path, rule, direction, detail = event
            four_tuple = None if remote is None else FourTuple(local, local_port, remote, remote_port)
            yield Happened(number, time, kind, token, four_tuple, path, rule, direction, detail)


_NOWHERE = (None, None, None, None)
