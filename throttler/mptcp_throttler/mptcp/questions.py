"""Which subflows the kernel is to be asked about, and when: what the wire claims of them would take something away.

While path-manager events arrive they bring most answers by themselves. What is asked then is whether the kernel has a
subflow that only packets have shown, and whether it still has one that was reset: a connection that its client gives up
(MP_FASTCLOSE) has lost its token before its subflows are closed, and the kernel tells of none of them. Where no events
arrive, every end and every change on the wire is a question.

A question costs one look-up of a socket, some 25 microseconds. However many segments claim something of a subflow, it
is asked about at most three times in a second: at once, and twice more, for the frame may be read before the kernel has
acted on it. All questions together take at most :data:`RATE` look-ups a second, one percent of a processor.
"""

from __future__ import annotations

from typing import Final

from mptcp_throttler.mptcp.model import FourTuple

RATE: Final = 400.0
"""Look-ups a second."""
BURST: Final = 64
"""Look-ups at once: some 2 ms."""
MAX_WAITING: Final = 1024
"""Subflows. What is claimed of more than these waits for the next dump of all sockets."""
_AGAIN: Final = (0.1, 0.9)
"""Seconds from one look-up of a subflow to the next."""


class Questions:
    """Times are monotonic seconds, and arguments."""

    __slots__ = ("_allowed", "_as_of", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[FourTuple, tuple[float, int]] = {}
        """When each is due, and how often it was asked about."""
        self._allowed = float(BURST)
        self._as_of = float("-inf")

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, four_tuple: FourTuple) -> None:
        """Have the kernel asked about the subflow, if it is not to be already."""
        if len(self._waiting) < MAX_WAITING:
            self._waiting.setdefault(four_tuple, (float("-inf"), 0))

    def take(self, now: float) -> tuple[FourTuple, ...]:
        """Return those that are to be looked up now. Each comes again until it was looked up three times."""
        self._allowed = min(float(BURST), self._allowed + RATE * max(0.0, now - self._as_of))
        self._as_of = now
        due = [each for each, (time, _) in self._waiting.items() if time <= now][: int(self._allowed)]
        self._allowed -= len(due)
        for four_tuple in due:
            times = self._waiting.pop(four_tuple)[1]
            if times < len(_AGAIN):
                self._waiting[four_tuple] = (now + _AGAIN[times], times + 1)
        return tuple(due)

    def drop(self, four_tuple: FourTuple) -> None:
        """Ask no more about a subflow that ended."""
        self._waiting.pop(four_tuple, None)

    def pause(self, now: float) -> float | None:
        """Return the seconds until the next is to be looked up; None where nothing is."""
        if not self._waiting:
            return None
        due = min(time for time, _ in self._waiting.values()) - now
        return max(due, 0.0 if self._allowed >= 1 else (1 - self._allowed) / RATE)
