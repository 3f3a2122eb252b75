"""From verdicts to the HTB classes and set entries they need. Pure: no clock, no kernel.

A cap (:class:`~mptcp_throttler.policy.model.ScopeKey`) has one class. The classes of caps shared by a whole path
are made as soon as the policy is known, so that a connection that comes later pays nothing for them; those of a
client or a connection are made when first needed and go when nobody has used them for a while.

A class keeps its minor number for as long as it lives, across reloads and, by :meth:`Planner.adopt`, across
restarts of the daemon: the entries found in the kernel say which subflow was sent to which class.

Where caps can land softly (:attr:`Planner.soft`), a subflow that comes to a cap gets its entry, and a cap that falls
its new rate, only once :meth:`Planner.landed` was called for the subflows concerned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ..mptcp.model import FourTuple
from ..policy.model import Direction, LandingKind, Policy, Rule, ScopeKey, Share, Throttle, Verdict
from .delta import DeltaTracker
from .landing import GENTLE
from .model import FIRST_MINOR, LAST_MINOR, MTU, SEGMENT_SECONDS, ClassSpec, Ownership, Target

QUEUE_SECONDS = {Direction.DOWN: 0.0075, Direction.UP: 0.025}
"""How long a full leaf queue takes to drain. Towards the client short, so that losses and not the stack's limit on what
waits below it govern the congestion window: the scheduler takes window over RTT for the path's rate, and would hand a
capped subflow three times what it can send, at the cost of the other path (docs/design.md). From the client it is no
stack of ours that waits."""
QUEUE_FLOOR = 4
PACKETS_PER_SUBFLOW = 1
BURST_SECONDS = 0.002
GSO_FLOOR = 2 * MTU
IDLE_SECONDS = 60.0


class PlanError(Exception):
    """The plan cannot be made: the message says what ran out."""


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
class _Cap:
    """A cap in use: its class and the subflows sent to it."""

    minor: int
    direction: Direction
    throttle: Throttle
    """What the class has."""
    wanted: Throttle
    """What it is to have when its users have landed."""
    users: set[FourTuple] = field(default_factory=set)
    idle_since: float = 0.0
    ramp: int | None = None
    """Bits/s that the class has meanwhile, on its way down to its throttle."""
    room: int = 1
    """For how many users the queue is sized: a power of two, so that it seldom changes."""

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
        if self.ramp is not None:
            throttle = replace(throttle, rate=self.ramp, ceil=self.ramp, burst=None)
        return class_spec(self.minor, throttle, self.room, self.direction)


class Planner:
    """Keeps the desired classes and entries of one direction in step with the policy and the verdicts."""

    def __init__(self, ownership: Ownership, direction: Direction = Direction.DOWN) -> None:
        self.ownership = ownership
        self.direction = direction
        self.classes: DeltaTracker[int, ClassSpec] = DeltaTracker(ClassSpec.same_as)
        self.entries: DeltaTracker[FourTuple, Target] = DeltaTracker()
        self._caps: dict[ScopeKey, _Cap] = {}
        self._cap_of: dict[FourTuple, ScopeKey] = {}
        self._owner: dict[FourTuple, int] = {}
        self._connections: dict[int, frozenset[FourTuple]] = {}
        self._marks: dict[str, int] = {}
        self._rules: dict[str, Rule] = {}
        self._dry_run = False
        self._used: set[int] = set()
        self._next = FIRST_MINOR
        self.soft = False
        """Somebody looks after :attr:`landing`."""
        self.landing: set[FourTuple] = set()
        """Subflows whose cap waits until they have landed."""
        self.moved: set[FourTuple] = set()
        """Subflows that came to a cap, left one, or whose cap changed, since somebody emptied this."""

    def minor_of(self, scope: ScopeKey) -> int | None:
        """Return the class of *scope*, None while it has none."""
        cap = self._caps.get(scope)
        return None if cap is None else cap.minor

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force. Verdicts under it must follow for every connection."""
        self._dry_run = policy.dry_run
        self._rules = {rule.name: rule for rule in policy.rules if self.direction in rule.directions}
        self._marks = {rule.name: self.ownership.mark_of_rule(i) for i, rule in enumerate(policy.rules)}
        for scope, cap in self._caps.items():
            rule = self._rules.get(scope.rule)
            if rule is not None and rule.throttle is not None:
                self._retune(cap, rule.throttle)

    def adopt(self, classes: Mapping[int, ClassSpec], entries: Mapping[FourTuple, Target]) -> None:
        """Take what the kernel holds as the actual state; later verdicts reuse the classes found there."""
        self.classes.observed(classes)
        self.entries.observed(entries)

    def prepare_path_classes(self, now: float) -> None:
        """Make the classes that later connections will share. At start, after the verdicts on known connections."""
        if self._dry_run:
            return
        for rule in self._rules.values():
            if rule.throttle is not None and rule.throttle.share is Share.PATH:
                self._cap(ScopeKey(rule.name, Share.PATH, direction=self.direction), rule.throttle, None, now)

    def set_verdicts(self, token: int, verdicts: Iterable[Verdict], now: float) -> None:
        """Replace what is desired for the connection *token* by *verdicts*, one for each active subflow;
        those on the other direction are not ours.

        Raises :class:`PlanError` where no class is left; what was capped before that verdict stays capped.
        """
        capped = set()
        try:
            for verdict in verdicts:
                if verdict.direction is not self.direction or self._dry_run:
                    continue
                if verdict.scope is None or verdict.throttle is None:
                    continue
                self._send(verdict.four_tuple, verdict.scope, verdict.throttle, now)
                self._owner[verdict.four_tuple] = token
                capped.add(verdict.four_tuple)
        finally:
            for four_tuple in self._connections.pop(token, frozenset()) - capped:
                # A client that reuses a port soon has the same four-tuple in a newer connection.
                if self._owner.get(four_tuple) == token:
                    self._release(four_tuple, now)
            if capped:
                self._connections[token] = frozenset(capped)

    def forget(self, token: int, now: float) -> None:
        self.set_verdicts(token, (), now)

    def expire(self, now: float) -> None:
        """Drop the classes that no rule can use any more, and those of clients and connections long gone."""
        for scope, cap in list(self._caps.items()):
            if cap.users:
                continue
            rule = self._rules.get(scope.rule)
            wanted = rule is not None and rule.throttle is not None and rule.throttle.share is scope.share
            if wanted and not self._dry_run and (scope.share is Share.PATH or now - cap.idle_since < IDLE_SECONDS):
                continue
            del self._caps[scope]
            self._used.discard(cap.minor)
            self.classes.drop(cap.minor)

    def _send(self, four_tuple: FourTuple, scope: ScopeKey, throttle: Throttle, now: float) -> None:
        previous = self._cap_of.get(four_tuple)
        if previous is not None and previous != scope:
            self._release(four_tuple, now)
        cap = self._cap(scope, throttle, four_tuple, now)
        self._retune(cap, throttle)
        target = Target(cap.minor, self._marks[scope.rule])
        if previous != scope:
            cap.users.add(four_tuple)
            self._fit(cap)
            self._cap_of[four_tuple] = scope
            self.moved.add(four_tuple)
            found = self.entries.actual.get(four_tuple)
            if self._lands(throttle) and (found is None or found.minor != cap.minor):
                self.landing.add(four_tuple)
        if four_tuple not in self.landing or four_tuple in self.entries.desired:
            self.entries.want(four_tuple, target)

    def _retune(self, cap: _Cap, throttle: Throttle) -> None:
        """Give *cap* another throttle: now, or when the subflows that it would stop short have landed."""
        if cap.wanted == throttle:
            return
        cap.wanted = throttle
        self.moved |= cap.users
        if cap.users and self._lands(throttle) and throttle.ceil < cap.throttle.ceil * GENTLE:
            self.landing |= cap.users
        else:
            self._settle(cap)

    def _lands(self, throttle: Throttle) -> bool:
        return self.soft and throttle.landing is LandingKind.SOFT

    def _settle(self, cap: _Cap) -> None:
        cap.throttle = cap.wanted
        self.classes.want(cap.minor, cap.spec)

    def landed(self, four_tuple: FourTuple) -> None:
        """Cap a subflow whose landing was waited for; unknown ones are fine."""
        scope = self._cap_of.get(four_tuple)
        if four_tuple not in self.landing or scope is None:
            return
        self.landing.discard(four_tuple)
        cap = self._caps[scope]
        if cap.throttle != cap.wanted and not cap.users & self.landing:
            self._settle(cap)
        self.entries.want(four_tuple, Target(cap.minor, self._marks[scope.rule]))

    def ramp(self, four_tuple: FourTuple, rate: int | None) -> None:
        """Give the class of a capped subflow another *rate*, bits/s, for the time being; None ends it."""
        scope = self._cap_of.get(four_tuple)
        if scope is not None:
            cap = self._caps[scope]
            cap.ramp = rate
            self.classes.want(cap.minor, cap.spec)

    def ceil_of(self, four_tuple: FourTuple) -> int | None:
        """Return the ceil, bits/s, of the soft cap that is or will be on a subflow; None where there is none."""
        scope = self._cap_of.get(four_tuple)
        wanted = None if scope is None else self._caps[scope].wanted
        return wanted.ceil if wanted is not None and wanted.landing is LandingKind.SOFT else None

    def sharers(self, four_tuple: FourTuple) -> frozenset[FourTuple]:
        """Return all subflows that share the cap of *four_tuple*, which included."""
        scope = self._cap_of.get(four_tuple)
        return frozenset() if scope is None else frozenset(self._caps[scope].users)

    def shared_caps(self) -> list[frozenset[FourTuple]]:
        """Return the users of each cap that has more than one."""
        return [frozenset(cap.users) for cap in self._caps.values() if len(cap.users) > 1]

    def _release(self, four_tuple: FourTuple, now: float) -> None:
        scope = self._cap_of.pop(four_tuple, None)
        self._owner.pop(four_tuple, None)
        if scope is not None:
            cap = self._caps[scope]
            cap.users.discard(four_tuple)
            cap.idle_since = now
            self.moved.add(four_tuple)
            self.landing.discard(four_tuple)
            # Those that are still on their way down say so anew.
            if cap.ramp is not None:
                cap.ramp = None
                self.classes.want(cap.minor, cap.spec)
            if cap.throttle != cap.wanted and not cap.users & self.landing:
                self._settle(cap)
            self._fit(cap)
        self.entries.drop(four_tuple)

    def _cap(self, scope: ScopeKey, throttle: Throttle, four_tuple: FourTuple | None, now: float) -> _Cap:
        cap = self._caps.get(scope)
        if cap is None:
            found = None if four_tuple is None else self.entries.actual.get(four_tuple)
            if found is not None and found.minor in self.classes.actual and found.minor not in self._used:
                minor = found.minor
            else:
                minor = self._free_minor()
            cap = self._caps[scope] = _Cap(minor, self.direction, throttle, throttle, idle_since=now)
            self._used.add(minor)
            self.classes.want(minor, cap.spec)
        return cap

    def _fit(self, cap: _Cap) -> None:
        if cap.make_room():
            self.classes.want(cap.minor, cap.spec)

    def _free_minor(self) -> int:
        """Return a minor number that no cap has and, if possible, that no class in the kernel has either."""
        size = LAST_MINOR - FIRST_MINOR + 1
        taken = self._used | {self.ownership.htb_major}  # whose handle would be the root's
        for avoid in (taken | self.classes.actual.keys(), taken):
            if len(avoid) < size + 1:
                for step in range(size):
                    minor = FIRST_MINOR + (self._next - FIRST_MINOR + step) % size
                    if minor not in avoid:
                        self._next = minor + 1
                        return minor
        raise PlanError(f"no HTB class is left: {size} caps are in use; share caps by path or by client")
