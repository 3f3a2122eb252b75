"""How much of a shared cap each of its subflows may take. Pure: max-min fairness, as HTB's leaf queue would give.

The pacing rate of every user of a cap is set to one *level*. Were it the whole cap, the MPTCP scheduler would take each
subflow for that fast and give all of them too much; a plain n-th part would leave unused what idle ones do not take.
"""

from __future__ import annotations

from collections.abc import Iterable

HEADROOM = 1.1
"""A subflow that takes less than its level may want more any moment, and HTB holds the cap in any case."""


def level(ceil: int, rates: Iterable[int | None]) -> int:
    """Return the level, bits/s, of a cap of *ceil* bits/s.

    *rates* has an item for each user: what it takes while it has all it wants, or None while it would take more.
    """
    satisfied = sorted(rate for rate in rates if rate is not None)
    hungry = sum(1 for rate in rates if rate is None)
    left = float(ceil)
    while satisfied and satisfied[0] * (len(satisfied) + hungry) < left:
        left -= satisfied.pop(0)
    users = len(satisfied) + hungry
    return ceil if users == 0 else min(ceil, round(left / users * HEADROOM))
