# SPDX-License-Identifier: GPL-2.0-or-later
"""Measures the latency of caps since the daemon's start: from a join to its entry, from a decision to its effect."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from itertools import accumulate
from typing import Any, Final

from mptcp_throttler.mptcp.connection_table import TimedTable
from mptcp_throttler.mptcp.model import FourTuple

# From the decision of a cap to its full effect on a subflow, onset included (``Planner.report_delay``):
CAP_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Upper ends of the buckets, seconds: entries take milliseconds, downloads in flight a second, uploads up to 15."""
MAX_CAP_SECONDS: Final = 60.0  # a longer time has another cause than the decision, e.g. a repair
JOIN_BOUNDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
MAX_JOIN_SECONDS: Final = 10.0  # a later entry has another cause than the join
MAX_REMEMBERED: Final = 1024  # maximum size of each table of JoinLatency


class LatencyHistogram:
    """Counts of times in buckets; the last bucket has no upper end."""

    def __init__(self, bounds: tuple[float, ...], limit: float) -> None:
        """*bounds*: the upper ends of the buckets, seconds. Times above *limit* do not count."""
        self._bounds, self._limit = bounds, limit
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def count(self, seconds: float) -> None:
        if seconds <= self._limit:
            self._counts[bisect_left(self._bounds, seconds)] += 1
            self._sum += seconds

    def as_json(self) -> dict[str, Any]:
        """Return the counts up to each of ``le`` seconds, the total count, and the sum in seconds."""
        *counts, total = accumulate(self._counts)
        return {"le": list(self._bounds), "count": counts, "total": total, "sum": self._sum}


class JoinLatency(LatencyHistogram):
    """Time from the capture of the last packet of a join's handshake to the entry in the kernel. Monotonic seconds.

    The captured packet, the kernel's event and the entry may come in any order, so all are remembered for a while.
    """

    def __init__(self) -> None:
        super().__init__(JOIN_BOUNDS, MAX_JOIN_SECONDS)
        # Capture times of joins without a kernel event; capture times of subflows without an entry; times of entries.
        self.joins, self._pending, self._entries = (TimedTable[FourTuple, float](MAX_REMEMBERED) for _ in range(3))

    def record_join(self, captured: float, subflows: Iterable[FourTuple], pending: Container[FourTuple]) -> None:
        """Record a join to the connection of *subflows*, after the decision on it. *pending*: subflows, new or older,
        that still lack their entries."""
        for four_tuple in subflows:
            entry_time = self._entries.pop(four_tuple)
            if entry_time is not None and entry_time >= captured:
                self.count(entry_time - captured)
            elif entry_time is None and four_tuple in pending:
                self._pending.put(four_tuple, captured, captured)

    def record_entries(self, four_tuples: Iterable[FourTuple], now: float) -> None:
        """Record that the kernel has the entries of *four_tuples*."""
        for four_tuple in four_tuples:
            captured = self._pending.pop(four_tuple)
            if captured is None:
                self._entries.put(four_tuple, now, now)
            else:
                self.count(max(0.0, now - captured))
