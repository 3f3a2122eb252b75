"""Overshoot: bytes that bypass the class of a cap, their compensation and their limit. Pure.

Some bytes of a capped subflow bypass its class: those sent before its entry existed, and those of a rate transition.
They are charged to the cap. If the debt exceeds ``MIN_SECONDS`` at the cap's rate, the class gets ``SHARE`` of that
rate until the mean is the cap. A smaller debt is forgotten after a while without new charges.

All transitions of one cap together may send no more past it than one of them needs: otherwise every subflow that gets
the cap in full flight would break it. The first one brings an *allowance*, and those that follow share it. Once it is
used up, the cap begins at once on all of them. A new one needs ``PAUSE_SECONDS`` without use of the last.

A charge costs O(1), a query of the changes O(compensating caps). Times are monotonic seconds.
"""

from __future__ import annotations

import math

from mptcp_throttler.shaping.cap import LiveCap
from mptcp_throttler.shaping.onset.rate_transition import MAX_DRAIN_SECONDS, RAMP_SECONDS

SHARE = 0.5
MIN_SECONDS = 0.05
MAX_SECONDS = 4.0
"""Maximum debt: no user pays longer than twice that for bytes of other users."""
FORGOTTEN_SECONDS = 10.0
PAUSE_SECONDS = 10.0
MARGIN = 1.5
"""Factor on the computed bytes of one transition: its rates are estimates, and samples come late."""


class OvershootCompensation:
    """The compensation of all caps of one planner."""

    def __init__(self) -> None:
        self._compensating: dict[LiveCap, None] = {}
        """Including caps whose class is not lowered yet."""

    def charge(self, cap: LiveCap, octets: float, now: float) -> None:
        """Charge bytes to a cap."""
        if cap not in self._compensating:
            if now - cap.owed_at > FORGOTTEN_SECONDS:
                cap.owed = 0.0
        elif cap.lowered is not None:
            _compensate(cap, now)
        # Samples of one cap's subflows are not in the order of time.
        cap.owed_at = max(cap.owed_at, now)
        cap.owed = min(cap.owed + 8 * octets, cap.wanted.ceil * MAX_SECONDS)
        if cap.owed > cap.wanted.ceil * MIN_SECONDS:
            self._compensating[cap] = None

    def changed(self, now: float) -> list[tuple[LiveCap, float | None]]:
        """Return the caps whose classes must get another share of their rate, with that share; None is all."""
        changes: list[tuple[LiveCap, float | None]] = []
        for cap in list(self._compensating):
            if cap.lowered is not None:
                _compensate(cap, now)
            if cap.owed <= 0:
                changes.append((cap, None))
                del self._compensating[cap]
            elif cap.lowered is None:
                cap.owed_at = now
                changes.append((cap, SHARE))
        return changes


def _compensate(cap: LiveCap, now: float) -> None:
    cap.owed -= cap.wanted.ceil * (1 - SHARE) * max(0.0, now - cap.owed_at)
    cap.owed_at = max(cap.owed_at, now)


def begin_allowance(cap: LiveCap, start: int, target: int, now: float) -> bool:
    """Begin a transition from *start* to *target* bits/s; return whether any allowance is left."""
    if cap.allowance_used is None or now - cap.allowance_used > PAUSE_SECONDS:
        # Drain at the start rate, then a geometric ramp.
        ramp = (start - target) / math.log(start / target) if start > target else start
        cap.allowance = MARGIN * (start * MAX_DRAIN_SECONDS + ramp * RAMP_SECONDS)
    cap.allowance_used = now
    return cap.allowance > 0


def spend_allowance(cap: LiveCap, octets: float, now: float) -> bool:
    """Charge bytes of a transition to the allowance; return whether any is left."""
    if cap.allowance_used is None:
        return True  # a new policy reset it
    cap.allowance -= 8 * octets
    cap.allowance_used = now
    return cap.allowance > 0
