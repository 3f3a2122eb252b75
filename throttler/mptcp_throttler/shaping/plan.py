"""From verdicts to the HTB classes and set entries they need. Pure: no clock, no kernel.

A cap (:class:`~mptcp_throttler.policy.model.ScopeKey`) has one class. The classes of caps shared by a whole path
are made as soon as the policy is known, so that a connection that comes later pays nothing for them; those of a
client or a connection are made when first needed and go when nobody has used them for a while.

A class keeps its minor number for as long as it lives, across reloads and, by :meth:`Planner.adopt`, across
restarts of the daemon: the entries found in the kernel say which subflow was sent to which class.

Where caps begin in a rate transition (:attr:`Planner.soft_caps`), a subflow that comes to a cap gets its entry, and a
cap that falls its new rate, only once :meth:`Planner.complete` was called for the subflows concerned. Everything about
a transition goes through this interface: :meth:`Planner.take_moved`, :meth:`Planner.soft_cap`,
:meth:`Planner.complete` and :meth:`Planner.set_interim`. Each costs O(1) for a subflow, however many share its cap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Onset, Policy, Rule, ScopeKey, Share, Throttle, Verdict
from mptcp_throttler.shaping.delta import DeltaTracker
from mptcp_throttler.shaping.model import FIRST_MINOR, LAST_MINOR, MTU, SEGMENT_SECONDS, ClassSpec, Ownership, Target
from mptcp_throttler.shaping.rate_transition import GENTLE_FALL

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
    idle_since: float = 0.0
    room: int = 1
    """For how many users the queue is sized: a power of two, so that it seldom changes."""

    @property
    def ceil(self) -> int:
        """Bits/s that all users together may have at last."""
        return self.wanted.ceil

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
        if self.interim:
            rate = max(throttle.rate, sum(self.interim.values()))
            throttle = replace(throttle, rate=rate, ceil=max(throttle.ceil, rate), burst=None)
        return class_spec(self.minor, throttle, self.room, self.direction)


class Planner:
    """Keeps the desired classes and entries of one direction in step with the policy and the verdicts."""

    def __init__(self, ownership: Ownership, direction: Direction = Direction.DOWN) -> None:
        self.ownership = ownership
        self.direction = direction
        self.classes: DeltaTracker[int, ClassSpec] = DeltaTracker(ClassSpec.same_as)
        self.entries: DeltaTracker[FourTuple, Target] = DeltaTracker()
        self._caps: dict[ScopeKey, Cap] = {}
        self._cap_of: dict[FourTuple, ScopeKey] = {}
        self._owner: dict[FourTuple, int] = {}
        self._connections: dict[int, tuple[FourTuple, ...]] = {}
        self._marks: dict[str, int] = {}
        self._rules: dict[str, Rule] = {}
        self._dry_run = False
        self._used: set[int] = set()
        self._next = FIRST_MINOR
        self.soft_caps = False
        """Somebody runs the transitions of caps that are to begin softly."""
        self._moved: set[FourTuple] = set()
        self._shared: dict[int, Cap] = {}
        """By minor number, the caps with more than one user."""
        self._held_by: dict[FourTuple, Cap] = {}

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
            cap.mark = self._marks.get(scope.rule, cap.mark)
            rule = self._rules.get(scope.rule) if scope.of_rule else None
            if rule is not None and rule.throttle is not None and rule.throttle.share is scope.share:
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
            for four_tuple in self._connections.pop(token, ()):
                # A client that reuses a port soon has the same four-tuple in a newer connection.
                if four_tuple not in capped and self._owner.get(four_tuple) == token:
                    self._release(four_tuple, now)
            if capped:
                self._connections[token] = tuple(capped)

    def forget(self, token: int, now: float) -> None:
        self.set_verdicts(token, (), now)

    def expire(self, now: float) -> None:
        """Drop the classes that no rule can use any more, and those of clients and connections long gone."""
        for scope, cap in list(self._caps.items()):
            if cap.users or cap.held:
                continue
            rule = self._rules.get(scope.rule) if scope.of_rule else None
            wanted = rule is not None and rule.throttle is not None and rule.throttle.share is scope.share
            if wanted and not self._dry_run and (scope.share is Share.PATH or now - cap.idle_since < IDLE_SECONDS):
                continue
            del self._caps[scope]
            self._used.discard(cap.minor)
            self.classes.drop(cap.minor)

    def take_moved(self, limit: int) -> list[FourTuple]:
        """Return subflows that came to a cap, left one, or whose cap changed: each once, *limit* at the most."""
        if len(self._moved) <= limit:
            moved, self._moved = list(self._moved), set()
            return moved
        return [self._moved.pop() for _ in range(limit)]

    @property
    def has_moved(self) -> bool:
        """Whether :meth:`take_moved` would return any."""
        return bool(self._moved)

    def soft_cap(self, four_tuple: FourTuple) -> Cap | None:
        """Return the cap with a soft start that is or will be on a subflow; None where there is none."""
        cap = self._cap_on(four_tuple)
        return cap if cap is not None and cap.wanted.onset is Onset.SOFT else None

    def shared_soft_caps(self) -> Iterator[Cap]:
        """Yield each cap with a soft start that has more than one user."""
        for cap in self._shared.values():
            if cap.wanted.onset is Onset.SOFT:
                yield cap

    def is_pending(self, four_tuple: FourTuple) -> bool:
        """Tell whether a subflow's cap waits until its transition is complete."""
        cap = self._cap_on(four_tuple)
        return cap is not None and four_tuple in cap.pending

    def pending(self) -> list[FourTuple]:
        """Return all subflows of which :meth:`is_pending` is true."""
        return [four_tuple for cap in self._caps.values() for four_tuple in cap.pending]

    def complete(self, four_tuple: FourTuple) -> bool:
        """Cap a subflow whose transition is complete; return whether it was waited for. Unknown ones are fine."""
        cap = self._cap_on(four_tuple)
        if cap is None or four_tuple not in cap.pending:
            return False
        cap.pending.discard(four_tuple)
        cap.falling.discard(four_tuple)
        self._settle(cap)
        self._let_go(four_tuple)
        self.entries.want(four_tuple, Target(cap.minor, cap.mark))
        return True

    def set_interim(self, rates: Mapping[FourTuple, int | None]) -> bool:
        """Give subflows a part of their class, bits/s, in place of its throttle; None ends it for one of them.

        A class has the sum of these while there are any. Return whether a class changed.
        """
        changed: dict[int, Cap] = {}
        for four_tuple, rate in rates.items():
            cap = self._cap_on(four_tuple)
            if cap is None or cap.interim.get(four_tuple) == rate:
                continue
            if rate is None:
                del cap.interim[four_tuple]
            else:
                cap.interim[four_tuple] = rate
            changed[cap.minor] = cap
        for cap in changed.values():
            self.classes.want(cap.minor, cap.spec)
        return bool(changed)

    def _cap_on(self, four_tuple: FourTuple) -> Cap | None:
        scope = self._cap_of.get(four_tuple)
        return None if scope is None else self._caps[scope]

    def _send(self, four_tuple: FourTuple, scope: ScopeKey, throttle: Throttle, now: float) -> None:
        previous = self._cap_of.get(four_tuple)
        if previous is not None and previous != scope:
            before = self._caps[previous]
            self._leave(four_tuple, now)
            if four_tuple in self.entries.desired and four_tuple not in self._held_by:
                # Until its transition is complete the cap that it had holds it.
                before.held.add(four_tuple)
                self._held_by[four_tuple] = before
        cap = self._cap(scope, throttle, four_tuple, now)
        self._retune(cap, throttle)
        if previous != scope:
            cap.users.add(four_tuple)
            if len(cap.users) > 1:
                self._shared[cap.minor] = cap
            self._fit(cap)
            self._cap_of[four_tuple] = scope
            self._moved.add(four_tuple)
            found = self.entries.actual.get(four_tuple)
            if self._begins_softly(throttle) and (found is None or found.minor != cap.minor):
                cap.pending.add(four_tuple)
        if four_tuple not in cap.pending or (four_tuple in self.entries.desired and four_tuple not in self._held_by):
            self._let_go(four_tuple)
            self.entries.want(four_tuple, Target(cap.minor, cap.mark))

    def _retune(self, cap: Cap, throttle: Throttle) -> None:
        """Give *cap* another throttle: now, or when the transitions of those on which it falls are complete."""
        if cap.wanted == throttle:
            return
        cap.wanted = throttle
        self._moved |= cap.users
        if cap.users and self._begins_softly(throttle) and throttle.ceil < cap.throttle.ceil * GENTLE_FALL:
            cap.pending |= cap.users
            cap.falling = set(cap.users)
        else:
            cap.throttle = throttle
            self.classes.want(cap.minor, cap.spec)

    def _begins_softly(self, throttle: Throttle) -> bool:
        return self.soft_caps and throttle.onset is Onset.SOFT

    def _settle(self, cap: Cap) -> None:
        """Give *cap* the throttle that it is to have, once those on which it falls are ready for it."""
        if cap.throttle != cap.wanted and not cap.falling:
            cap.throttle = cap.wanted
            self.classes.want(cap.minor, cap.spec)

    def _release(self, four_tuple: FourTuple, now: float) -> None:
        self._leave(four_tuple, now)
        self._owner.pop(four_tuple, None)
        self._let_go(four_tuple)
        self.entries.drop(four_tuple)

    def _let_go(self, four_tuple: FourTuple) -> None:
        """The cap that the subflow had before holds it no longer."""
        cap = self._held_by.pop(four_tuple, None)
        if cap is not None:
            cap.held.discard(four_tuple)

    def _leave(self, four_tuple: FourTuple, now: float) -> None:
        """Take the subflow out of its cap; what its entry says stays."""
        cap = self._cap_on(four_tuple)
        self._cap_of.pop(four_tuple, None)
        if cap is not None:
            cap.users.discard(four_tuple)
            cap.pending.discard(four_tuple)
            cap.falling.discard(four_tuple)
            cap.idle_since = now
            self._moved.add(four_tuple)
            if len(cap.users) < 2 and self._shared.pop(cap.minor, None) is not None:
                # The one that is left may take the whole cap.
                self._moved |= cap.users
            if cap.interim.pop(four_tuple, None) is not None:
                self.classes.want(cap.minor, cap.spec)
            self._settle(cap)
            self._fit(cap)

    def _cap(self, scope: ScopeKey, throttle: Throttle, four_tuple: FourTuple | None, now: float) -> Cap:
        cap = self._caps.get(scope)
        if cap is None:
            found = None if four_tuple is None else self.entries.actual.get(four_tuple)
            if found is not None and found.minor in self.classes.actual and found.minor not in self._used:
                minor = found.minor
            else:
                minor = self._free_minor()
            mark = self._marks.get(scope.rule, 0)
            cap = self._caps[scope] = Cap(minor, self.direction, throttle, throttle, mark, idle_since=now)
            self._used.add(minor)
            self.classes.want(minor, cap.spec)
        return cap

    def _fit(self, cap: Cap) -> None:
        if cap.make_room():
            self.classes.want(cap.minor, cap.spec)

    def _free_minor(self) -> int:
        """Return a minor number that no cap has and, if possible, that no class in the kernel has either."""
        size = LAST_MINOR - FIRST_MINOR + 1
        actual: Collection[int] = self.classes.actual
        reserved = FIRST_MINOR <= self.ownership.htb_major <= LAST_MINOR
        for avoid in (actual, ()) if len(self._used) < size - reserved else ():
            for step in range(size):
                minor = FIRST_MINOR + (self._next - FIRST_MINOR + step) % size
                # The root's handle would be that of a class's queue.
                if minor not in self._used and minor not in avoid and minor != self.ownership.htb_major:
                    self._next = minor + 1
                    return minor
        raise PlanError(f"no HTB class is left: {size} caps are in use; share caps by path or by client")
