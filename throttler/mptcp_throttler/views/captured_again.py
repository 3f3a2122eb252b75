"""Which segments were captured before: on all interfaces a packet is there once for each that it passes. Pure.

A bridge, a VLAN or a bond lies on another interface, and a capture of all has what passes on both. Such a copy has the
same ends, the same TCP header, but for the checksum, which may be filled in between, and the same IP packet's length
and identification (RFC 791). What TCP sends again has another identification, where packets have one, and by its
timestamps another header (RFC 7323, 3). Ends need not be compared: ports and both sequence numbers are in the header.

Where packets have no identification two things may come again by themselves: within a millisecond an acknowledgment
without data (Multipath TCP sends the same one twice), later data that nobody acknowledged, of a sender without
timestamps. These count as copies where another segment was captured twice before, as the SYN is.
"""

from __future__ import annotations

from typing import Final

from mptcp_throttler.mptcp.captured import Captured
from mptcp_throttler.mptcp.model import TcpFlag

REMEMBERED: Final = 8_192
"""Segments within which a copy is found; up to twice as many are kept, some 250 bytes each."""
WITHIN_SECONDS: Final = 1.0
"""A copy comes sooner: it waits in a queue at the most, and a handshake is repeated after that time (RFC 6298, 2.1)."""
SOONEST_REPEATED: Final = 0.005
"""Seconds until TCP sends data again that nobody acknowledged, at the least: a probe comes two round trips later (RFC
8985, 7.2). A packet passes from one interface to another in less."""
_Kept = dict[bytes, tuple[float, bool]]


class CapturedAgain:
    """The last segments, when they were there, and whether they were taken in."""

    def __init__(self) -> None:
        # In two halves, of which the older one is dropped whole: a dict is slow in giving up its first key.
        self._recent: _Kept = {}
        self._before: _Kept = {}
        self._twice = False
        """Something was captured twice that nobody sends twice."""

    def note(self, captured: Captured, taken: bool) -> tuple[bool, bool]:
        """Note a segment, which will be taken in or not; return whether it was there before, and was taken in then."""
        key, time = captured.identity, captured.segment.time
        earlier = self._recent.get(key) or self._before.get(key)
        if earlier is not None and abs(time - earlier[0]) >= WITHIN_SECONDS:
            earlier = None
        if earlier is not None and not self._twice:
            self._twice = _is_sent_once(captured, abs(time - earlier[0]))
            earlier = earlier if self._twice else None
        if earlier is None or taken > earlier[1]:
            self._recent[key] = time, taken
            if len(self._recent) >= REMEMBERED:
                self._before, self._recent = self._recent, {}
        return (False, False) if earlier is None else (True, earlier[1])

    def forget(self) -> None:
        """What follows was captured at another time."""
        self._recent, self._before, self._twice = {}, {}, False


def _is_sent_once(captured: Captured, after: float) -> bool:
    """Return whether another packet of the same identity, *after* so many seconds, is none that TCP sent again."""
    segment = captured.segment
    identification = captured.identity[2:4] if len(segment.source) == 4 else b"\0\0"
    if identification != b"\0\0" or segment.flags & TcpFlag.SYN:
        return True
    return captured.payload > 0 and after < SOONEST_REPEATED
