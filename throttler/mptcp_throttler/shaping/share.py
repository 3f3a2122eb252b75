"""How much of a shared cap each of its subflows may take. Pure: max-min fairness, as HTB's leaf queue would give.

The pacing rate of every user of a cap is set to one *level*. Were it the whole cap, the MPTCP scheduler would take each
subflow for that fast and give all of them too much; a plain n-th part would leave unused what idle ones do not take.
"""

from __future__ import annotations

from collections.abc import Iterable

HEADROOM = 1.1
"""A subflow that takes less than its level may want more any moment, and HTB holds the cap in any case."""


def max_min_level(ceil: int, demands: Iterable[int | None]) -> int:
    """Return the level, bits/s, of a cap of *ceil* bits/s. O(n log n) for n users.

    *demands* has an item for each user: the bits/s that it takes while nothing waits, or None while it is backlogged.
    """
    satisfied, backlogged = [], 0
    for demand in demands:
        if demand is None:
            backlogged += 1
        else:
            satisfied.append(demand)
    satisfied.sort()
    left, users = float(ceil), len(satisfied) + backlogged
    for demand in satisfied:
        if demand * users >= left:
            break
        left -= demand
        users -= 1
    return ceil if users == 0 else min(ceil, round(left / users * HEADROOM))
