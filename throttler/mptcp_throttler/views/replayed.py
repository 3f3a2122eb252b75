"""What comes out of a replayed capture: entries of its timeline, and totals. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from mptcp_common.units import approximate_size
from mptcp_throttler.mptcp.captured import Captured
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction


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
    """What one subflow carried, or all under one rule: bytes of data as seen on the wire, repetitions included."""

    down: int = 0
    up: int = 0

    def of(self, direction: Direction) -> int:
        return self.down if direction is Direction.DOWN else self.up

    def __str__(self) -> str:
        return f"{approximate_size(self.down)} down, {approximate_size(self.up)} up"


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
    connections: int = 0
    subflows: int = 0
    seconds: float = 0.0
    last: float = 0.0
    """When the last segment was captured, seconds since the epoch."""
    caps: dict[str, Caps] = field(default_factory=dict)
    older: int = 0
    """Subflows with MPTCP options whose SYN is not in the capture."""
