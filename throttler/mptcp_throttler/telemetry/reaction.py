"""How long a cap takes: from the last packet of a join's handshake, as it was captured, to the entry in the kernel."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any, Final

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.telemetry.histogram import Histogram

BOUNDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
"""Upper ends of the histogram's buckets, seconds."""
MAX_REMEMBERED: Final = 1024
"""Entries made lately, and subflows that wait for one."""
MAX_SECONDS: Final = 10.0
"""An entry that is made later was decided for another reason than the join."""


class Reaction:
    """A histogram since the daemon's start. Times are seconds since the epoch.

    The kernel's event may be read before the packet is, and the entry made by then: both are remembered for a while.
    """

    def __init__(self) -> None:
        self._waiting: dict[FourTuple, float] = {}
        """Subflows whose entry is wanted because of a join, and when its packet was captured; the oldest first."""
        self._made: dict[FourTuple, float] = {}
        """When entries were made, the oldest first."""
        self._histogram = Histogram(BOUNDS)

    def joined(self, captured: float, subflows: Iterable[FourTuple], wanted: Container[FourTuple]) -> None:
        """The last packet of a join to the connection of *subflows* was captured. It has been decided about it, and
        entries of those *wanted* are yet to be made: that of the subflow that joined, or of one that was there."""
        for four_tuple in subflows:
            made = self._made.pop(four_tuple, None)
            if made is not None and made >= captured:
                self._count(made - captured)
            elif made is None and four_tuple in wanted:
                _put(self._waiting, four_tuple, captured)

    def applied(self, four_tuples: Iterable[FourTuple], now: float) -> None:
        """Their entries are in the kernel."""
        for four_tuple in four_tuples:
            captured = self._waiting.pop(four_tuple, None)
            if captured is None:
                _put(self._made, four_tuple, now)
            else:
                self._count(max(0.0, now - captured))

    def _count(self, seconds: float) -> None:
        if seconds <= MAX_SECONDS:
            self._histogram.count(seconds)

    def as_json(self) -> dict[str, Any]:
        return self._histogram.as_json()


def _put(table: dict[FourTuple, float], four_tuple: FourTuple, time: float) -> None:
    if len(table) >= MAX_REMEMBERED:
        del table[next(iter(table))]
    table[four_tuple] = time
