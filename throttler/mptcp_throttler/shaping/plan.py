# SPDX-License-Identifier: GPL-2.0-or-later
"""Turns verdicts into the HTB classes and set entries that they need. Pure: without kernel access; times are arguments.

Each cap (:class:`~mptcp_throttler.policy.verdict.ScopeKey`) has one class. The class of a path cap is created with the
policy, so that later connections do not wait. The class of a client's or connection's cap is created at its first use,
and deleted when it was idle for some time. A class keeps its minor number as long as it exists, across reloads and (by
:meth:`Planner.adopt`) restarts of the daemon, because the entries in the kernel refer to it.

A capped subflow is *pending* while ``onset`` runs its onset (:attr:`Planner.soft_caps`), until
:meth:`Planner.complete`. Then its entry becomes desired. A lowered cap gets its new rate when the onsets of all its
users are complete. The cap is *in force* when the kernel has class and entry. After its end, a subflow *drains*: its
entry stays until the data assigned to it are sent. Each call from ``onset`` costs O(1) per subflow.
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
from mptcp_throttler.shaping.model import DEFAULT_MINOR, NO_TRANSITION_SHARE, ClassSpec, DeltaTracker, Ownership, Target

IDLE_SECONDS = 60.0  # how long the class of an unused cap is kept
CONNECTION_IDLE_SECONDS = 2.0  # how long the class of a connection's unused cap is kept; no later cap has its token
UNCAPPED = Target(DEFAULT_MINOR, 0)
"""Target of a subflow that lost the cap in whose class it began: otherwise its packets would still use that class."""
DRAIN_SECONDS = 10.0  # minimum lifetime of an ended subflow's entry; longer if its socket is known to have data
MAX_DRAINING = 16_384  # maximum number of draining entries; without it, 10,000 connections/s would keep 100,000
MAX_CHANGED = 1024  # maximum number of changed subflows processed per call
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
        self.members: dict[FourTuple, Member] = {}  # subflows with cap or entry, or at rest; others only read it
        self._connections: dict[int, tuple[FourTuple, ...]] = {}
        self.draining: dict[FourTuple, float] = {}  # ended members, oldest first, with the end time of their entries
        self.changed_subflows: set[FourTuple] = set()  # subflows that :meth:`take_changed_subflows` returns
        self._marks: dict[str, int] = {}
        self._rules: dict[str, Rule] = {}
        self._now = 0.0
        self.soft_caps = False  # whether an object that runs soft onsets is attached
        self.initial_classes: Collection[int] = ()  # handles of the classes into which sockets are accepted
        self.joins_rest = False  # whether some joins rested from their acceptance on: those without a cap must be woken
        self.kernel_changed: Callable[[Collection[FourTuple], bool], None] = lambda four_tuples, present: None
        """Function that is called with the entries that the kernel added or changed (True) or removed (False)."""
        self.clock: Callable[[], float] = lambda: 0.0
        self.report_delay: Callable[[float], None] = lambda seconds: None
        """Function that is called with the delay, seconds of :attr:`clock`, from the decision on a cap or its new rate
        to its full effect on a subflow. Caps that balance loads are not reported."""

    def set_policy(self, policy: Policy) -> None:
        """Put *policy* in force. The caller must then give verdicts under it for every connection."""
        self.draining = dict.fromkeys(self.draining, -math.inf)
        self._end_draining()
        self._rules = {rule.name: rule for rule in policy.rules if self.direction in rule.direction}
        self._marks = {rule.name: self.ownership.mark_of_rule(i) for i, rule in enumerate(policy.rules)}
        for scope, cap in self.caps.items():
            cap.mark = self._marks.get(scope.rule, cap.mark)
            cap.level = cap.allowance_used_at = None
            throttle = self._throttle(scope)
            if throttle is not None:
                self._change_throttle(cap, throttle)

    def adopt(self, classes: Mapping[int, ClassSpec], entries: Mapping[FourTuple, Target]) -> None:
        """Record the kernel's *classes* and *entries* as the actual state; later verdicts reuse the classes."""
        self.classes.set_actual(classes)
        self.entries.set_actual(entries)

    def prepare_path_classes(self, now: float) -> None:
        """Create the classes of path caps. Call this at the start, after the verdicts on known connections."""
        for rule in self._rules.values():
            if rule.throttle is not None and rule.throttle.share is Share.PATH:
                self._live_cap(ScopeKey(rule.name, Share.PATH, direction=self.direction), rule.throttle, None, now)

    def set_verdicts(
        self, token: int, verdicts: Iterable[Verdict], now: float, young: Collection[FourTuple] = ()
    ) -> None:
        """Replace the desired state of the connection *token* with *verdicts*, one for each active subflow.

        Verdicts on the other direction and on foreign ports are ignored. *young*: subflows that were just accepted, and
        need no transition. Raises :class:`PlanError` if no class is left for some subflows: these keep their old cap,
        or have none; all other verdicts still apply.
        """
        ports = self.ownership.ports
        active, refused = set[FourTuple](), list[PlanError]()
        for verdict in verdicts:
            four_tuple = verdict.four_tuple
            if verdict.direction is not self.direction or four_tuple.local_port not in ports:
                continue
            active.add(four_tuple)
            member = self.members.get(four_tuple)
            if member is not None and member.token is not None and member.token != token:
                # The client reused the port for a newer connection before the end of the older one was reported.
                self._release(member, now, drains=True)
            try:
                if verdict.scope is None or verdict.throttle is None:
                    self._uncap(verdict, token, now, young)
                else:
                    self._cap(verdict, verdict.scope, verdict.throttle, token, now, four_tuple in young)
            except PlanError as error:
                refused = refused or [error]  # only the first error, in a list: see ``runtime.event_loop``
                if self._cap_of(four_tuple) is None:
                    self._uncap(verdict, token, now, young)
                else:
                    self._set_rest(self.members[four_tuple], rests=verdict.rests)
        for four_tuple in self._connections.pop(token, ()):
            member = self.members.get(four_tuple)
            if member is not None and member.token == token and four_tuple not in active:
                self._release(member, now, drains=True)
        if remaining := tuple(each for each in active if each in self.members and self.members[each].token == token):
            self._connections[token] = remaining
        if refused:
            raise refused.pop()

    def expire(self, now: float) -> None:
        """Drop drained entries, classes that no rule can use, and idle classes of clients and connections."""
        self._now = now
        self._end_draining()
        for scope, cap in list(self.caps.items()):
            if cap.users or cap.held_entries:
                continue
            keep_seconds = CONNECTION_IDLE_SECONDS if scope.share is Share.CONNECTION else IDLE_SECONDS
            is_usable = self._throttle(scope) is not None
            if is_usable and (scope.share is Share.PATH or now - cap.idle_since < keep_seconds):
                continue
            del self.caps[scope], self._by_minor[cap.minor]
            self._numbers.release(cap.minor)
            self.classes.drop(cap.minor)

    def class_of(self, scope: ScopeKey) -> int | None:
        """Return the handle of a cap's class, or None."""
        cap = self.caps.get(scope)
        return None if cap is None else self.ownership.htb_major << 16 | cap.minor

    def pending(self) -> list[FourTuple]:
        return [four_tuple for cap in self.caps.values() for four_tuple in cap.pending]

    def in_onset(self, four_tuple: FourTuple) -> bool:
        """Return whether a subflow is pending, or its class still falls to its cap."""
        cap = self._cap_of(four_tuple)
        return cap is not None and (four_tuple in cap.pending or four_tuple in cap.interim_rates)

    def onsets(self) -> Iterator[FourTuple]:
        """Yield all subflows in onset, each once."""
        for cap in self.caps.values():
            if cap.pending or cap.interim_rates:
                yield from cap.pending | cap.interim_rates.keys()

    def take_changed_subflows(self, limit: int = MAX_CHANGED) -> list[FourTuple]:
        """Return at most *limit* subflows that got or lost a cap, or whose cap changed, each once."""
        return [self.changed_subflows.pop() for _ in range(min(limit, len(self.changed_subflows)))]

    def soft_cap(self, four_tuple: FourTuple) -> LiveCap | None:
        """Return the soft cap that is or will be on a subflow, or None."""
        cap = self._cap_of(four_tuple)
        return cap if cap is not None and cap.final_throttle.landing is Onset.SOFT else None

    def shared_soft_caps(self) -> Iterator[LiveCap]:
        """Yield each soft cap with more than one user."""
        for cap in self._shared.values():
            if cap.final_throttle.landing is Onset.SOFT:
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
        cap.lowered.discard(four_tuple)
        self._apply_throttle(cap)
        self._add_entry(member, cap)
        return True

    def set_interim(self, rates: Mapping[FourTuple, int | None]) -> bool:
        """Give subflows interim rates, bits/s; None ends an interim rate. While a class has interim rates, its rate is
        their sum, if that is above its throttle. Return whether a class changed."""
        changed_caps: set[LiveCap] = set()
        for four_tuple, rate in rates.items():
            cap = self._cap_of(four_tuple)
            if cap is None or cap.interim_rates.get(four_tuple) == rate:
                continue
            if rate is None:
                del cap.interim_rates[four_tuple]
            else:
                cap.interim_rates[four_tuple] = rate
            changed_caps.add(cap)
        for cap in changed_caps:
            self.classes.set_desired(cap.minor, cap.spec)
        for four_tuple in rates:
            self._report_if_in_force(four_tuple)
        return bool(changed_caps)

    def overdue(self, limit: int) -> list[FourTuple]:
        """Return up to *limit* draining subflows whose time is over; call :meth:`settle_overdue` for each."""
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

    def _cap_of(self, four_tuple: FourTuple) -> LiveCap | None:
        member = self.members.get(four_tuple)
        return None if member is None else member.cap

    def _has_soft_onset(self, throttle: Throttle) -> bool:
        return self.soft_caps and throttle.landing is Onset.SOFT

    def _mark_changed(self, four_tuples: Iterable[FourTuple]) -> None:
        if self.soft_caps:
            self.changed_subflows.update(four_tuples)

    def _set_rest(self, member: Member, *, rests: bool) -> None:
        if member.rests is not rests:
            member.rests = rests
            self._mark_changed((member.four_tuple,))

    def _live_cap(self, scope: ScopeKey, throttle: Throttle, four_tuple: FourTuple | None, now: float) -> LiveCap:
        cap = self.caps.get(scope)
        if cap is None:
            entry = None if four_tuple is None else self.entries.actual.get(four_tuple)
            previous, for_path = None if entry is None else entry.minor, scope.share is Share.PATH
            minor = self._numbers.allocate(previous, self.classes.actual, for_path=for_path)
            mark = self._marks.get(scope.rule, 0)
            cap = LiveCap(scope, minor, self.direction, throttle, throttle, mark, idle_since=now)
            self.caps[scope] = self._by_minor[minor] = cap
            self.classes.set_desired(minor, cap.spec)
        return cap

    def _cap(self, verdict: Verdict, scope: ScopeKey, throttle: Throttle, token: int, now: float, young: bool) -> None:
        """Put a subflow under its cap. Raises :class:`PlanError`."""
        four_tuple = verdict.four_tuple
        cap = self._live_cap(scope, throttle, four_tuple, now)  # before any change, since it may raise
        member = self.members.get(four_tuple)
        if member is None:
            member = self.members[four_tuple] = Member(four_tuple)
        member.token, previous = token, member.cap
        self.draining.pop(four_tuple, None)
        if self.entries.desired.get(four_tuple) == UNCAPPED:
            self.entries.drop(four_tuple)
        if previous is not None and previous is not cap:
            self._remove_from_cap(member, now)
            if four_tuple in self.entries.desired and member.entry_cap is None:
                self._hold_entry(member, previous)
        self._change_throttle(cap, throttle)
        if previous is not cap:
            member.cap = cap
            cap.users[four_tuple] = member
            if young:
                member.accepted_in_class |= self.class_of(scope) in self.initial_classes
                member.is_new = previous is None and self._has_soft_onset(throttle)
            if len(cap.users) > 1:
                self._shared[cap.minor] = cap
            if cap.resize_queue():
                self.classes.set_desired(cap.minor, cap.spec)
            self._mark_changed((four_tuple,))
            self._record_decision(cap, (four_tuple,))
            entry = self.entries.actual.get(four_tuple)
            if self._has_soft_onset(throttle) and not young and (entry is None or entry.minor != cap.minor):
                cap.pending.add(four_tuple)
        if four_tuple not in cap.pending or (four_tuple in self.entries.desired and member.entry_cap is None):
            self._add_entry(member, cap)
        self._set_rest(member, rests=verdict.rests)

    def _add_entry(self, member: Member, cap: LiveCap) -> None:
        self._release_entry(member)
        self.entries.set_desired(member.four_tuple, Target(cap.minor, cap.mark))
        self._report_if_in_force(member.four_tuple)

    def _uncap(self, verdict: Verdict, token: int, now: float, young: Collection[FourTuple]) -> None:
        """Remove a subflow from its cap, and let it rest if its verdict requires that. If its socket sends to the class
        of the cap, give it an entry for the default class."""
        four_tuple, rests = verdict.four_tuple, verdict.rests and self.soft_caps
        if self.joins_rest and four_tuple in young:
            self._mark_changed((four_tuple,))
        member = self.members.get(four_tuple)
        if member is not None and member.token is None:
            self._end_drain(member)
            member = None
        if member is not None and member.accepted_in_class and member.cap is not None:
            self._remove_from_cap(member, now)
            self._release_entry(member)
            self.entries.set_desired(four_tuple, UNCAPPED)
        elif member is not None and not member.accepted_in_class and (member.cap is not None or not rests):
            self._release(member, now, drains=False)
            member = None
        if member is None and rests:
            member = self.members[four_tuple] = Member(four_tuple, token)
        if member is not None:
            self._set_rest(member, rests=rests)

    def _change_throttle(self, cap: LiveCap, throttle: Throttle) -> None:
        """Give *cap* another throttle: at once, or, if the rate falls, when the onsets of its users are complete."""
        previous = cap.final_throttle
        if previous is throttle or previous == throttle:  # identity first, because ``==`` compares every field
            return
        cap.final_throttle = throttle
        self._mark_changed(cap.users)
        if cap.users and self._has_soft_onset(throttle) and throttle.ceil < cap.throttle.ceil * NO_TRANSITION_SHARE:
            cap.pending |= cap.users.keys()
            cap.lowered = set(cap.users)
        else:
            cap.throttle = throttle
            self.classes.set_desired(cap.minor, cap.spec)
        if (previous.rate, previous.ceil, previous.burst) != (throttle.rate, throttle.ceil, throttle.burst):
            self._record_decision(cap, cap.users)
        if not self._has_soft_onset(throttle):
            for four_tuple in list(cap.pending):
                self.complete(four_tuple)  # no soft onset will complete it

    def _apply_throttle(self, cap: LiveCap) -> None:
        if cap.throttle != cap.final_throttle and not cap.lowered:
            cap.throttle = cap.final_throttle
            self.classes.set_desired(cap.minor, cap.spec)

    def _remove_from_cap(self, member: Member, now: float) -> None:
        """Remove a subflow from its cap; its entry stays."""
        self._set_rest(member, rests=False)
        cap, member.cap = member.cap, None
        member.is_new = False
        if cap is None:
            return
        four_tuple = member.four_tuple
        del cap.users[four_tuple]
        cap.decision_times.pop(four_tuple, None)
        cap.pending.discard(four_tuple)
        cap.lowered.discard(four_tuple)
        cap.idle_since = now
        self._mark_changed((four_tuple,))
        if len(cap.users) < 2 and self._shared.pop(cap.minor, None) is not None:
            # The remaining user may take the whole cap.
            self._mark_changed(cap.users)
        was_interim = cap.interim_rates.pop(four_tuple, None) is not None
        self._apply_throttle(cap)
        if cap.resize_queue() or was_interim:
            self.classes.set_desired(cap.minor, cap.spec)

    def _hold_entry(self, member: Member, cap: LiveCap) -> None:
        member.entry_cap = cap
        cap.held_entries += 1

    def _release_entry(self, member: Member) -> None:
        if member.entry_cap is not None:
            member.entry_cap.held_entries -= 1
            member.entry_cap = None

    def _release(self, member: Member, now: float, *, drains: bool) -> None:
        """Remove a subflow from its cap, and drop its entry, now or when it has drained."""
        cap = member.entry_cap or member.cap
        self._remove_from_cap(member, now)
        self._release_entry(member)
        member.token, member.accepted_in_class = None, False
        four_tuple = member.four_tuple
        if drains and self.direction is Direction.DOWN and cap is not None and four_tuple in self.entries.desired:
            self._hold_entry(member, cap)
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
        self._release_entry(member)
        self.entries.drop(four_tuple)
        self._mark_changed((four_tuple,))

    def _record_decision(self, cap: LiveCap, four_tuples: Iterable[FourTuple]) -> None:
        if not isinstance(cap.scope.member, tuple):  # a cap that balances loads is not measured
            now = self.clock()
            for four_tuple in four_tuples:
                cap.decision_times.setdefault(four_tuple, now)

    def _report_if_in_force(self, four_tuple: FourTuple) -> None:
        """Report the cap of a subflow if it is in force: the kernel has class and entry, and the onset is complete."""
        cap = self._cap_of(four_tuple)
        if cap is None or four_tuple not in cap.decision_times or cap.throttle != cap.final_throttle:
            return
        if four_tuple in cap.pending or four_tuple in cap.interim_rates:
            return
        if four_tuple not in self.entries.upserts and cap.minor not in self.classes.upserts:
            self.report_delay(self.clock() - cap.decision_times.pop(four_tuple))

    def _entries_changed(self, four_tuples: Collection[FourTuple], present: bool) -> None:
        for four_tuple in four_tuples if present else ():
            self._report_if_in_force(four_tuple)
        self.kernel_changed(four_tuples, present)

    def _classes_changed(self, minors: Collection[int], present: bool) -> None:
        for minor in minors if present else ():
            if cap := self._by_minor.get(minor):
                for four_tuple in list(cap.decision_times):
                    self._report_if_in_force(four_tuple)


def plain_tcp_caps(policy: Policy, planner: Planner) -> Iterator[tuple[Target, PathMatch]]:
    """Yield the caps on plain TCP and their paths, the last rule first: for a packet, the last match in the table
    counts, but the first rule of the policy must decide."""
    for index, rule in reversed(list(enumerate(policy.rules))):
        cap = planner.caps.get(ScopeKey(rule.name, Share.PATH))
        if cap is not None and rule.caps_plain_tcp:
            target = Target(cap.minor, planner.ownership.mark_of_rule(index))
            for name in rule.paths or ():
                yield target, policy.paths[name]
