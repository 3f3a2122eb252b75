"""Evaluate the policy for each active subflow of a connection, and give reasons. Pure.

This runs on every change of any connection, so the policy is compiled into integers and answers are cached.

Cap, budget and steering are three independent questions, for each direction. The first rule decides that answers the
question (``none`` included), catches the subflow and whose conditions the connection meets. Then the cap is lifted from
a subflow on the last usable path. A backup subflow is usable only while there is no regular one (RFC 8684, 3.3.8).

Two subflows are on different paths if they match different ``paths`` of the policy, or if one of them matches none:
what a cap keeps from one of two subflows over one uplink has nowhere else to go. In a policy without ``paths``, which
cannot tell uplinks apart, each subflow counts as a path.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from functools import lru_cache, partial
from operator import itemgetter
from typing import Final, NamedTuple

from mptcp_common.units import counted, format_rate
from mptcp_throttler.mptcp.model import Connection, Subflow
from mptcp_throttler.policy.conditions import (
    Condition,
    OfSubflow,
    OpenHours,
    PathCount,
    Seen,
    SubflowCount,
    Subject,
)
from mptcp_throttler.policy.model import Direction, Kind, PathMatch, Policy, Rule, Share, Throttle
from mptcp_throttler.policy.schedule import hours_text, last_change, moment_text, next_change
from mptcp_throttler.policy.verdict import BEFORE, NO_RULE, ScopeKey, Verdict, joined

_REMEMBERED_SUBFLOWS: Final = 65_536
"""Size of the cache of facts: room for all subflows, because a reload asks for each in order, and a smaller LRU cache
would never hit. An entry takes 250 to 300 bytes, all of them about 20 MB."""
_REMEMBERED_ANSWERS: Final = 4096
"""Cached answers per direction, one per situation."""

_EACH: Final = {Share.PATH: "", Share.CLIENT: " per client", Share.CONNECTION: " per connection"}
_PLURAL: Final = {Kind.BUDGET: "budgets", Kind.STEER: "steering"}
_WAYS: Final = {frozenset({Direction.DOWN}): "downloads", frozenset({Direction.UP}): "uploads"}


def evaluate(policy: Policy, connection: Connection, now: float, expected: int = 0) -> tuple[Verdict, ...]:
    """Return a download verdict per active subflow, in order; then upload verdicts, if any rule acts on uploads.

    Caps are decided as if there were subflows on at least *expected* paths (``policy.anticipation``)."""
    return _compiled(policy).evaluate(connection, now, expected)


def count_paths(policy: Policy, connection: Connection) -> int:
    """Return the number of paths with active subflows of *connection*."""
    return _compiled(policy).count_paths(connection)


_last: CompiledPolicy | None = None


def _compiled(policy: Policy) -> CompiledPolicy:
    """Return *policy* compiled. The last one is cached by identity: one policy is in force at a time."""
    global _last  # noqa: PLW0603 - hashing a whole policy on each call would cost more than the evaluation
    if _last is None or _last.policy is not policy:
        _last = CompiledPolicy(policy)
    return _last


class _Facts(NamedTuple):
    """What the policy says of a subflow regardless of the rest of its connection."""

    path: str | None
    """The first path that it is on."""
    path_bits: int
    """Bit set of all its paths, by position in the policy."""
    met: int
    """Bit set of the subflow conditions that it meets."""


class Situation(NamedTuple):
    """All that an answer depends on, except the clock."""

    path_bits: int
    met: int
    """Bit set of the subflow conditions that any active subflow of the connection meets."""
    active: int
    paths: int
    expected: int
    """Number of paths expected soon, at least ``paths``; caps are decided with it."""
    last: bool
    """Whether the subflow is on the last usable path."""

    def counted(self, kind: Kind) -> tuple[int, int]:
        """Return the numbers of paths and of active subflows that count for *kind*."""
        more = self.expected - self.paths if kind is Kind.THROTTLE else 0
        return self.paths + more, self.active + more


class View(NamedTuple):
    """The common part of the situations of a connection's subflows."""

    met: int
    active: int
    paths: int
    expected: int
    last: Sequence[Subflow]
    """The subflows on the last usable path; empty while several paths are usable."""

    @classmethod
    def of(cls, active: Sequence[Subflow], facts: Sequence[_Facts], expected: int, knows_paths: bool) -> View:
        met = 0
        for each in facts:
            met |= each.met
        on = [each.path_bits for each in facts] if knows_paths else range(len(active))
        paths = len(set(on))
        expected = max(expected, paths)
        last: Sequence[Subflow] = ()
        if expected == paths:
            regular = {path for subflow, path in zip(active, on, strict=True) if not subflow.backup}
            if len(regular or set(on)) == 1:
                last = [subflow for subflow in active if not (regular and subflow.backup)]
        return cls(met, len(active), paths, expected, last)

    def situation(self, subflow: Subflow, path_bits: int) -> Situation:
        last = any(subflow is each for each in self.last)
        return Situation(path_bits, self.met, self.active, self.paths, self.expected, last)


