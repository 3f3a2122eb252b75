"""What the policy says of each active subflow of a connection, and why.

Pure; called on every change of any connection, so the policy is compiled once into integers, and the answers
that depend only on a subflow are kept.

First match wins, in each direction for itself: the first rule that catches a subflow and whose conditions its
connection meets decides, ``throttle: none`` included. Then the cap is lifted again from a subflow that is the last
usable one: usable is an active subflow that is not backup, or is backup while no other kind is left (RFC 8684, 3.3.8:
a backup subflow carries data only when there is no regular one).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from ..mptcp.model import Connection, Subflow, SubflowState
from .model import Direction, Network, PathMatch, Policy, Rule, ScopeKey, Share, Throttle, Verdict
from .schedule import next_change, open_rules
from .units import format_rate

__all__ = ["CompiledPolicy", "evaluate", "next_change"]

_REMEMBERED: Final = 4096
"""Answers kept for as many kinds of subflow; a phone has a handful of addresses."""

_BEFORE: Final = {Direction.DOWN: "", Direction.UP: "upload: "}
"""What a reason begins with. One on download is as it was before there were directions."""

_EACH: Final = {Share.PATH: "", Share.CLIENT: " per client", Share.CONNECTION: " per connection"}


def evaluate(policy: Policy, connection: Connection, now: float) -> tuple[Verdict, ...]:
    """Return one verdict for each active subflow of *connection*, in their order, on what is sent to the client;
    then, where any rule of *policy* is for uploads, one for each on what comes from it."""
    return _compiled(policy).evaluate(connection, now)


_last: CompiledPolicy | None = None


def _compiled(policy: Policy) -> CompiledPolicy:
    """Return *policy* compiled; the last one is kept, by identity, for a daemon has one policy in force."""
    global _last  # noqa: PLW0603 - hashing a whole policy on each call would cost more than the evaluation
    if _last is None or _last.policy is not policy:
        _last = CompiledPolicy(policy)
    return _last


class _Facts(NamedTuple):
    """What the policy can say of a subflow whatever else its connection has."""

    path: str | None
    """The first path that it is on."""
    path_bits: int
    """All paths that it is on, by their place in the policy."""
    rule_bits: int
    """The rules with a condition on clients that its address meets, by their place in the policy."""


class _View(NamedTuple):
    """What the policy needs to know of a connection as a whole."""

    token: int
    active: int
    """How many subflows are."""
    clients: int
    """The rules whose condition on clients is met by any active subflow, as bits."""
    last: Subflow | None
    """The one usable subflow, where there is just one."""


@dataclass(frozen=True, slots=True)
class _Prefixes:
    """Prefixes as the masks and values that packed addresses are compared with."""

    v4: tuple[tuple[int, int], ...]
    v6: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, networks: Iterable[Network]) -> _Prefixes:
        by_version: dict[int, list[tuple[int, int]]] = {4: [], 6: []}
        for network in networks:
            by_version[network.version].append((int(network.netmask), int(network.network_address)))
        return cls(tuple(by_version[4]), tuple(by_version[6]))

    def holds(self, address: bytes) -> bool:
        number = int.from_bytes(address, "big")
        return any(number & mask == value for mask, value in (self.v4 if len(address) == 4 else self.v6))


class _CompiledPath:
    """One path and its bit in the set of paths that a subflow is on."""

    __slots__ = ("_match", "_prefixes")

    def __init__(self, match: PathMatch) -> None:
        self._match = match
        self._prefixes = None if match.clients is None else _Prefixes.of(match.clients)

    def holds(self, remote: bytes, interface: str | None, remote_id: int | None, initial: bool, backup: bool) -> bool:
        match = self._match
        return (
            (match.interfaces is None or interface in match.interfaces)
            and (match.remote_ids is None or remote_id in match.remote_ids)
            and (match.initial is None or match.initial is initial)
            and (match.backup is None or match.backup is backup)
            and (self._prefixes is None or self._prefixes.holds(remote))
        )


class _CompiledRule:
    """One rule in one direction, with everything that does not depend on the connection worked out, its sentences
    included."""

    __slots__ = (
        "capped",
        "client_bit",
        "clients",
        "direction",
        "exempted",
        "index",
        "least",
        "lift_last",
        "lifted",
        "most",
        "path_bits",
        "path_scope",
        "rule",
        "throttle",
    )

    def __init__(self, index: int, rule: Rule, policy: Policy, direction: Direction) -> None:
        bit_of = {path.name: 1 << position for position, path in enumerate(policy.paths)}
        self.index = index
        self.rule = rule
        self.direction = direction
        self.least = rule.min_subflows
        self.most: float = math.inf if rule.max_subflows is None else rule.max_subflows
        self.lift_last = rule.lift_last
        self.path_bits = None if rule.paths is None else sum({bit_of[name] for name in rule.paths})
        self.clients = None if rule.clients is None else _Prefixes.of(rule.clients)
        self.client_bit = 0 if rule.clients is None else 1 << index
        self.throttle = rule.throttle
        shared_by_path = rule.throttle is not None and rule.throttle.share is Share.PATH
        self.path_scope = ScopeKey(rule.name, Share.PATH, direction=direction) if shared_by_path else None
        before = _BEFORE[direction]
        what = "exempted by rule" if rule.budget is None else "under the budget of rule"
        what = what if rule.steer is None else f"steered {rule.steer.mode.value} by rule"
        self.exempted = f"{before}{what} {rule.name}"
        self.lifted = f"{before}cap of rule {rule.name} lifted: the last usable subflow"
        names = [f"path {path.name}" for path in policy.paths] if rule.paths is not None else []
        verb = "would cap" if policy.dry_run else "caps"
        cap = "" if rule.throttle is None else _cap(rule.throttle)
        # The last one is that of a rule for subflows on any path or none.
        self.capped = [f"{before}rule {rule.name} {verb} {name} at {cap}: " for name in [*names, "every subflow"]]


def _cap(throttle: Throttle) -> str:
    up_to = "" if throttle.ceil == throttle.rate else f", up to {format_rate(throttle.ceil)}"
    return f"{format_rate(throttle.rate)}{_EACH[throttle.share]}{up_to}"


class CompiledPolicy:
    """A policy ready to be asked often."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._rules = {
            direction: [
                _CompiledRule(index, rule, policy, direction)
                for index, rule in enumerate(policy.rules)
                if direction in rule.directions
            ]
            for direction in (Direction.DOWN, *([Direction.UP] if policy.acts_on_upload else []))
        }
        by_clients = {rule.index: rule for rules in self._rules.values() for rule in rules if rule.clients is not None}
        self._by_clients = tuple(by_clients.values())
        """The rules with a condition on clients, each once whatever its directions."""
        self._paths = [_CompiledPath(path) for path in policy.paths]
        self._facts = lru_cache(_REMEMBERED)(self._find_facts)
        self._scheduled = any(rule.windows is not None for rule in policy.rules)
        self._open = (True,) * len(policy.rules)
        self._open_since = self._open_until = -math.inf
        self._dry = " (dry run)" if policy.dry_run else ""

    def evaluate(self, connection: Connection, now: float) -> tuple[Verdict, ...]:
        """Return one verdict for each active subflow of *connection*, in their order; direction by direction."""
        active = [subflow for subflow in connection.subflows if subflow.state is SubflowState.ACTIVE]
        if self._scheduled and not self._open_since <= now < self._open_until:
            self._look_at_the_clock(now)
        facts = [
            self._facts(each.four_tuple.remote, each.interface, each.remote_id, each.initial, each.backup)
            for each in active
        ]
        clients = 0
        for each in facts:
            clients |= each.rule_bits
        usable = [subflow for subflow in active if not subflow.backup] or active
        view = _View(connection.token, len(active), clients, usable[0] if len(usable) == 1 else None)
        pairs = tuple(zip(active, facts, strict=True))
        return tuple([self._verdict(*pair, view, direction) for direction in self._rules for pair in pairs])

    def _verdict(self, subflow: Subflow, facts: _Facts, view: _View, direction: Direction) -> Verdict:
        passed_over: _CompiledRule | None = None
        for each in self._rules[direction]:
            bits = each.path_bits
            if bits is not None and not bits & facts.path_bits:
                continue
            if (
                each.least <= view.active <= each.most
                and each.client_bit & view.clients == each.client_bit
                and self._open[each.index]
            ):
                break
            passed_over = passed_over or each
        else:
            why = "no rule matches" if passed_over is None else _why_not(passed_over, view)
            return Verdict(subflow.four_tuple, facts.path, None, None, None, _BEFORE[direction] + why, direction)
        if each.throttle is None:
            steered = each.rule.steer is not None and bits is not None
            path = self.policy.paths[_lowest_bit(bits & facts.path_bits)].name if steered and bits else facts.path
            return Verdict(subflow.four_tuple, path, each.rule, None, None, each.exempted, direction)
        if each.lift_last and subflow is view.last:
            return Verdict(subflow.four_tuple, facts.path, each.rule, None, None, each.lifted, direction)
        scope = each.path_scope
        if scope is None:
            member = subflow.four_tuple.remote if each.throttle.share is Share.CLIENT else view.token
            scope = ScopeKey(each.rule.name, each.throttle.share, member, direction)
        # Of several paths by which the rule catches the subflow, the first is named.
        named = -1 if bits is None else _lowest_bit(bits & facts.path_bits)
        reason = f"{each.capped[named]}{view.active} {_subflows(view.active)} active{self._dry}"
        return Verdict(subflow.four_tuple, facts.path, each.rule, scope, each.throttle, reason, direction)

    def _find_facts(
        self, remote: bytes, interface: str | None, remote_id: int | None, initial: bool, backup: bool
    ) -> _Facts:
        path_bits = rule_bits = 0
        for position, path in enumerate(self._paths):
            if path.holds(remote, interface, remote_id, initial, backup):
                path_bits |= 1 << position
        for rule in self._by_clients:
            if rule.clients is not None and rule.clients.holds(remote):
                rule_bits |= rule.client_bit
        first = self.policy.paths[_lowest_bit(path_bits)].name if path_bits else None
        return _Facts(first, path_bits, rule_bits)

    def _look_at_the_clock(self, now: float) -> None:
        change = next_change(self.policy, now)
        self._open = open_rules(self.policy, now)
        self._open_since = now
        self._open_until = math.inf if change is None else change


def _why_not(rule: _CompiledRule, view: _View) -> str:
    if view.active < rule.least:
        why = f"only {view.active} active {_subflows(view.active)} (needs {rule.least})"
    elif view.active > rule.most:
        why = f"{view.active} active subflows (at most {rule.most})"
    elif rule.client_bit & view.clients != rule.client_bit:
        why = "no active subflow comes from its clients"
    else:
        why = "outside its hours"
    return f"rule {rule.rule.name} does not apply: {why}"


def _lowest_bit(bits: int) -> int:
    """Return the position of the lowest bit set."""
    return (bits & -bits).bit_length() - 1


def _subflows(count: int) -> str:
    return "subflow" if count == 1 else "subflows"
