"""One cap, who uses it, and the HTB class that it needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Policy, Throttle
from mptcp_throttler.shaping.model import MTU, SEGMENT_SECONDS, ClassSpec

QUEUE_SECONDS = {Direction.DOWN: 0.0075, Direction.UP: 0.06}
"""How long a full leaf queue takes to drain. Towards the client short, so that losses and not the stack's limit on what
waits below it govern the congestion window: the scheduler takes window over RTT for the path's rate, and would hand a
capped subflow three times what it can send, at the cost of the other path (docs/design.md). From the client it is no
stack of ours that waits, and BBR there takes many losses for a policer's: it then keeps its rate for 48 round trips."""
QUEUE_FLOOR = 4
PACKETS_PER_SUBFLOW = 1
BURST_SECONDS = 0.002
GSO_FLOOR = 2 * MTU
MIN_RATE = 8_000
"""Bits/s, of a class that repays a debt: the least that a policy may ask for."""


def class_spec(minor: int, throttle: Throttle, room: int = 1, direction: Direction = Direction.DOWN) -> ClassSpec:
    """Return the HTB class for *throttle* shared by up to *room* subflows.

    Rates are rounded up to whole bytes per second, the kernel's unit.
    """
    rate, ceil = (-(-value // 8) * 8 for value in (throttle.rate, throttle.ceil))

    def burst(bits_per_second: int) -> int:
        return throttle.burst or max(2 * MTU, int(bits_per_second / 8 * BURST_SECONDS))

    return ClassSpec(
        minor=minor,
        rate=rate,
        ceil=ceil,
        burst=burst(rate),
        cburst=burst(ceil),
        quantum=min(60_000, max(MTU, rate // 8 // 100)),
        queue_packets=min(
            1000, max(QUEUE_FLOOR, int(ceil / 8 * QUEUE_SECONDS[direction] / MTU), PACKETS_PER_SUBFLOW * room)
        ),
    )


def gso_limit(policy: Policy, present: int) -> int:
    """Return the largest GSO segment in bytes that the interface should build under *policy*, never above *present*."""
    rules = [rule for rule in policy.rules if Direction.DOWN in rule.directions]
    throttles = [rule.throttle for rule in rules]
    throttles += [step.throttle for rule in rules if rule.budget is not None for step in rule.budget.steps]
    ceils = [throttle.ceil for throttle in throttles if throttle is not None]
    if not ceils:
        return present
    return min(present, max(GSO_FLOOR, int(min(ceils) / 8 * SEGMENT_SECONDS)))


@dataclass(slots=True)
class Cap:
    """A cap in use: its class and the subflows sent to it. Others read it; only the planner changes it."""

    minor: int
    direction: Direction
    throttle: Throttle
    """What the class has."""
    wanted: Throttle
    """What it is to have when the transitions of its users are complete."""
    mark: int = 0
    """Mark bits of its rule, for the entries."""
    users: set[FourTuple] = field(default_factory=set)
    pending: set[FourTuple] = field(default_factory=set)
    """Users whose transition is not complete."""
    falling: set[FourTuple] = field(default_factory=set)
    """Those of them that were users already when the cap got a lower throttle: it waits for these alone."""
    held: set[FourTuple] = field(default_factory=set)
    """Subflows on their way to another cap whose packets are still sent to this one's class."""
    interim: dict[FourTuple, int] = field(default_factory=dict)
    """Bits/s that users have meanwhile, on their way down to the throttle."""
    young: set[FourTuple] = field(default_factory=set)
    """Users that came to it young, and without a transition, since somebody asked last."""
    lowered: float | None = None
    """While it repays a debt: the share of its rate that the class has."""
    idle_since: float = 0.0
    room: int = 1
    """For how many users the queue is sized: a power of two, so that it seldom changes."""

    @property
    def ceil(self) -> int:
        """Bits/s that all users together may have at last, or while it repays a debt."""
        return self.wanted.ceil if self.lowered is None else max(MIN_RATE, int(self.wanted.ceil * self.lowered))

    def usual(self, rate: int) -> int:
        """Return what *rate* is while the cap repays no debt."""
        return rate if self.lowered is None else round(rate / self.lowered)

    def make_room(self) -> bool:
        """Fit the room to the users; return whether it changed."""
        before = self.room
        while self.room < len(self.users):
            self.room *= 2
        while self.room > 1 and self.room > 4 * len(self.users):
            self.room //= 2
        return self.room != before

    @property
    def spec(self) -> ClassSpec:
        throttle = self.throttle
        if self.lowered is not None:
            rate, ceil = (max(MIN_RATE, int(each * self.lowered)) for each in (throttle.rate, throttle.ceil))
            throttle = replace(throttle, rate=rate, ceil=ceil)
        if self.interim:
            rate = max(throttle.rate, sum(self.interim.values()))
            throttle = replace(throttle, rate=rate, ceil=max(throttle.ceil, rate), burst=None)
        return class_spec(self.minor, throttle, self.room, self.direction)
