"""What got past the class of a cap, how it is compensated, and how much of it there may be. Pure.

Some bytes of a capped subflow do not go through its class: those that it sent before its entry was there, and those of
a rate transition. They are charged to the cap. While it owes more than ``MIN_SECONDS`` send at its rate, its class has
``SHARE`` of that rate, until the mean is the cap. A smaller debt is forgotten when nothing was added for a while.

The transitions of one cap may send past it as much as one of them needs, all together: a cap that holds is not to be
broken by every subflow that comes to it in full flight. The first one brings an *allowance*; those that come while it
lasts share it, and once it is used up, the cap begins at once on all of them. There is a new one when nobody has used
the last one for ``PAUSE_SECONDS``.

There may be a cap for each of thousands of connections: a charge costs O(1), and asking what changed as much as there
are caps that compensate. Times are monotonic seconds.
"""

from __future__ import annotations

import math

from mptcp_throttler.shaping.cap import LiveCap
from mptcp_throttler.shaping.onset.rate_transition import MAX_DRAIN_SECONDS, RAMP_SECONDS

SHARE = 0.5
"""Of its rate, while a cap compensates."""
MIN_SECONDS = 0.05
"""What a cap owes at least, in time at its rate, before its class is lowered."""
MAX_SECONDS = 4.0
"""What it owes at most: nobody who shares the cap pays longer than twice that for what others sent."""
FORGOTTEN_SECONDS = 10.0
"""A debt too small to be compensated is forgotten after so long."""
PAUSE_SECONDS = 10.0
MARGIN = 1.5
"""Of what one transition sends by its own rates: they are estimates, and samples come late."""


class OvershootCompensation:
    """Of the caps of one planner."""

    def __init__(self) -> None:
        self._compensating: dict[LiveCap, None] = {}
        """Those whose class is not lowered yet have just begun."""

    def charge(self, cap: LiveCap, octets: float, now: float) -> None:
        """Charge bytes to a cap."""
        if cap not in self._compensating:
            if now - cap.owed_at > FORGOTTEN_SECONDS:
                cap.owed = 0.0
        elif cap.lowered is not None:
            _compensate(cap, now)
        # Samples of one cap's subflows do not come in the order of their times.
        cap.owed_at = max(cap.owed_at, now)
        cap.owed = min(cap.owed + 8 * octets, cap.wanted.ceil * MAX_SECONDS)
        if cap.owed > cap.wanted.ceil * MIN_SECONDS:
            self._compensating[cap] = None

    def changed(self, now: float) -> list[tuple[LiveCap, float | None]]:
        """Return the caps whose classes are to have another share of their rate from here on, and which; None: all."""
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
    """Count what the class has not sent since."""
    cap.owed -= cap.wanted.ceil * (1 - SHARE) * max(0.0, now - cap.owed_at)
    cap.owed_at = max(cap.owed_at, now)


def begin_allowance(cap: LiveCap, start: int, target: int, now: float) -> bool:
    """Begin a transition from *start* to *target* bits/s; return whether anything is left for it."""
    if cap.allowance_used is None or now - cap.allowance_used > PAUSE_SECONDS:
        # At the first rate while it drains, then along a geometric ramp.
        ramp = (start - target) / math.log(start / target) if start > target else start
        cap.allowance = MARGIN * (start * MAX_DRAIN_SECONDS + ramp * RAMP_SECONDS)
    cap.allowance_used = now
    return cap.allowance > 0


def spend_allowance(cap: LiveCap, octets: float, now: float) -> bool:
    """Take the bytes of a transition; return whether anything is left."""
    if cap.allowance_used is None:
        return True  # a policy came into force meanwhile
    cap.allowance -= 8 * octets
    cap.allowance_used = now
    return cap.allowance > 0
