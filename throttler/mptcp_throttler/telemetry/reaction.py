"""How long a cap takes: from the last packet of a join's handshake, as it was captured, to the entry in the kernel."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from mptcp_throttler.mptcp.model import Connection, Event, EventKind, FourTuple

BOUNDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Upper ends of the histogram's buckets, seconds."""
MAX_WAITING: Final = 4096
MAX_SECONDS: Final = 10.0
"""A cap that comes later was decided for another reason than the join."""


class Reaction:
    """A histogram since the daemon's start."""

    def __init__(self) -> None:
        self._waiting: dict[FourTuple, float] = {}
        """When the handshakes ended of joins that are to be decided or have no entry yet, the oldest first."""
        self._counts = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0

    def captured(self, events: Iterable[Event], connections: Mapping[int, Connection]) -> None:
        """Take what packets have shown, at the times at which they were captured, seconds since the epoch."""
        for event in events:
            if event.kind is not EventKind.SUBFLOW_ACTIVE or event.four_tuple is None:
                continue
            connection = connections.get(event.token)
            subflows = () if connection is None else connection.subflows
            if any(each.four_tuple == event.four_tuple and not each.initial for each in subflows):
                if len(self._waiting) >= MAX_WAITING:
                    del self._waiting[next(iter(self._waiting))]
                self._waiting[event.four_tuple] = event.time

    def decided(self, wanted: Container[FourTuple]) -> None:
        """All that was captured is decided: what is not *wanted* in the kernel has no cap, or one that begins in a
        transition."""
        for four_tuple in [each for each in self._waiting if each not in wanted]:
            del self._waiting[four_tuple]

    def applied(self, four_tuples: Iterable[FourTuple], now: float) -> None:
        """Their entries are in the kernel."""
        if not self._waiting:
            return
        for four_tuple in four_tuples:
            time = self._waiting.pop(four_tuple, None)
            if time is None or now - time > MAX_SECONDS:
                continue
            seconds = max(0.0, now - time)
            self._counts[bisect_left(BOUNDS, seconds)] += 1
            self._sum += seconds

    def as_json(self) -> dict[str, Any]:
        """Return how many took at most ``le`` seconds each, how many in all, and the sum of their seconds."""
        total, counts = 0, []
        for count in self._counts:
            total += count
            counts.append(total)
        return {"le": list(BOUNDS), "count": counts[:-1], "total": total, "sum": self._sum}
