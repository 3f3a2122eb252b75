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

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Direction, Onset, Policy, Rule, ScopeKey, Share, Throttle, Verdict
from mptcp_throttler.shaping.cap import Cap
from mptcp_throttler.shaping.class_numbers import ClassNumbers, PlanError
from mptcp_throttler.shaping.delta import DeltaTracker
from mptcp_throttler.shaping.lingering import Lingering
from mptcp_throttler.shaping.model import DEFAULT_MINOR, ClassSpec, Ownership, Target
from mptcp_throttler.shaping.rate_transition import GENTLE_FALL

IDLE_SECONDS = 60.0
CONNECTION_IDLE_SECONDS = 2.0
"""The same for the class of a connection, whose token does not come back."""
UNCAPPED = Target(DEFAULT_MINOR, 0)
"""Where a subflow goes that began in the class of a cap and has none: its socket still sends there."""


class Planner:
    """Keeps the desired classes and entries of one direction in step with the policy and the verdicts."""

    def __init__(self, ownership: Ownership, direction: Direction = Direction.DOWN) -> None:
        self.ownership = ownership
        self.direction = direction
        self.classes: DeltaTracker[int, ClassSpec] = DeltaTracker(ClassSpec.same_as)
        self.entries: DeltaTracker[FourTuple, Target] = DeltaTracker()
        self.caps: dict[ScopeKey, Cap] = {}
        self._by_minor: dict[int, Cap] = {}
        self._cap_of: dict[FourTuple, ScopeKey] = {}
        self._owner: dict[FourTuple, int] = {}
        self._connections: dict[int, tuple[FourTuple, ...]] = {}
        self._marks: dict[str, int] = {}
        self._rules: dict[str, Rule] = {}
        self._dry_run = False
        self._numbers = ClassNumbers(ownership.htb_major)
        self.soft_caps = False
        """Somebody runs the transitions of caps that are to begin softly."""
        self._moved: set[FourTuple] = set()
        self._shared: dict[int, Cap] = {}
        """By minor number, the caps with more than one user."""
        self._held_by: dict[FourTuple, Cap] = {}
        self.birth_classes: Collection[int] = ()
        """Handles of the classes into which sockets are accepted."""
        self.births_rest = False
        """Some joins rest from their acceptance on, or have done so since the start: those without a cap are woken."""
        self._born: set[FourTuple] = set()
        """Subflows that began in the class of their cap."""
        self._resting: set[FourTuple] = set()
        self._lingering = Lingering()
        self._now = 0.0
        """Of the last call that knew it."""

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force. Verdicts under it must follow for every connection."""
        self._lingering.cut_short()
        for four_tuple in self._lingering.take_due(self._now, ask=False):
            self._end_of_linger(four_tuple)
        self._dry_run = policy.dry_run
        self._rules = {rule.name: rule for rule in policy.rules if self.direction in rule.directions}
        self._marks = {rule.name: self.ownership.mark_of_rule(i) for i, rule in enumerate(policy.rules)}
        for scope, cap in self.caps.items():
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

    def class_of(self, scope: ScopeKey) -> int | None:
        """Return the handle of a cap's class, None where it has none."""
        cap = self.caps.get(scope)
        return None if cap is None else self.ownership.htb_major << 16 | cap.minor

    def began_in_class(self, four_tuple: FourTuple) -> bool:
        """Tell whether a subflow's first segments went through the class of its cap."""
        return four_tuple in self._born

    def set_verdicts(
        self, token: int, verdicts: Iterable[Verdict], now: float, young: Collection[FourTuple] = ()
    ) -> None:
        """Replace what is desired for the connection *token* by *verdicts*, one for each active subflow;
        those on the other direction are not ours, and of another port than a listening one there is no set that could
        have an entry. *young* subflows come to a cap without a transition.

        Raises :class:`PlanError` where no class is left for some of them: each of these keeps the cap that it had, or
        has none. All others are as *verdicts* say.
        """
        capped, uncapped, exempt, resting = set(), set(), set(), set()
        refused: list[PlanError] = []  # the first alone: see ``runtime.garbage``
        for verdict in verdicts:
            if verdict.direction is not self.direction or self._dry_run:
                continue
            if verdict.four_tuple.local_port not in self.ownership.listen_ports:
                continue
            if self._owner.get(verdict.four_tuple, token) != token:
                # A client that reuses a port soon has the same four-tuple in a newer connection: the older one has
                # ended, though nobody has said so yet.
                self._release(verdict.four_tuple, now, lingers=True)
            if verdict.scope is None or verdict.throttle is None:
                uncapped.add(verdict.four_tuple)
                self._end_of_linger(verdict.four_tuple)
                if verdict.rests and self.soft_caps:
                    resting.add(verdict.four_tuple)
                continue
            try:
                self._send(verdict.four_tuple, verdict.scope, verdict.throttle, now, verdict.four_tuple in young)
            except PlanError as error:
                refused = refused or [error]
                if verdict.four_tuple not in self._cap_of:
                    uncapped.add(verdict.four_tuple)
                    self._end_of_linger(verdict.four_tuple)
                    continue
            self._owner[verdict.four_tuple] = token
            capped.add(verdict.four_tuple)
            self._rest(verdict.four_tuple, rests=verdict.rests)
        for four_tuple in self._connections.pop(token, ()):
            if four_tuple in capped or self._owner.get(four_tuple) != token:
                continue
            if four_tuple in resting and self._cap_of.get(four_tuple) is None:
                continue
            if four_tuple in uncapped and four_tuple in self._born:
                self._exempt(four_tuple, now)
                exempt.add(four_tuple)
            else:
                self._release(four_tuple, now, lingers=four_tuple not in uncapped and not self._dry_run)
        for four_tuple in resting:
            self._owner[four_tuple] = token
            self._rest(four_tuple, rests=True)
        if capped or exempt or resting:
            self._connections[token] = tuple(capped | exempt | resting)
        if self.births_rest:
            self._mark_moved(uncapped.intersection(young))
        if refused:
            raise refused.pop()

    def forget(self, token: int, now: float) -> None:
        self.set_verdicts(token, (), now)

    def expire(self, now: float) -> None:
        """Drop the entries of subflows that ended a while ago, the classes that no rule can use any more, and those of
        clients and connections long gone."""
        self._now = now
        for four_tuple in self._lingering.take_due(now, ask=self.soft_caps):
            self._end_of_linger(four_tuple)
        for scope, cap in list(self.caps.items()):
            if cap.users or cap.held:
                continue
            rule = self._rules.get(scope.rule) if scope.of_rule else None
            wanted = rule is not None and rule.throttle is not None and rule.throttle.share is scope.share
            kept = CONNECTION_IDLE_SECONDS if scope.share is Share.CONNECTION else IDLE_SECONDS
            cap.idle_since = min(cap.idle_since, now)  # the clock may have been set back
            if wanted and not self._dry_run and (scope.share is Share.PATH or now - cap.idle_since < kept):
                continue
            del self.caps[scope]
            del self._by_minor[cap.minor]
            self._numbers.give_back(cap.minor)
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

    def rests(self, four_tuple: FourTuple) -> bool:
        """Tell whether a subflow is to be given nothing by the scheduler."""
        return four_tuple in self._resting

    def _rest(self, four_tuple: FourTuple, *, rests: bool) -> None:
        if (four_tuple in self._resting) is not rests:
            (self._resting.add if rests else self._resting.discard)(four_tuple)
            self._mark_moved((four_tuple,))

    def is_pending(self, four_tuple: FourTuple) -> bool:
        """Tell whether a subflow's cap waits until its transition is complete."""
        cap = self._cap_on(four_tuple)
        return cap is not None and four_tuple in cap.pending

    def pending(self) -> list[FourTuple]:
        """Return all subflows of which :meth:`is_pending` is true."""
        return [four_tuple for cap in self.caps.values() for four_tuple in cap.pending]

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

    def lower(self, minor: int, share: float | None) -> bool:
        """Give a class that share of its rate while its cap repays a debt, with None all of it; return whether it is
        there."""
        cap = self._by_minor.get(minor)
        if cap is None:
            return False
        cap.lowered = share
        if len(cap.users) == 1:
            self._mark_moved(cap.users)  # the level of those that share one follows by itself
        self.classes.want(minor, cap.spec)
        return True

    def _cap_on(self, four_tuple: FourTuple) -> Cap | None:
        scope = self._cap_of.get(four_tuple)
        return None if scope is None else self.caps[scope]

    def _send(self, four_tuple: FourTuple, scope: ScopeKey, throttle: Throttle, now: float, young: bool) -> None:
        previous = self._cap_of.get(four_tuple)
        cap = self._cap(scope, throttle, four_tuple, now)  # before anything is changed: there may be no class
        if self.entries.desired.get(four_tuple) == UNCAPPED:
            self.entries.drop(four_tuple)
        self._lingering.discard(four_tuple)
        if previous is not None and previous != scope:
            before = self.caps[previous]
            self._leave(four_tuple, now)
            if four_tuple in self.entries.desired and four_tuple not in self._held_by:
                # Until its transition is complete the cap that it had holds it.
                before.held.add(four_tuple)
                self._held_by[four_tuple] = before
        self._retune(cap, throttle)
        if previous != scope:
            cap.users.add(four_tuple)
            if young and self.class_of(scope) in self.birth_classes:
                self._born.add(four_tuple)
            if young and previous is None and self._begins_softly(throttle):
                cap.young.add(four_tuple)
            if len(cap.users) > 1:
                self._shared[cap.minor] = cap
            self._fit(cap)
            self._cap_of[four_tuple] = scope
            self._mark_moved((four_tuple,))
            found = self.entries.actual.get(four_tuple)
            if self._begins_softly(throttle) and not young and (found is None or found.minor != cap.minor):
                cap.pending.add(four_tuple)
        if four_tuple not in cap.pending or (four_tuple in self.entries.desired and four_tuple not in self._held_by):
            self._let_go(four_tuple)
            self.entries.want(four_tuple, Target(cap.minor, cap.mark))

    def _retune(self, cap: Cap, throttle: Throttle) -> None:
        """Give *cap* another throttle: now, or when the transitions of those on which it falls are complete."""
        if cap.wanted == throttle:
            return
        cap.wanted = throttle
        self._mark_moved(cap.users)
        if cap.users and self._begins_softly(throttle) and throttle.ceil < cap.throttle.ceil * GENTLE_FALL:
            cap.pending |= cap.users
            cap.falling = set(cap.users)
        else:
            cap.throttle = throttle
            self.classes.want(cap.minor, cap.spec)
        if not self._begins_softly(throttle):
            for four_tuple in list(cap.pending):
                self.complete(four_tuple)  # nobody else will any more

    def _begins_softly(self, throttle: Throttle) -> bool:
        return self.soft_caps and throttle.onset is Onset.SOFT

    def _settle(self, cap: Cap) -> None:
        """Give *cap* the throttle that it is to have, once those on which it falls are ready for it."""
        if cap.throttle != cap.wanted and not cap.falling:
            cap.throttle = cap.wanted
            self.classes.want(cap.minor, cap.spec)

    def _exempt(self, four_tuple: FourTuple, now: float) -> None:
        """Send a subflow that has no cap any more past the class into which its socket sends."""
        self._leave(four_tuple, now)
        self._let_go(four_tuple)
        self.entries.want(four_tuple, UNCAPPED)

    def _release(self, four_tuple: FourTuple, now: float, *, lingers: bool) -> None:
        cap = self._held_by.get(four_tuple) or self._cap_on(four_tuple)
        self._leave(four_tuple, now)
        self._owner.pop(four_tuple, None)
        self._born.discard(four_tuple)
        self._let_go(four_tuple)
        if lingers and self.direction is Direction.DOWN and cap is not None and four_tuple in self.entries.desired:
            cap.held.add(four_tuple)
            self._held_by[four_tuple] = cap
            if (oldest := self._lingering.add(four_tuple, now)) is not None:
                self._end_of_linger(oldest)
        else:
            self.entries.drop(four_tuple)

    def lingers(self, four_tuple: FourTuple) -> bool:
        """Tell whether a subflow has ended and still has its entry."""
        return four_tuple in self._lingering

    def overdue(self, limit: int) -> list[FourTuple]:
        """Return some of those that ended long ago: :meth:`settle_overdue` is to be told of each."""
        return self._lingering.overdue(limit)

    def settle_overdue(self, four_tuple: FourTuple, *, busy: bool) -> bool:
        """Take whether the socket of one that ended long ago is still *busy*; return whether the plan changed."""
        if not self._lingering.is_overdue(four_tuple):
            return False
        if busy:
            self._lingering.go_on(four_tuple, self._now)
            return False
        self._end_of_linger(four_tuple)
        return True

    def _end_of_linger(self, four_tuple: FourTuple) -> None:
        if self._lingering.discard(four_tuple):
            self._let_go(four_tuple)
            self.entries.drop(four_tuple)
            self._mark_moved((four_tuple,))

    def _mark_moved(self, four_tuples: Iterable[FourTuple]) -> None:
        """Somebody is to follow them, where there is anybody."""
        if self.soft_caps:
            self._moved.update(four_tuples)

    def _let_go(self, four_tuple: FourTuple) -> None:
        """The cap that the subflow had before holds it no longer."""
        cap = self._held_by.pop(four_tuple, None)
        if cap is not None:
            cap.held.discard(four_tuple)

    def _leave(self, four_tuple: FourTuple, now: float) -> None:
        """Take the subflow out of its cap; what its entry says stays."""
        cap = self._cap_on(four_tuple)
        self._cap_of.pop(four_tuple, None)
        self._rest(four_tuple, rests=False)
        if cap is not None:
            cap.users.discard(four_tuple)
            cap.young.discard(four_tuple)
            cap.pending.discard(four_tuple)
            cap.falling.discard(four_tuple)
            cap.idle_since = now
            self._mark_moved((four_tuple,))
            if len(cap.users) < 2 and self._shared.pop(cap.minor, None) is not None:
                # The one that is left may take the whole cap.
                self._mark_moved(cap.users)
            if cap.interim.pop(four_tuple, None) is not None:
                self.classes.want(cap.minor, cap.spec)
            self._settle(cap)
            self._fit(cap)

    def _cap(self, scope: ScopeKey, throttle: Throttle, four_tuple: FourTuple | None, now: float) -> Cap:
        cap = self.caps.get(scope)
        if cap is None:
            found = None if four_tuple is None else self.entries.actual.get(four_tuple)
            of_path = scope.share is Share.PATH
            minor = self._numbers.take(None if found is None else found.minor, self.classes.actual, of_path=of_path)
            mark = self._marks.get(scope.rule, 0)
            cap = self.caps[scope] = Cap(minor, self.direction, throttle, throttle, mark, idle_since=now)
            self._by_minor[minor] = cap
            self.classes.want(minor, cap.spec)
        return cap

    def _fit(self, cap: Cap) -> None:
        if cap.make_room():
            self.classes.want(cap.minor, cap.spec)
