"""How often something took how long, in buckets, since the daemon's start."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any


class Histogram:
    """*bounds* are the upper ends of the buckets, seconds, ascending; above the last there is one without an end."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def count(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def as_json(self) -> dict[str, Any]:
        """Return how many took at most ``le`` seconds each, how many in all, and the sum of their seconds."""
        total, counts = 0, []
        for count in self._counts:
            total += count
            counts.append(total)
        return {"le": list(self._bounds), "count": counts[:-1], "total": total, "sum": self._sum}
