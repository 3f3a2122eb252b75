# SPDX-License-Identifier: GPL-2.0-or-later
"""Evaluates the policy for each active subflow of a connection, and gives reasons.

This runs on every change of any connection, so the policy is compiled into integers and verdicts are cached.

Cap, budget and steering are decided independently, for each direction. The deciding rule is the first that has the key
``throttle``, ``budget`` or ``steer`` (``none`` exempts), catches the subflow, and has conditions that are met. Then a
cap on the last usable path is lifted. A backup subflow is usable only if no regular one is (RFC 8684, 3.3.8).

Two subflows are on the same path if they match the same ``paths`` of the policy, or if neither matches any: then they
may share an uplink, and if one is capped, its data cannot move to another uplink. In a policy without ``paths``, which
cannot distinguish uplinks, each subflow counts as a path.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from functools import reduce
from itertools import chain
from operator import itemgetter, or_
from typing import Final, NamedTuple

from mptcp_common.units import counted, format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow
from mptcp_throttler.policy.conditions import Conditions, Situation, Unmet
from mptcp_throttler.policy.model import Direction, Kind, Policy, Rule, Share, Throttle
from mptcp_throttler.policy.schedule import hours_text, moment_text, next_change
from mptcp_throttler.policy.values import Network, Prefixes
from mptcp_throttler.policy.verdict import NO_RULE, PREFIX, ScopeKey, Verdict, add_sentence

_MAX_SITUATIONS: Final = 4096  # maximum number of cached verdicts per direction

_PER_SHARE: Final = {Share.PATH: "", Share.CLIENT: " per client", Share.CONNECTION: " per connection"}
_KIND_NAMES: Final = {Kind.BUDGET: "budgets", Kind.STEER: "steering"}
_DISTANCES: Final = {"counts": 1, "clients": 3, "hours": 1}
"""Weight of each unmet condition. The rule with the smallest sum is the nearest to matching."""
_DIRECTION_NAMES: Final = {frozenset({Direction.DOWN}): "downloads", frozenset({Direction.UP}): "uploads"}


def evaluate(policy: Policy, connection: Connection, now: float, expected: int = 0) -> tuple[Verdict, ...]:
    """Return a download verdict per active subflow, in order; then upload verdicts, if any rule acts on uploads. Caps
    are decided as if there were subflows on at least *expected* paths (``policy.anticipation``)."""
    return _compiled_policy(policy).evaluate(connection, now, expected)


def count_paths(policy: Policy, connection: Connection) -> int:
    """Return the number of paths with active subflows of *connection*."""
    return _compiled_policy(policy).count_paths(connection)


_current: CompiledPolicy | None = None  # one policy is in force at a time


def _compiled_policy(policy: Policy) -> CompiledPolicy:
    global _current  # noqa: PLW0603 - hashing a whole policy on each call would cost more than the evaluation
    if _current is None or _current.policy is not policy:
        _current = CompiledPolicy(policy)
    return _current


class CompiledRule(NamedTuple):
    rule: Rule
    conditions: Conditions
    clients_bit: int  # 0 for a rule for all clients
    path_bits: int | None  # bit set of the paths whose subflows it catches; None for all subflows

    def catches(self, situation: Situation) -> bool:
        return self.path_bits is None or bool(self.path_bits & situation.path_bits)

    def unmet(self, situation: Situation, local: datetime) -> dict[Unmet, str]:
        from_clients = self.clients_bit & situation.from_clients == self.clients_bit
        return self.conditions.unmet(situation, local, from_clients)


class RuleOutcome(NamedTuple):
    rule: str
    kind: Kind
    matched: bool
    failed: str | None  # The first unmet condition, in words. For a rule that decided: why its cap is lifted.
    until: float | None = None  # when the rule's hours next change the outcome, epoch seconds; None without hours


def cap_text(throttle: Throttle) -> str:
    """Return ``5 Mbit/s per client, up to 8 Mbit/s``."""
    limit = "" if throttle.ceil == throttle.rate else f", up to {format_rate(throttle.ceil)}"
    return f"{format_rate(throttle.rate)}{_PER_SHARE[throttle.share]}{limit}"


def _map_prefixes(items: Iterable[tuple[Collection[Network] | None, int]]) -> Prefixes[int]:
    """Return, for each prefix, the bits of the paths or rules that name it, so that one look-up replaces 10,000."""
    bits_by_network: dict[Network, int] = {}
    for networks, bit in items:
        bits_by_network.update((each, bits_by_network.get(each, 0) | bit) for each in networks or ())
    return Prefixes(bits_by_network.items())


class CompiledPolicy:
    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        directions = (Direction.DOWN, *([Direction.UP] if policy.acts_on_upload else []))
        self._rules = {direction: {kind: self._compile(kind, direction) for kind in Kind} for direction in directions}
        self._verdicts: dict[Direction, dict[Situation, Verdict]] = {direction: {} for direction in directions}
        """Cached verdicts by situation. Four-tuple and scope are those of the first subflow in the situation."""
        self._paths = [(path, 1 << index) for index, path in enumerate(policy.paths.values())]
        self._bits_without_clients = sum(bit for path, bit in self._paths if path.clients is None)
        self._path_clients = _map_prefixes((path.clients, bit) for path, bit in self._paths)
        self._rule_clients = _map_prefixes((rule.when.clients, 1 << index) for index, rule in enumerate(policy.rules))
        self._local = datetime.fromtimestamp(0, policy.time_zone)
        self._valid_since = self._valid_until = -math.inf

    def _compile(self, kind: Kind, direction: Direction) -> list[CompiledRule]:
        """Return the rules that decide about *kind*; no budget or steering rules if all of them only exempt."""
        rules = [
            CompiledRule(
                rule,
                rule.conditions(kind),
                0 if rule.when.clients is None else 1 << index,
                None if rule.paths is None else self._bits(rule.paths),
            )
            for index, rule in enumerate(self.policy.rules)
            if rule.decides(kind, direction)
        ]
        return rules if kind is Kind.THROTTLE or not all(kind in each.rule.exempted_kinds for each in rules) else []

    def evaluate(self, connection: Connection, now: float, expected: int = 0) -> tuple[Verdict, ...]:
        """Return one verdict per subflow of *connection*, in order, direction by direction."""
        subflows = connection.subflows
        if not self._valid_since <= now < self._valid_until:
            self._read_clock(now)
        situations = self._situations(subflows, expected)
        result = []
        for direction, verdicts in self._verdicts.items():
            for subflow, situation in zip(subflows, situations, strict=True):
                four_tuple, verdict = subflow.four_tuple, verdicts.get(situation)
                if verdict is None:
                    if len(verdicts) >= _MAX_SITUATIONS:
                        verdicts.clear()
                    verdict = verdicts[situation] = self._decide(four_tuple, situation, direction)
                scope = verdict.scope
                if scope is not None and scope.share is not Share.PATH:
                    member = four_tuple.remote if scope.share is Share.CLIENT else connection.token
                    scope = ScopeKey(scope.rule, scope.share, member, direction)
                result.append(verdict._replace(four_tuple=four_tuple, scope=scope))
        return tuple(result)

    def _bits(self, paths: Collection[str]) -> int:
        return sum(1 << index for index, name in enumerate(self.policy.paths) if name in paths)

    def count_paths(self, connection: Connection) -> int:
        return len(set(self._path_ids(self._path_bits(connection.subflows))))

    def _path_bits(self, subflows: Collection[Subflow]) -> list[int]:
        bit_sets = []
        for each in subflows:
            candidates = reduce(or_, self._path_clients.values_of(each.four_tuple.remote), self._bits_without_clients)
            bit_sets.append(sum(bit for path, bit in self._paths if bit & candidates and path.matches(each)))
        return bit_sets

    def _path_ids(self, path_bits: Sequence[int]) -> Sequence[int]:
        """Return a value for each subflow; subflows on the same path have equal values."""
        return path_bits if self._paths else range(len(path_bits))

    def _situations(self, subflows: Collection[Subflow], expected: int) -> list[Situation]:
        """Return the situation of each of *subflows*, all of one connection."""
        from_clients = reduce(
            or_, chain.from_iterable(self._rule_clients.values_of(each.four_tuple.remote) for each in subflows), 0
        )
        path_bits = self._path_bits(subflows)
        path_ids = self._path_ids(path_bits)
        paths = len(set(path_ids))
        expected = max(expected, paths)
        regular = {path_id for subflow, path_id in zip(subflows, path_ids, strict=True) if not subflow.backup}
        is_last = expected == paths and len(regular or set(path_ids)) == 1
        return [
            Situation(bits, from_clients, len(subflows), paths, expected, is_last and not (regular and subflow.backup))
            for subflow, bits in zip(subflows, path_bits, strict=True)
        ]

    def _decide(self, four_tuple: FourTuple, situation: Situation, direction: Direction) -> Verdict:
        prefix = PREFIX[direction]
        cap, unmatched = self._match(Kind.THROTTLE, situation, direction)
        rule = None if cap is None else cap.rule
        scope, throttle = None, None
        if cap is None or rule is None:
            reason = prefix + (unmatched or NO_RULE)
        elif rule.throttle is None:
            reason = f"{prefix}exempted by rule {rule.name}"
        elif rule.lift_last and situation.on_last_path:
            reason = f"{prefix}cap of rule {rule.name} lifted: the last usable path"
        else:
            throttle = rule.throttle
            scope = ScopeKey(rule.name, throttle.share, direction=direction)
            verb, note = self.policy.cap_verb, self.policy.cap_note
            target = (
                "every subflow" if cap.path_bits is None else f"path {self._path(cap.path_bits & situation.path_bits)}"
            )
            active = f"{counted(situation.subflows, 'subflow')} active"
            if situation.expected > situation.paths:
                active = f"{active}, {situation.subflows + situation.expected - situation.paths} anticipated"
            reason = f"{prefix}rule {rule.name} {verb} {target} at {cap_text(throttle)}: {active}{note}"
        budget, reason = self._choose(Kind.BUDGET, situation, direction, reason)
        steer, reason = self._choose(Kind.STEER, situation, direction, reason)
        path, guarded = self._path(situation.path_bits), rule is not None and rule.guard
        steered_bits = situation.path_bits & self._bits(steer.paths) if steer is not None and steer.paths else 0
        other_fields = budget, steer, self._path(steered_bits), guarded
        return Verdict(four_tuple, path, rule, scope, throttle, reason, direction, *other_fields)

    def _choose(self, kind: Kind, situation: Situation, direction: Direction, reason: str) -> tuple[Rule | None, str]:
        """Return the rule that meters or steers the subflow, and *reason*, with the cause added if no rule does."""
        match, unmatched = self._match(kind, situation, direction)
        if match is not None and kind in match.rule.exempted_kinds:
            return None, add_sentence(reason, f"exempted from {_KIND_NAMES[kind]} by rule {match.rule.name}", direction)
        if match is None and unmatched is not None and not reason.endswith(unmatched):
            reason = add_sentence(reason, unmatched, direction)
        return None if match is None else match.rule, reason

    def _match(self, kind: Kind, situation: Situation, direction: Direction) -> tuple[CompiledRule | None, str | None]:
        """Return the deciding rule. Also return why the nearest rule above it does not match: of those that catch the
        subflow, the one with the smallest weight of unmet conditions."""
        unmatched: list[tuple[int, str]] = []
        deciding: CompiledRule | None = None
        for each in self._rules[direction][kind]:
            if each.catches(situation):
                unmet = each.unmet(situation, self._local)
                if not unmet:
                    deciding = each
                    break
                sentence = f"rule {each.rule.name} does not apply: {next(iter(unmet.values()))}"
                unmatched.append((sum(_DISTANCES[condition] for condition in unmet), sentence))
        return deciding, min(unmatched, key=itemgetter(0), default=(0, None))[1]

    def _path(self, path_bits: int) -> str | None:
        """Return the name of the first path in *path_bits*."""
        return next((name for index, name in enumerate(self.policy.paths) if path_bits >> index & 1), None)

    def _read_clock(self, now: float) -> None:
        change = self.policy.next_change(now)
        self._local = datetime.fromtimestamp(now, self.policy.time_zone)
        self._valid_since = now
        self._valid_until = math.inf if change is None else change
        for verdicts in self._verdicts.values():
            verdicts.clear()

    def explain(
        self, connection: Connection, subflow: Subflow, direction: Direction, now: float, expected: int = 0
    ) -> Iterator[RuleOutcome]:
        """Yield the outcome of each rule for *subflow*, kind by kind."""
        self._read_clock(now)
        zone = self.policy.time_zone
        situation = self._situations(connection.subflows, expected)[connection.subflows.index(subflow)]
        for kind, rules in self._rules.get(direction, {}).items():
            compiled = {each.rule.name: each for each in rules}
            deciding: Rule | None = None
            for rule in self.policy.rules if rules else ():
                each = compiled.get(rule.name)
                if each is None:
                    if rule.defines(kind):
                        yield RuleOutcome(rule.name, kind, False, f"only for {_DIRECTION_NAMES[rule.direction]}")
                elif deciding is not None:
                    yield RuleOutcome(rule.name, kind, False, f"rule {deciding.name} above decides")
                elif not each.catches(situation):
                    yield RuleOutcome(rule.name, kind, False, self._path_mismatch(rule, situation.path_bits))
                elif unmet := each.unmet(situation, self._local):
                    condition, sentence = next(iter(unmet.items()))
                    until = self._next_hours_change(rule, now) if condition == "hours" else None
                    if condition == "hours":
                        start = "" if until is None else f"; begins {moment_text(until, now, zone)}"
                        sentence = f"{sentence}, {hours_text(rule.when.windows or ())}{start} ({zone})"
                    yield RuleOutcome(rule.name, kind, False, sentence, until)
                else:
                    deciding = rule
                    lifted = kind is Kind.THROTTLE and rule.lift_last and situation.on_last_path and rule.throttle
                    lift_reason = "lifted: the last usable path" if lifted else None
                    yield RuleOutcome(rule.name, kind, True, lift_reason, self._next_hours_change(rule, now))

    def _path_mismatch(self, rule: Rule, path_bits: int) -> str:
        names = [name for index, name in enumerate(self.policy.paths) if path_bits >> index & 1]
        location = f"on path {' and '.join(names)}" if names else "on no path of the policy"
        return f"the subflow is {location}, not on {' or '.join(rule.paths or ())}"

    def _next_hours_change(self, rule: Rule, now: float) -> float | None:
        return next_change([rule.when.windows], self.policy.time_zone, now) if rule.when.windows else None
