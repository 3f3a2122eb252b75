"""Means for tables, with their interval, and what never happened. Pure.

What never happened is infinity: it is no time, it is in no mean, and it meets no aim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..statistics import mean_interval


def mean(values: Sequence[float], scale: float = 1.0, digits: int = 2) -> str:
    """Return the mean of *values* with its interval; where some are infinite, how many. Raises ValueError for none."""
    never = sum(not math.isfinite(value) for value in values)
    if never:
        return "never" if never == len(values) else f"never in {never} of {len(values)}"
    interval = mean_interval(values)
    half = "" if interval.half is None else f" ± {interval.half * scale:.{digits}f}"
    return f"{interval.mean * scale:.{digits}f}{half}"
