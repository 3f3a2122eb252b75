"""Which caps are decided and do not hold yet: their transition is not complete, or their class still falls to them.

A subflow on an upload gets its entry at the first step of its ramp; the class passes more than the cap until the last.
"""

from __future__ import annotations

from collections.abc import Iterator

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.shaping.plan import Planner


def is_landing(planner: Planner, four_tuple: FourTuple) -> bool:
    """Tell whether a subflow's cap is still to come into force."""
    cap = planner.soft_cap(four_tuple)
    return planner.is_pending(four_tuple) or (cap is not None and four_tuple in cap.interim)


def landing_subflows(planner: Planner) -> Iterator[FourTuple]:
    """Yield all subflows of which :func:`is_landing` is true, each once.

    And those on a ramp to a cap that holds at once by now: until the ramp's next step, which ends it.
    """
    for cap in planner.caps.values():
        if cap.pending or cap.interim:
            yield from cap.pending | cap.interim.keys()
