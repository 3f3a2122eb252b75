"""What the rate transitions of one cap may send past it: as much as one of them needs, for all together. Pure.

A cap that holds is not to be broken by every subflow that comes to it in full flight. The first one brings an
allowance; those that come while it lasts share it, and once it is used up, the cap begins at once on all of them. There
is a new one when nobody has used the last one for ``PAUSE_SECONDS``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mptcp_throttler.shaping.rate_transition import MAX_DRAIN_SECONDS, RAMP_SECONDS

PAUSE_SECONDS = 10.0
MARGIN = 1.5
"""Of what one transition sends by its own rates: they are estimates, and samples come late."""


@dataclass(slots=True)
class _Allowance:
    bits: float
    used: float
    """When a transition used it last."""


class Allowances:
    """By the minor number of a cap's class. Times in monotonic seconds."""

    def __init__(self) -> None:
        self._allowances: dict[int, _Allowance] = {}

    def begin(self, minor: int, start: int, target: int, now: float) -> bool:
        """Begin a transition from *start* to *target* bits/s; return whether anything is left for it."""
        known = self._allowances.get(minor)
        if known is None or now - known.used > PAUSE_SECONDS:
            known = self._allowances[minor] = _Allowance(_bits(start, target), now)
        known.used = now
        return known.bits > 0

    def spend(self, minor: int, octets: float, now: float) -> bool:
        """Take the bytes of a transition; return whether anything is left."""
        known = self._allowances.get(minor)
        if known is None:
            return True
        known.bits -= 8 * octets
        known.used = now
        return known.bits > 0

    def forget(self) -> None:
        self._allowances.clear()


def _bits(start: int, target: int) -> float:
    """Return what a transition sends: at *start* while it drains, then along a geometric ramp."""
    ramp = (start - target) / math.log(start / target) if start > target else start
    return MARGIN * (start * MAX_DRAIN_SECONDS + ramp * RAMP_SECONDS)
