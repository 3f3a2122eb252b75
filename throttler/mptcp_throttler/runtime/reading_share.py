"""How much of a processor reading captured segments for nothing takes at the most: anybody can send such segments.

The loop goes before all ordinary processes (``kernel.scheduling``), so that a flood which it read as fast as it can
would take the processor from the proxy. Subflows that become active are no flood: each allows for what is read of it,
so that clients who really come are read of. What is not read in time the kernel drops and counts, and a
resync makes it good; what the kernel itself tells of, a join that it took for one, is read all the while
(``runtime.observe``).
"""

from __future__ import annotations

from typing import Final

SHARE: Final = 0.5
"""Of a processor, in the long run, with what follows at once from what was read: not resyncs, nor decisions of many."""
SECONDS_PER_SUBFLOW: Final = 0.002
"""Of processor time, for each that becomes active: several times what its ten segments or so take, and what follows."""
BURST_SECONDS: Final = 0.5
"""Of processor time at once: some 15,000 segments, as of thousands of connections that come together."""


class ReadingShare:
    """Of all captures together. Times are seconds, and arguments."""

    __slots__ = ("_allowed", "_as_of")

    def __init__(self, now: float) -> None:
        self._allowed, self._as_of = BURST_SECONDS, now

    def allow_for(self, subflows: int) -> None:
        """Allow for so many subflows that became active."""
        self._allowed = min(BURST_SECONDS, self._allowed + SECONDS_PER_SUBFLOW * subflows)

    def pause(self, now: float, worked: float) -> float:
        """Return for how long to read nothing more after reading for *worked* seconds of a processor, until *now*."""
        self._allowed = min(BURST_SECONDS, self._allowed + SHARE * (now - self._as_of)) - worked
        self._as_of = now
        return max(0.0, -self._allowed / SHARE)
