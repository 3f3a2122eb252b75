# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns verdicts into the HTB classes and set entries that they need. Pure: without kernel access; times are arguments.

Each cap (:class:`~mptcp_throttler.policy.verdict.ScopeKey`) has one class. The class of a path cap is created with the
policy, so that later connections do not wait; the class of a client's or connection's cap at its first use, and deleted
when it was idle for some time. A class keeps its minor number as long as it exists, across reloads and (by
:meth:`Planner.adopt`) restarts of the daemon, because the entries in the kernel refer to it.

A capped subflow is *pending* while ``onset`` runs its onset (:attr:`Planner.soft_caps`), until
:meth:`Planner.complete`. Then the planner wants its entry. A lowered cap gets its new rate when the onsets of all its
users are complete. The cap is *in force* when the kernel has class and entry. After its end, a subflow *drains*: its
entry stays until the data assigned to it are sent. Each call by ``onset`` costs O(1) per subflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice, takewhile

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.conditions import PathMatch
from mptcp_throttler.policy.model import Direction, Onset, Policy, Rule, Share, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.shaping.cap import ClassNumbers, LiveCap, Member, PlanError
from mptcp_throttler.shaping.model import DEFAULT_MINOR, GENTLE_FALL, ClassSpec, DeltaTracker, Ownership, Target

IDLE_SECONDS = 60.0  # how long the class of an unused cap is kept
CONNECTION_IDLE_SECONDS = 2.0  # the same for a connection's cap: shorter, because its token is not used again
UNCAPPED = Target(DEFAULT_MINOR, 0)
"""Target of a subflow that lost the cap in whose class it began: without an entry it would still send to that class."""
DRAIN_SECONDS = 10.0  # minimum life of an ended subflow's entry; longer if its socket is known to have data
MAX_DRAINING = 16_384  # maximum draining entries, the oldest is dropped first: 10,000 connections/s would keep 100,000
MAX_MOVED = 1024
DRAIN_SLICE = 2048  # maximum number of draining entries dropped per call: this takes about 4 ms


