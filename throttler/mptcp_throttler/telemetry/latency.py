"""How long caps take since the daemon's start: from a join to its entry, from a decision to its full effect."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any, Final

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.telemetry.histogram import Histogram

CAP_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
"""Upper ends of the buckets, seconds: entries take milliseconds, downloads in flight a second, uploads up to 15."""
MAX_CAP_SECONDS: Final = 60.0
"""What takes longer came into effect for another reason than the decision, a repair for one."""
JOIN_BOUNDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
MAX_JOIN_SECONDS: Final = 10.0
"""An entry that is made later was decided for another reason than the join."""
MAX_REMEMBERED: Final = 1024
"""Entries made lately, and subflows that wait for one."""


class CapLatency:
    """From the decision of a cap to its full effect on a subflow, its onset included, in each direction.

    :attr:`~mptcp_throttler.shaping.plan.Planner.in_force` says what counts. In a dry run nothing does.
    """

    def __init__(self, clock: Callable[[], float], planners: Sequence[Planner]) -> None:
        """*clock*: monotonic seconds."""
        self._histograms = {planner.direction: Histogram(CAP_BOUNDS) for planner in planners}
        for planner in planners:
            planner.clock = clock
            planner.in_force = partial(self._count, self._histograms[planner.direction])

    @staticmethod
    def _count(histogram: Histogram, seconds: float) -> None:
        if seconds <= MAX_CAP_SECONDS:
            histogram.count(seconds)

    def as_json(self) -> dict[str, Any]:
        """Return the histogram of each direction."""
        return {direction.value: histogram.as_json() for direction, histogram in self._histograms.items()}


class JoinLatency:
    """From the last packet of a join's handshake, as it was captured, to the entry in the kernel. Epoch seconds.

    The kernel's event may be read before the packet is, and the entry made by then: both are remembered for a while.
    """

    def __init__(self) -> None:
        self._waiting: dict[FourTuple, float] = {}
        """Subflows whose entry is wanted because of a join, and when its packet was captured; the oldest first."""
        self._made: dict[FourTuple, float] = {}
        """When entries were made, the oldest first."""
        self._histogram = Histogram(JOIN_BOUNDS)

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
        if seconds <= MAX_JOIN_SECONDS:
            self._histogram.count(seconds)

    def as_json(self) -> dict[str, Any]:
        return self._histogram.as_json()


def _put(table: dict[FourTuple, float], four_tuple: FourTuple, time: float) -> None:
    if len(table) >= MAX_REMEMBERED:
        del table[next(iter(table))]
    table[four_tuple] = time
