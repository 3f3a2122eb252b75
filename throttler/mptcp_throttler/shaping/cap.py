"""A cap in use and its members, and the minor numbers of the HTB classes that caps have. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Throttle
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.model import FIRST_MINOR, LAST_MINOR, ClassSpec, class_spec

MIN_RATE = 8_000
"""Bits/s, of a class that compensates an overshoot: the least that a policy may ask for."""
PATHS_SHARE = 128
"""One number in so many is left to caps that a whole path shares: a reload from caps of clients, which have all others,
to one of a path is in force at once, and gives theirs back."""


class PlanError(Exception):
    """The plan cannot be made: the message says what ran out."""


class Level(NamedTuple):
    """What each user of one cap may have (``onset.share``)."""

    computed: float
    """When."""
    users: int
    rate: int
    """Bits/s of each user."""
    turn: float
    """Seconds in which the cap sends a segment of each user that has data waiting."""


@dataclass(slots=True, eq=False)
class Member:
    """What the planner knows of one subflow that has a cap, or rests, or still has an entry."""

    four_tuple: FourTuple
    token: int | None = None
    """Of its connection; None once it has ended."""
    cap: LiveCap | None = None
    """The cap that is on it, or will be when its onset is complete."""
    held_by: LiveCap | None = None
    """Another cap, to whose class its entry sends it until its onset is complete or, once it has ended, it is idle."""
    in_class: bool = False
    """Its socket was accepted into the class of its cap: its first segments go there without an entry."""
    young: bool = False
    """It came to its cap young, and without a transition, and nobody has sampled it since."""
    rests: bool = False
    """The scheduler is to give it nothing."""
    decided: float | None = None
    """When its cap, or its cap's rate, was decided, seconds of the planner's clock; None once that is in force."""


@dataclass(slots=True, eq=False)
class LiveCap:
    """A cap in use: its class, and the subflows sent to it. Others read it; only the planner changes it."""

    scope: ScopeKey
    minor: int
    direction: Direction
    throttle: Throttle
    """What the class has."""
    wanted: Throttle
    """What it must have when the transitions of its users are complete."""
    mark: int = 0
    """Mark bits of its rule, for the entries."""
    users: dict[FourTuple, Member] = field(default_factory=dict)
    pending: set[FourTuple] = field(default_factory=set)
    """Users whose transition is not complete."""
    falling: set[FourTuple] = field(default_factory=set)
    """Those of them that were users already when the cap got a lower throttle: only these are waited for."""
    unsettled: set[Member] = field(default_factory=set)
    """Users on which it is not in force yet, or not with its present rate."""
    interim: dict[FourTuple, int] = field(default_factory=dict)
    """Bits/s that users have meanwhile, on their way down to the throttle."""
    held: int = 0
    """How many subflows that are no users have entries to its class."""
    idle_since: float = 0.0
    room: int = 1
    """For how many users the queue is sized: a power of two, so that it seldom changes."""
    level: Level | None = None
    lowered: float | None = None
    """While it compensates an overshoot: the share of its rate that the class has."""
    owed: float = 0.0
    """Bits that got past its class, and when that was so (``onset.overshoot``)."""
    owed_at: float = 0.0
    allowance: float = 0.0
    """Bits that its transitions may still send, and when the last of them began or sent."""
    allowance_used: float | None = None

    @property
    def ceil(self) -> int:
        """Bits/s that all users together may have at last, or while it compensates an overshoot."""
        return self.wanted.ceil if self.lowered is None else max(MIN_RATE, int(self.wanted.ceil * self.lowered))

    def usual(self, rate: int) -> int:
        """Return what *rate* is while the cap compensates nothing."""
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
            throttle = throttle.at(rate, ceil=ceil)
        if self.interim:
            rate = max(throttle.rate, sum(self.interim.values()))
            throttle = throttle.at(rate, ceil=max(throttle.ceil, rate), burst=None)
        return class_spec(self.minor, throttle, self.room, self.direction)

    def forget_overshoot(self) -> None:
        """Begin anew: nothing is owed, and no level is known."""
        self.level = self.lowered = self.allowance_used = None
        self.owed = 0.0


class ClassNumbers:
    """The minor numbers of one qdisc's classes."""

    def __init__(self, htb_major: int) -> None:
        self._htb_major = htb_major
        self._used: set[int] = set()
        self._next = FIRST_MINOR

    def take(self, found: int | None, in_kernel: Container[int], *, of_path: bool) -> int:
        """Return a number for a cap: *found*, if a class *in_kernel* has it and no cap; else one that no cap has and,
        if possible, no class in the kernel either. *of_path*: a whole path shares the cap. Raises :class:`PlanError`.
        """
        size = LAST_MINOR - FIRST_MINOR + 1
        left = size - (FIRST_MINOR <= self._htb_major <= LAST_MINOR) - len(self._used)
        if left <= (0 if of_path else size // PATHS_SHARE):
            raise PlanError(f"no HTB class is left: {len(self._used)} caps are in use; share caps by path or by client")
        if found is None or found in self._used or found not in in_kernel:
            found = self._free(in_kernel)
        self._used.add(found)
        return found

    def give_back(self, minor: int) -> None:
        self._used.discard(minor)

    def _free(self, in_kernel: Container[int]) -> int:
        size = LAST_MINOR - FIRST_MINOR + 1
        for avoid in (in_kernel, ()):
            for step in range(size):
                minor = FIRST_MINOR + (self._next - FIRST_MINOR + step) % size
                # The root's handle would be that of a class's queue.
                if minor not in self._used and minor not in avoid and minor != self._htb_major:
                    self._next = minor + 1
                    return minor
        raise AssertionError("a number is free, and was not found")