class Planner:
    """Keeps the desired classes and entries of one direction in step with the verdicts. Times: monotonic seconds."""

    def __init__(self, ownership: Ownership, direction: Direction = Direction.DOWN) -> None:
        self.ownership = ownership
        self.direction = direction
        self.classes: DeltaTracker[int, ClassSpec] = DeltaTracker(ClassSpec.same_as)
        self.entries: DeltaTracker[FourTuple, Target] = DeltaTracker()
        self.classes.kernel_changed, self.entries.kernel_changed = self._classes_changed, self._entries_changed
        self.caps: dict[ScopeKey, LiveCap] = {}
        self._by_minor: dict[int, LiveCap] = {}
        self._shared: dict[int, LiveCap] = {}  # caps with more than one user, by minor number
        self._numbers = ClassNumbers(ownership.htb_major)
        self.members: dict[FourTuple, Member] = {}  # subflows with cap or entry, or at rest; others only read this
        self._connections: dict[int, tuple[FourTuple, ...]] = {}
        self.draining: dict[FourTuple, float] = {}  # ended members, oldest first, and until when their entries stay
        self.moved: set[FourTuple] = set()  # subflows that :meth:`take_moved` returns
        self._marks: dict[str, int] = {}
        self._rules: dict[str, Rule] = {}
        self._now = 0.0
        self.soft_caps = False  # whether an object that runs soft onsets is attached
        self.initial_classes: Collection[int] = ()  # handles of the classes into which sockets are accepted
        self.joins_rest = False  # whether some joins rested from their acceptance on: those without a cap must be woken
        self.kernel_changed: Callable[[Collection[FourTuple], bool], None] = lambda four_tuples, there: None
        """Function that is called with the entries that the kernel added or changed (True) or removed (False)."""
        self.clock: Callable[[], float] = lambda: 0.0
        self.in_force: Callable[[float], None] = lambda seconds: None
        """Function that is called with the seconds, by :attr:`clock`, from the decision on a cap or its new rate to the
        full effect on a subflow, except for caps that balance loads."""

    def set_policy(self, policy: Policy) -> None:
        """Put *policy* in force. The caller must then give verdicts under it for every connection."""
        self.draining = dict.fromkeys(self.draining, -math.inf)
        self._end_draining()
        self._rules = {rule.name: rule for rule in policy.rules if self.direction in rule.direction}
        self._marks = {rule.name: self.ownership.mark_of_rule(i) for i, rule in enumerate(policy.rules)}
        for scope, cap in self.caps.items():
            cap.mark = self._marks.get(scope.rule, cap.mark)
            cap.level = cap.allowance_used = None
            throttle = self._throttle(scope)
            if throttle is not None:
                self._retune(cap, throttle)

    def adopt(self, classes: Mapping[int, ClassSpec], entries: Mapping[FourTuple, Target]) -> None:
        """Take the kernel's *classes* and *entries* as the actual state; later verdicts reuse the classes."""
        self.classes.observed(classes)
        self.entries.observed(entries)

    def prepare_path_classes(self, now: float) -> None:
        """Create the classes of path caps. Call this at the start, after the verdicts on known connections."""
        for rule in self._rules.values():
            if rule.throttle is not None and rule.throttle.share is Share.PATH:
                self._cap(ScopeKey(rule.name, Share.PATH, direction=self.direction), rule.throttle, None, now)

    def set_verdicts(
        self, token: int, verdicts: Iterable[Verdict], now: float, young: Collection[FourTuple] = ()
    ) -> None:
        """Replace the desired state of the connection *token* by *verdicts*, one for each active subflow.

        Verdicts on the other direction and on foreign ports are ignored. *young* subflows get no transition. Raises
        :class:`PlanError` if no class is left for some subflows: these keep their old cap, or have none; all other
        verdicts still apply.
        """
        ports = self.ownership.ports
        seen, refused = set[FourTuple](), list[PlanError]()
        for verdict in verdicts:
            four_tuple = verdict.four_tuple
            if verdict.direction is not self.direction or four_tuple.local_port not in ports:
                continue
            seen.add(four_tuple)
            member = self.members.get(four_tuple)
            if member is not None and member.token is not None and member.token != token:
                # The client reused the port for a newer connection before the end of the older one was reported.
                self._release(member, now, drains=True)
            try:
                if verdict.scope is None or verdict.throttle is None:
                    self._uncap(verdict, token, now, young)
                else:
                    self._send(verdict, verdict.scope, verdict.throttle, token, now, four_tuple in young)
            except PlanError as error:
                refused = refused or [error]  # only the first error, in a list: see ``runtime.event_loop``
                if self._cap_on(four_tuple) is None:
                    self._uncap(verdict, token, now, young)
                else:
                    self._rest(self.members[four_tuple], rests=verdict.rests)
        for four_tuple in self._connections.pop(token, ()):
            member = self.members.get(four_tuple)
            if member is not None and member.token == token and four_tuple not in seen:
                self._release(member, now, drains=True)
        if kept := tuple(each for each in seen if each in self.members and self.members[each].token == token):
            self._connections[token] = kept
        if refused:
            raise refused.pop()

    def expire(self, now: float) -> None:
        """Drop drained entries, classes that no rule can use, and idle classes of clients and connections."""
        self._now = now
        self._end_draining()
        for scope, cap in list(self.caps.items()):
            if cap.users or cap.held:
                continue
            kept = CONNECTION_IDLE_SECONDS if scope.share is Share.CONNECTION else IDLE_SECONDS
            wanted = self._throttle(scope) is not None
            if wanted and (scope.share is Share.PATH or now - cap.idle_since < kept):
                continue
            del self.caps[scope], self._by_minor[cap.minor]
            self._numbers.give_back(cap.minor)
            self.classes.drop(cap.minor)

    def class_of(self, scope: ScopeKey) -> int | None:
        """Return the handle of a cap's class, or None."""
        cap = self.caps.get(scope)
        return None if cap is None else self.ownership.htb_major << 16 | cap.minor

    def pending(self) -> list[FourTuple]:
        return [four_tuple for cap in self.caps.values() for four_tuple in cap.pending]

    def in_onset(self, four_tuple: FourTuple) -> bool:
        """Return whether a subflow is pending, or its class still falls to its cap."""
        cap = self._cap_on(four_tuple)
        return cap is not None and (four_tuple in cap.pending or four_tuple in cap.interim)

    def onsets(self) -> Iterator[FourTuple]:
        """Yield all subflows in onset, each once."""
        for cap in self.caps.values():
            if cap.pending or cap.interim:
                yield from cap.pending | cap.interim.keys()

    def take_moved(self, limit: int = MAX_MOVED) -> list[FourTuple]:
        """Return at most *limit* subflows that got or lost a cap, or whose cap changed, each once."""
        return [self.moved.pop() for _ in range(min(limit, len(self.moved)))]

    def soft_cap(self, four_tuple: FourTuple) -> LiveCap | None:
        """Return the soft cap that is or will be on a subflow, or None."""
        cap = self._cap_on(four_tuple)
        return cap if cap is not None and cap.wanted.landing is Onset.SOFT else None

    def shared_soft_caps(self) -> Iterator[LiveCap]:
        """Yield each soft cap with more than one user."""
        for cap in self._shared.values():
            if cap.wanted.landing is Onset.SOFT:
                yield cap

    def rests(self, four_tuple: FourTuple) -> bool:
        """Return whether the scheduler must assign nothing to a subflow."""
        member = self.members.get(four_tuple)
        return member is not None and member.rests

    def complete(self, four_tuple: FourTuple) -> bool:
        """Cap a subflow whose onset is complete; return whether it was pending. The subflow may be unknown."""
        member = self.members.get(four_tuple)
        if member is None or (cap := member.cap) is None or four_tuple not in cap.pending:
            return False
        cap.pending.discard(four_tuple)
        cap.falling.discard(four_tuple)
        self._settle(cap)
        self._enter(member, cap)
        return True

    def set_interim(self, rates: Mapping[FourTuple, int | None]) -> bool:
        """Give subflows interim rates, bits/s; None ends an interim rate. While a class has interim rates, its rate is
        their sum, if that is above its throttle. Return whether a class changed."""
        changed: set[LiveCap] = set()
        for four_tuple, rate in rates.items():
            cap = self._cap_on(four_tuple)
            if cap is None or cap.interim.get(four_tuple) == rate:
                continue
            if rate is None:
                del cap.interim[four_tuple]
            else:
                cap.interim[four_tuple] = rate
            changed.add(cap)
        for cap in changed:
            self.classes.want(cap.minor, cap.spec)
        for four_tuple in rates:
            self._check(four_tuple)
        return bool(changed)

    def overdue(self, limit: int) -> list[FourTuple]:
        """Return up to *limit* draining subflows past their time; call :meth:`settle_overdue` for each."""
        return list(takewhile(self._is_overdue, islice(self.draining, limit)))

    def settle_overdue(self, four_tuple: FourTuple, *, busy: bool) -> bool:
        """Keep the entry of an overdue subflow if its socket is *busy*; otherwise drop the entry and return True."""
        if four_tuple not in self.draining or not self._is_overdue(four_tuple):
            return False
        if busy:
            del self.draining[four_tuple]
            self.draining[four_tuple] = self._now + DRAIN_SECONDS
            return False
        self._end_drain(self.members[four_tuple])
        return True

    def _throttle(self, scope: ScopeKey) -> Throttle | None:
        rule = self._rules.get(scope.rule) if scope.step is None and not scope.balances else None
        throttle = None if rule is None else rule.throttle
        return throttle if throttle is not None and throttle.share is scope.share else None

    def _cap_on(self, four_tuple: FourTuple) -> LiveCap | None:
        member = self.members.get(four_tuple)
        return None if member is None else member.cap

    def _begins_softly(self, throttle: Throttle) -> bool:
        return self.soft_caps and throttle.landing is Onset.SOFT

    def _mark_moved(self, four_tuples: Iterable[FourTuple]) -> None:
        if self.soft_caps:
            self.moved.update(four_tuples)

    def _rest(self, member: Member, *, rests: bool) -> None:
        if member.rests is not rests:
            member.rests = rests
            self._mark_moved((member.four_tuple,))

    def _cap(self, scope: ScopeKey, throttle: Throttle, four_tuple: FourTuple | None, now: float) -> LiveCap:
        cap = self.caps.get(scope)
        if cap is None:
            found = None if four_tuple is None else self.entries.actual.get(four_tuple)
            of_path = scope.share is Share.PATH
            minor = self._numbers.take(None if found is None else found.minor, self.classes.actual, of_path=of_path)
            mark = self._marks.get(scope.rule, 0)
            cap = LiveCap(scope, minor, self.direction, throttle, throttle, mark, idle_since=now)
            self.caps[scope] = self._by_minor[minor] = cap
            self.classes.want(minor, cap.spec)
        return cap

    def _send(self, verdict: Verdict, scope: ScopeKey, throttle: Throttle, token: int, now: float, young: bool) -> None:
        """Put a subflow under its cap. Raises :class:`PlanError`."""
        four_tuple = verdict.four_tuple
        cap = self._cap(scope, throttle, four_tuple, now)  # before any change, since it may raise
        member = self.members.get(four_tuple)
        if member is None:
            member = self.members[four_tuple] = Member(four_tuple)
        member.token, before = token, member.cap
        self.draining.pop(four_tuple, None)
        if self.entries.desired.get(four_tuple) == UNCAPPED:
            self.entries.drop(four_tuple)
        if before is not None and before is not cap:
            self._leave(member, now)
            if four_tuple in self.entries.desired and member.held_by is None:
                self._hold(member, before)
        self._retune(cap, throttle)
        if before is not cap:
            member.cap = cap
            cap.users[four_tuple] = member
            if young:
                member.in_class |= self.class_of(scope) in self.initial_classes
                member.young = before is None and self._begins_softly(throttle)
            if len(cap.users) > 1:
                self._shared[cap.minor] = cap
            if cap.make_room():
                self.classes.want(cap.minor, cap.spec)
            self._mark_moved((four_tuple,))
            self._decided(cap, (four_tuple,))
            found = self.entries.actual.get(four_tuple)
            if self._begins_softly(throttle) and not young and (found is None or found.minor != cap.minor):
                cap.pending.add(four_tuple)
        if four_tuple not in cap.pending or (four_tuple in self.entries.desired and member.held_by is None):
            self._enter(member, cap)
        self._rest(member, rests=verdict.rests)

    def _enter(self, member: Member, cap: LiveCap) -> None:
        self._let_go(member)
        self.entries.want(member.four_tuple, Target(cap.minor, cap.mark))
        self._check(member.four_tuple)

    def _uncap(self, verdict: Verdict, token: int, now: float, young: Collection[FourTuple]) -> None:
        """Take a subflow out of its cap, and let it rest if its verdict rests. If its socket sends to the class of
        the cap, give it an entry for the default class."""
        four_tuple, rests = verdict.four_tuple, verdict.rests and self.soft_caps
        if self.joins_rest and four_tuple in young:
            self._mark_moved((four_tuple,))
        member = self.members.get(four_tuple)
        if member is not None and member.token is None:
            self._end_drain(member)
            member = None
        if member is not None and member.in_class and member.cap is not None:
            self._leave(member, now)
            self._let_go(member)
            self.entries.want(four_tuple, UNCAPPED)
        elif member is not None and not member.in_class and (member.cap is not None or not rests):
            self._release(member, now, drains=False)
            member = None
        if member is None and rests:
            member = self.members[four_tuple] = Member(four_tuple, token)
        if member is not None:
            self._rest(member, rests=rests)

    def _retune(self, cap: LiveCap, throttle: Throttle) -> None:
        """Give *cap* another throttle: at once, or, if the rate falls, when the onsets of its users are complete."""
        before = cap.wanted
        if before is throttle or before == throttle:  # identity first, because ``==`` compares every field
            return
        cap.wanted = throttle
        self._mark_moved(cap.users)
        if cap.users and self._begins_softly(throttle) and throttle.ceil < cap.throttle.ceil * GENTLE_FALL:
            cap.pending |= cap.users.keys()
            cap.falling = set(cap.users)
        else:
            cap.throttle = throttle
            self.classes.want(cap.minor, cap.spec)
        if (before.rate, before.ceil, before.burst) != (throttle.rate, throttle.ceil, throttle.burst):
            self._decided(cap, cap.users)
        if not self._begins_softly(throttle):
            for four_tuple in list(cap.pending):
                self.complete(four_tuple)  # no soft onset will complete it

    def _settle(self, cap: LiveCap) -> None:
        if cap.throttle != cap.wanted and not cap.falling:
            cap.throttle = cap.wanted
            self.classes.want(cap.minor, cap.spec)

    def _leave(self, member: Member, now: float) -> None:
        """Take a subflow out of its cap; its entry stays."""
        self._rest(member, rests=False)
        cap, member.cap = member.cap, None
        member.young = False
        if cap is None:
            return
        four_tuple = member.four_tuple
        del cap.users[four_tuple]
        cap.unsettled.pop(four_tuple, None)
        cap.pending.discard(four_tuple)
        cap.falling.discard(four_tuple)
        cap.idle_since = now
        self._mark_moved((four_tuple,))
        if len(cap.users) < 2 and self._shared.pop(cap.minor, None) is not None:
            # The remaining user may take the whole cap.
            self._mark_moved(cap.users)
        was_interim = cap.interim.pop(four_tuple, None) is not None
        self._settle(cap)
        if cap.make_room() or was_interim:
            self.classes.want(cap.minor, cap.spec)

    def _hold(self, member: Member, cap: LiveCap) -> None:
        member.held_by = cap
        cap.held += 1

    def _let_go(self, member: Member) -> None:
        if member.held_by is not None:
            member.held_by.held -= 1
            member.held_by = None

    def _release(self, member: Member, now: float, *, drains: bool) -> None:
        """Take a subflow out of its cap, and drop its entry, now or when it has drained."""
        cap = member.held_by or member.cap
        self._leave(member, now)
        self._let_go(member)
        member.token, member.in_class = None, False
        four_tuple = member.four_tuple
        if drains and self.direction is Direction.DOWN and cap is not None and four_tuple in self.entries.desired:
            self._hold(member, cap)
            self.draining[four_tuple] = now + DRAIN_SECONDS
            if len(self.draining) > MAX_DRAINING:
                self._end_drain(self.members[next(iter(self.draining))])
        else:
            self.entries.drop(four_tuple)
            del self.members[four_tuple]

    def _is_overdue(self, four_tuple: FourTuple) -> bool:
        return self.draining[four_tuple] <= self._now

    def _end_draining(self) -> None:
        """Drop overdue entries whose sockets cannot be queried, or need not be queried after a change of policy."""
        for four_tuple in self.overdue(DRAIN_SLICE):
            if not self.soft_caps or self.draining[four_tuple] == -math.inf:
                self._end_drain(self.members[four_tuple])

    def _end_drain(self, member: Member) -> None:
        four_tuple = member.four_tuple
        del self.draining[four_tuple], self.members[four_tuple]
        self._let_go(member)
        self.entries.drop(four_tuple)
        self._mark_moved((four_tuple,))

    def _decided(self, cap: LiveCap, four_tuples: Iterable[FourTuple]) -> None:
        if not isinstance(cap.scope.member, tuple):  # a cap that balances loads is not measured
            now = self.clock()
            for four_tuple in four_tuples:
                cap.unsettled.setdefault(four_tuple, now)

    def _check(self, four_tuple: FourTuple) -> None:
        """Report the cap of a subflow if it is in force: the kernel has class and entry, and the onset is complete."""
        cap = self._cap_on(four_tuple)
        if cap is None or four_tuple not in cap.unsettled or cap.throttle != cap.wanted:
            return
        if four_tuple in cap.pending or four_tuple in cap.interim:
            return
        if four_tuple not in self.entries.upserts and cap.minor not in self.classes.upserts:
            self.in_force(self.clock() - cap.unsettled.pop(four_tuple))

    def _entries_changed(self, four_tuples: Collection[FourTuple], there: bool) -> None:
        for four_tuple in four_tuples if there else ():
            self._check(four_tuple)
        self.kernel_changed(four_tuples, there)

    def _classes_changed(self, minors: Collection[int], there: bool) -> None:
        for minor in minors if there else ():
            if cap := self._by_minor.get(minor):
                for four_tuple in list(cap.unsettled):
                    self._check(four_tuple)


def plain_tcp_caps(policy: Policy, planner: Planner) -> Iterator[tuple[Target, PathMatch]]:
    """Yield the caps on plain TCP and their paths, the last rule first. For a packet the last match in the table
    counts, so that the first rule of the policy decides."""
    for index, rule in reversed(list(enumerate(policy.rules))):
        cap = planner.caps.get(ScopeKey(rule.name, Share.PATH))
        if cap is not None and rule.caps_plain_tcp:
            target = Target(cap.minor, planner.ownership.mark_of_rule(index))
            for name in rule.paths or ():
                yield target, policy.paths[name]