class _Answer(NamedTuple):
    """The verdict for every subflow in one situation and direction, without the subflow's four-tuple."""

    rule: Rule | None
    scope: ScopeKey | None
    """Set for a cap with share: path."""
    share: Share | None
    """Set for a cap with another share: client or connection."""
    throttle: Throttle | None
    reason: str
    budget: Rule | None
    steer: Rule | None
    steer_path: str | None


class CompiledRule(NamedTuple):
    """One rule, compiled for one question."""

    rule: Rule
    exempts: bool
    conditions: Sequence[Condition]
    path_bits: int | None
    """Bit set of the paths whose subflows it catches; None for all subflows."""

    def failed(self, seen: Seen) -> list[Condition]:
        """Return the conditions that do not hold."""
        return [each for each in self.conditions if not each.holds(seen)]


def cap_text(throttle: Throttle) -> str:
    """Return ``5 Mbit/s per client, up to 8 Mbit/s``."""
    up_to = "" if throttle.ceil == throttle.rate else f", up to {format_rate(throttle.ceil)}"
    return f"{format_rate(throttle.rate)}{_EACH[throttle.share]}{up_to}"


class CompiledPolicy:
    """A policy compiled for fast evaluation."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        directions = (Direction.DOWN, *([Direction.UP] if policy.acts_on_upload else []))
        self._rules = {direction: {kind: self._compile(kind, direction) for kind in Kind} for direction in directions}
        self._answers: dict[Direction, dict[Situation, _Answer]] = {direction: {} for direction in directions}
        every = [rule for kinds in self._rules.values() for rules in kinds.values() for rule in rules]
        conditions = dict.fromkeys(one for rule in every for one in rule.conditions if isinstance(one, OfSubflow))
        self._of_subflow = {one: 1 << place for place, one in enumerate(conditions)}
        # Not a method: its reference to this object would make a cycle, and each reload would leak a policy.
        find = partial(_find_facts, tuple(policy.paths.values()), tuple(self._of_subflow.items()))
        self._facts = lru_cache(_REMEMBERED_SUBFLOWS)(find)
        self._scheduled = any(rule.when.windows is not None for rule in policy.rules)
        self._local = datetime.fromtimestamp(0, policy.time_zone)
        self._open_since = self._open_until = -math.inf

    def _compile(self, kind: Kind, direction: Direction) -> list[CompiledRule]:
        """Return the rules that answer *kind*; no budget or steering rules if all of them only exempt."""
        bit_of = {name: 1 << position for position, name in enumerate(self.policy.paths)}
        rules = [
            CompiledRule(
                rule,
                kind in rule.exempts,
                rule.conditions(kind),
                None if rule.paths is None else sum({bit_of[name] for name in rule.paths}),
            )
            for rule in self.policy.rules
            if direction in rule.direction and rule.answers(kind)
        ]
        if kind is Kind.STEER and direction is Direction.UP:
            return []
        return rules if kind is Kind.THROTTLE or not all(each.exempts for each in rules) else []

    def evaluate(self, connection: Connection, now: float, expected: int = 0) -> tuple[Verdict, ...]:
        """Return one verdict per subflow of *connection*, in order, direction by direction."""
        subflows = connection.subflows
        if self._scheduled and not self._open_since <= now < self._open_until:
            self._read_clock(now)
        facts = self._facts_of(subflows)
        seen = self._view(subflows, facts, expected)
        verdicts = []
        for direction in self._answers:
            for subflow, (path, path_bits, _) in zip(subflows, facts, strict=True):
                answer = self._asked(seen.situation(subflow, path_bits), direction)
                rule, scope, share, throttle, reason, budget, steer, steer_path = answer
                four_tuple = subflow.four_tuple
                if share is not None and rule is not None:
                    member = four_tuple.remote if share is Share.CLIENT else connection.token
                    scope = ScopeKey(rule.name, share, member, direction)
                verdicts.append(
                    Verdict(four_tuple, path, rule, scope, throttle, reason, direction, budget, steer, steer_path)
                )
        return tuple(verdicts)

    def count_paths(self, connection: Connection) -> int:
        """Return the number of paths with subflows of *connection*."""
        return self._view(connection.subflows, self._facts_of(connection.subflows), 0).paths

    def _facts_of(self, subflows: Collection[Subflow]) -> list[_Facts]:
        return [
            self._facts(each.four_tuple.remote, each.interface, each.remote_id, each.initial, each.backup)
            for each in subflows
        ]

    def _view(self, subflows: Sequence[Subflow], facts: Sequence[_Facts], expected: int) -> View:
        return View.of(subflows, facts, expected, bool(self.policy.paths))

    def _asked(self, situation: Situation, direction: Direction) -> _Answer:
        answers = self._answers[direction]
        answer = answers.get(situation)
        if answer is None:
            if len(answers) >= _REMEMBERED_ANSWERS:
                answers.clear()
            answer = answers[situation] = self._answer(situation, direction)
        return answer

    def _answer(self, situation: Situation, direction: Direction) -> _Answer:
        before = BEFORE[direction]
        cap, passed_over = self._first(Kind.THROTTLE, situation, direction)
        rule = None if cap is None else cap.rule
        scope, share, throttle = None, None, None
        if cap is None or rule is None:
            reason = before + (NO_RULE if passed_over is None else self._why_not(passed_over, Kind.THROTTLE, situation))
        elif rule.throttle is None:
            reason = f"{before}exempted by rule {rule.name}"
        elif rule.lift_last and situation.last:
            reason = f"{before}cap of rule {rule.name} lifted: the last usable path"
        else:
            throttle = rule.throttle
            if throttle.share is Share.PATH:
                scope = ScopeKey(rule.name, Share.PATH, direction=direction)
            else:
                share = throttle.share
            verb = "would cap" if self.policy.dry_run else "caps"
            what = "every subflow" if cap.path_bits is None else f"path {self._path(cap.path_bits, situation)}"
            active = f"{counted(situation.active, 'subflow')} active"
            if situation.expected > situation.paths:
                active = f"{active}, {situation.counted(Kind.THROTTLE)[1]} anticipated"
            dry = " (dry run)" if self.policy.dry_run else ""
            reason = f"{before}rule {rule.name} {verb} {what} at {cap_text(throttle)}: {active}{dry}"
        found: dict[Kind, CompiledRule | None] = {}
        for kind in (Kind.BUDGET, Kind.STEER):
            other, passed_over = self._first(kind, situation, direction)
            if other is not None and other.exempts:
                reason = joined(reason, f"exempted from {_PLURAL[kind]} by rule {other.rule.name}", direction)
            elif other is None and passed_over is not None:
                why = self._why_not(passed_over, kind, situation)
                reason = reason if reason.endswith(why) else joined(reason, why, direction)
            found[kind] = None if other is None or other.exempts else other
        budget, steer = found[Kind.BUDGET], found[Kind.STEER]
        return _Answer(
            rule,
            scope,
            share,
            throttle,
            reason,
            None if budget is None else budget.rule,
            None if steer is None else steer.rule,
            None if steer is None or steer.path_bits is None else self._path(steer.path_bits, situation),
        )

    def _first(
        self, kind: Kind, situation: Situation, direction: Direction
    ) -> tuple[CompiledRule | None, CompiledRule | None]:
        """Return the deciding rule and, of those above it that catch the subflow, the nearest to matching."""
        passed_over: list[tuple[int, CompiledRule]] = []
        decides: CompiledRule | None = None
        seen = self._seen(kind, situation)
        for each in self._rules[direction][kind]:
            if each.path_bits is not None and not each.path_bits & situation.path_bits:
                continue
            failed = each.failed(seen)
            if not failed:
                decides = each
                break
            passed_over.append((_distance(failed), each))
        return decides, min(passed_over, key=itemgetter(0), default=(0, None))[1]

    def _seen(self, kind: Kind, situation: Situation) -> Seen:
        paths, subflows = situation.counted(kind)
        met = {condition for condition, bit in self._of_subflow.items() if bit & situation.met}
        return Seen(situation.active, situation.paths, subflows, paths, met, self._local)

    def _why_not(self, rule: CompiledRule, kind: Kind, situation: Situation) -> str:
        seen = self._seen(kind, situation)
        failed, *_ = rule.failed(seen)
        return f"rule {rule.rule.name} does not apply: {failed.why_not(seen)}"

    def _path(self, path_bits: int, situation: Situation) -> str:
        return list(self.policy.paths)[_lowest_bit(path_bits & situation.path_bits)]

    def _read_clock(self, now: float) -> None:
        change = self.policy.next_change(now)
        self._local = datetime.fromtimestamp(now, self.policy.time_zone)
        self._open_since = now
        self._open_until = math.inf if change is None else change
        for answers in self._answers.values():
            answers.clear()


class Tried(NamedTuple):
    """The outcome of one rule for one question."""

    rule: str
    kind: Kind
    matched: bool
    failed: str | None
    """The first unmet condition, in words. For a rule that decided: why its cap is lifted."""
    until: float | None
    """When the rule's hours next change this, seconds since the epoch; None if never, or if the first unmet condition
    is not the hours."""
    since: float | None
    """When the rule's hours last caused this; None as for ``until``."""


