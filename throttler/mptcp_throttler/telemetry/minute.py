"""So many in a minute: what anybody can cause as often as they like is told of a few times, and counted elsewhere."""

from __future__ import annotations


class Minute:
    """Of one kind. Times are seconds since the epoch."""

    def __init__(self, most: int) -> None:
        """*most*: how many are told of in a minute of the clock."""
        self._most = most
        self._minute = 0
        self._count = 0
        """In that minute."""

    def has_room(self, now: float) -> bool:
        """Count one more at *now*; return whether it is among those that are told of."""
        minute = int(now // 60)
        if minute != self._minute:
            self._minute, self._count = minute, 0
        self._count += 1
        return self._count <= self._most
