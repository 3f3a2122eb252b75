"""Subflows that have ended and keep their entries: what was assigned to them is still to be sent. Pure.

After ``LINGER_SECONDS`` a socket is asked for, where anybody can, and the entry stays while there is anything left. At
10,000 connections a second there would be 100,000 of them: ``MAX_LINGERING`` bounds that.
"""

from __future__ import annotations

import math
from itertools import islice

from mptcp_throttler.mptcp.model import FourTuple

LINGER_SECONDS = 10.0
"""How long an entry stays at the least."""
MAX_LINGERING = 16_384
"""Such entries; the oldest gives way."""
LINGER_SLICE = 2048
"""Of those entries, how many are dropped at a time: some four milliseconds."""


class Lingering:
    """Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._until: dict[FourTuple, float] = {}
        """The oldest first."""
        self._overdue: dict[FourTuple, None] = {}
        """Those whose time is up, and of which nobody has said yet whether their sockets are done."""

    def __contains__(self, four_tuple: FourTuple) -> bool:
        return four_tuple in self._until or four_tuple in self._overdue

    def add(self, four_tuple: FourTuple, now: float) -> FourTuple | None:
        """Keep the entry of a subflow; return the one whose entry has to give way."""
        self._until[four_tuple] = now + LINGER_SECONDS
        return next(iter(self._until)) if len(self._until) > MAX_LINGERING else None

    def discard(self, four_tuple: FourTuple) -> bool:
        """Return whether it was there."""
        there = four_tuple in self
        self._until.pop(four_tuple, None)
        self._overdue.pop(four_tuple, None)
        return there

    def cut_short(self) -> None:
        """Let all go as soon as may be."""
        self._until = dict.fromkeys([*self._overdue, *self._until], -math.inf)
        self._overdue.clear()

    def take_due(self, now: float, *, ask: bool) -> list[FourTuple]:
        """Return some whose entries go now; *ask* before, but for those that were cut short."""
        due = list[FourTuple]()
        for four_tuple, until in list(islice(self._until.items(), LINGER_SLICE)):
            # The clock may have been set back.
            if now < until <= now + LINGER_SECONDS:
                break
            if ask and until > -math.inf:
                del self._until[four_tuple]
                self._overdue[four_tuple] = None
            else:
                due.append(four_tuple)
        return due

    def overdue(self, limit: int) -> list[FourTuple]:
        """Return some of those that are to be asked for."""
        return list(islice(self._overdue, limit))

    def is_overdue(self, four_tuple: FourTuple) -> bool:
        """Tell whether it is one of those."""
        return four_tuple in self._overdue

    def go_on(self, four_tuple: FourTuple, now: float) -> None:
        """Its socket is not done."""
        self._overdue.pop(four_tuple, None)
        self._until[four_tuple] = now + LINGER_SECONDS