class ExplainedPolicy(CompiledPolicy):
    """A policy that explains its decisions, for people: one connection at a time."""

    def tried(
        self, connection: Connection, subflow: Subflow, direction: Direction, now: float, expected: int = 0
    ) -> Iterator[Tried]:
        """Yield the outcome of each rule for *subflow*, question by question.

        *expected* is as in :meth:`evaluate`.
        """
        self._read_clock(now)
        facts = self._facts_of(connection.subflows)
        path_bits = facts[connection.subflows.index(subflow)].path_bits
        situation = self._view(connection.subflows, facts, expected).situation(subflow, path_bits)
        for kind, rules in self._rules.get(direction, {}).items():
            decides = self._first(kind, situation, direction)[0] if rules else None
            compiled = {each.rule.name: each for each in rules}
            decided = False
            for rule in self.policy.rules if rules else ():
                each = compiled.get(rule.name)
                if each is None:
                    if rule.answers(kind):
                        yield Tried(rule.name, kind, False, f"it is for {_WAYS[rule.direction]}", None, None)
                elif decided and decides is not None:
                    yield Tried(rule.name, kind, False, f"rule {decides.rule.name} above decides", None, None)
                elif each.path_bits is not None and not each.path_bits & path_bits:
                    yield Tried(rule.name, kind, False, self._not_caught(rule, path_bits), None, None)
                elif each is not decides:
                    yield self._not_met(each, kind, situation, now)
                else:
                    decided = True
                    lifted = kind is Kind.THROTTLE and rule.lift_last and situation.last and rule.throttle
                    why = "lifted: the last usable path" if lifted else None
                    yield Tried(rule.name, kind, True, why, self._until(rule, now), self._since(rule, now))

    def _not_caught(self, rule: Rule, path_bits: int) -> str:
        names = [name for place, name in enumerate(self.policy.paths) if path_bits >> place & 1]
        where = f"on path {' and '.join(names)}" if names else "on no path of the policy"
        return f"it is {where}, not on {' or '.join(rule.paths or ())}"

    def _not_met(self, rule: CompiledRule, kind: Kind, situation: Situation, now: float) -> Tried:
        """Return why a rule that catches the subflow does not decide; for its hours, also when they next begin."""
        seen = self._seen(kind, situation)
        failed, *_ = rule.failed(seen)
        why, until, since = failed.why_not(seen), None, None
        if isinstance(failed, OpenHours):
            zone, until, since = self.policy.time_zone, self._until(rule.rule, now), self._since(rule.rule, now)
            begins = "" if until is None else f"; begins {moment_text(until, now, zone)}"
            why = f"{why}, {hours_text(failed.windows)}{begins} ({zone})"
        return Tried(rule.rule.name, kind, False, why, until, since)

    def _until(self, rule: Rule, now: float) -> float | None:
        return next_change([rule.when.windows] if rule.when.windows else [], self.policy.time_zone, now)

    def _since(self, rule: Rule, now: float) -> float | None:
        return None if rule.when.windows is None else last_change(rule.when.windows, self.policy.time_zone, now)


def _distance(failed: Sequence[Condition]) -> int:
    """Return how far a rule is from matching: other clients weigh more than hours and missing subflows together."""
    other_clients = any(isinstance(each, OfSubflow) for each in failed)
    outside_hours = any(isinstance(each, OpenHours) for each in failed)
    counts = any(isinstance(each, (SubflowCount, PathCount)) for each in failed)
    return 3 * other_clients + outside_hours + counts


def _find_facts(paths: Sequence[PathMatch], conditions: Sequence[tuple[OfSubflow, int]], *subject: object) -> _Facts:
    subflow = Subject(*subject)  # type: ignore[arg-type] # its fields, in their order
    path_bits = met = 0
    for place, path in enumerate(paths):
        if path.holds(subflow):
            path_bits |= 1 << place
    for condition, bit in conditions:
        if condition.is_met_by(subflow):
            met |= bit
    return _Facts(paths[_lowest_bit(path_bits)].name if path_bits else None, path_bits, met)


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
