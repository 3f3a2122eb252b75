"""What comes out of a replayed capture: entries of its timeline, and totals. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mptcp_common.units import approximate_size
from mptcp_throttler.mptcp.captured import Captured
from mptcp_throttler.mptcp.model import FourTuple, Segment, TcpFlag
from mptcp_throttler.policy.model import Direction

LARGEST_LEAP: Final = 1 << 30
"""Bytes: no window is larger (RFC 7323, 2.3), so that a sequence number further away is of another connection."""
_NUMBERS: Final = 1 << 32
_SYN, _ACK = int(TcpFlag.SYN), int(TcpFlag.ACK)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that was seen or decided."""

    time: float
    kind: str
    """segment, connection, subflow, changed, closed, refused, decided, lifted, budget, clock: docs/operator.md."""
    text: str
    token: int | None = None
    four_tuple: FourTuple | None = None
    path: str | None = None
    rule: str | None = None
    direction: Direction | None = None
    rate: int | None = None
    ceil: int | None = None
    captured: Captured | None = None
    """Of a segment."""
    from_client: bool = False


@dataclass(slots=True)
class Carried:
    """What one subflow carried: bytes of data, each once, as the kernel counts what is acknowledged.

    In each direction the highest sequence number counts, and of a segment what goes beyond it. So what is repeated, or
    captured on two interfaces, adds nothing. What comes behind a gap counts with the gap, and what fills it nothing
    more: it is late, or the capture lost it.
    """

    down: int = 0
    up: int = 0
    down_next: int | None = None
    """The sequence number behind the highest one that was seen; None before any."""
    up_next: int | None = None

    def begin(self, segment: Segment, from_client: bool) -> None:
        """Take the numbers from which both sides count on from *segment*, by which the subflow became active."""
        own = _first_byte(segment)
        other = segment.acknowledgment if segment.flags & _ACK else None
        self.up_next, self.down_next = (own, other) if from_client else (other, own)

    def data(self, segment: Segment, size: int, from_client: bool) -> bool:
        """Count *segment*, which has *size* bytes of data; return whether any are new."""
        end = (_first_byte(segment) + size) % _NUMBERS
        highest = self.up_next if from_client else self.down_next
        new = size
        if highest is not None:
            beyond = (end - highest + _NUMBERS // 2) % _NUMBERS - _NUMBERS // 2
            if -LARGEST_LEAP <= beyond <= 0:
                return False
            if 0 < beyond <= LARGEST_LEAP:
                new = beyond
        if from_client:
            self.up += new
            self.up_next = end
        else:
            self.down += new
            self.down_next = end
        return True

    def of(self, direction: Direction) -> int:
        return self.down if direction is Direction.DOWN else self.up

    def __str__(self) -> str:
        return f"{approximate_size(self.down)} down, {approximate_size(self.up)} up"


def _first_byte(segment: Segment) -> int:
    """Return the sequence number of its first byte of data: a SYN has one of its own (RFC 9293, 3.4)."""
    return (segment.sequence + bool(segment.flags & _SYN)) % _NUMBERS


@dataclass(slots=True)
class InForce:
    """A cap that is in force on a subflow."""

    rule: str
    since: float
    before: int
    """Bytes that the subflow had carried when it began."""


@dataclass(slots=True)
class Caps:
    """What one rule did."""

    count: int = 0
    """Subflows capped, each direction for itself, once for each time."""
    seconds: float = 0.0
    carried: int = 0
    """Bytes under the caps, as captured: the cap itself was not there."""


@dataclass(slots=True)
class Totals:
    """What came out of all."""

    segments: int = 0
    """Each once."""
    copies: int = 0
    """Segments that had been captured before."""
    connections: int = 0
    subflows: int = 0
    seconds: float = 0.0
    last: float = 0.0
    """When the last segment was captured, seconds since the epoch."""
    caps: dict[str, Caps] = field(default_factory=dict)
    older: int = 0
    """Subflows with MPTCP options whose SYN is not in the capture."""
