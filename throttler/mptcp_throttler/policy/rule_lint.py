"""Lint of rules, for ``check``: rules that never decide, that hold at once, or whose cap is several caps. Pure.

Two rules are assumed to catch the same subflow unless that can be ruled out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from mptcp_throttler.policy.model import DIRECTIONS, Direction, Kind, PathMatch, Policy, Rule

_UPLOADS: Final = {Direction.DOWN: "", Direction.UP: " for uploads"}
Finding = tuple[int, str]
"""Index of the rule, and a sentence."""


def errors(policy: Policy) -> Iterator[Finding]:
    """Yield what the throttler cannot do."""
    for index, rule in enumerate(policy.rules):
        for name in rule.paths or () if rule.caps_plain_tcp else ():
            foreign = sorted(policy.paths[name].model_fields_set - {"clients", "interfaces"})
            if foreign:
                message = f'plain_tcp: cap is for paths told by clients or interfaces; path "{name}" has {foreign[0]}'
                yield index, message


def warnings(policy: Policy) -> Iterator[Finding]:
    """Yield probable mistakes."""
    by_ids = {name for name, path in policy.paths.items() if path.remote_ids is not None}
    for index, rule in enumerate(policy.rules):
        for name in sorted(by_ids.intersection(rule.paths or ())):
            by_ids.remove(name)
            yield (
                index,
                f'path "{name}" is told by remote_ids, which name no uplink: the first subflow of a connection always '
                "has 0, and clients number the others anew; write the uplink's prefixes under clients",
            )
        asked = list(_asked(rule))
        shadows = {question: _shadow(policy, index, *question) for question in asked}
        by = list(dict.fromkeys(shadow.name for shadow in shadows.values() if shadow is not None))
        if asked and all(shadows.values()):
            names = " and ".join(f'"{name}"' for name in by)
            verb = "catches" if len(by) == 1 else "catch"
            yield index, f'rule "{rule.name}" is never reached: {names} above it {verb} all that it could catch'
            continue
        for (kind, direction), shadow in shadows.items():
            if shadow is not None:
                yield (
                    index,
                    f'the {kind.value} of rule "{rule.name}" never decides{_UPLOADS[direction]}: "{shadow.name}" above '
                    "it does for all that it could catch",
                )
        if rule.throttle is not None and rule.lift_last and rule.when.max_subflows == 1:
            yield (
                index,
                f'rule "{rule.name}" never caps anything: the only active subflow is on the last usable '
                "path, so its cap is lifted; write lift_last: false to cap it",
            )
        for kind, other in _not_exempted_from(policy, index):
            yield (
                index,
                f'rule "{rule.name}" exempts downloads from a {kind.value} only: rule "{other.name}" below holds for '
                "uploads; write direction: both, or direction: down if that is meant",
            )
        for kind, other in _above_exemption(policy, index) if not any(shadows.values()) else ():
            yield (
                index,
                f'rule "{rule.name}" does not exempt from the {kind.value} of rule "{other.name}" above it: the first '
                "that matches decides; move it above",
            )
        if _exempts(rule):
            for kind, other in _beside(policy, index):
                yield (
                    index,
                    f'rule "{rule.name}" does not exempt from the {kind.value} of rule "{other.name}" below it: add '
                    f'"{kind.value}: none" to exempt from that too, or move rule "{other.name}" above it',
                )


def past_caps(policy: Policy) -> Iterator[Finding]:
    """Yield the ``always`` caps that plain TCP can exceed."""
    for index, rule in enumerate(policy.rules):
        if rule.always and not rule.caps_plain_tcp and rule.direction != DIRECTIONS["up"]:
            yield (
                index,
                f'rule "{rule.name}" caps Multipath TCP only; for downloads by plain TCP over its paths write '
                "plain_tcp: cap",
            )


def on_one_path(policy: Policy, interfaces: Collection[str] | None) -> Iterator[Finding]:
    """Yield the rules that wait for two paths although all traffic of the shaped *interfaces* is on one path."""
    only = next(iter(policy.paths.values())) if len(policy.paths) == 1 else None
    if only is None or interfaces is None or only.model_fields_set != {"interfaces"}:
        return
    if set(interfaces) <= set(only.interfaces or ()):
        for index, rule in enumerate(policy.rules):
            if any(rule.least_paths(kind) > 1 for kind in Kind if rule.answers(kind)):
                yield (
                    index,
                    f'rule "{rule.name}" waits for subflows on two paths, and all are on path "{only.name}"; name '
                    "paths by their clients, or write when: {min_subflows: 2}",
                )


def per_interface(policy: Policy, interfaces: Collection[str] | None) -> Iterator[Finding]:
    """Yield the caps that hold on several interfaces separately: each egress interface has its own class.

    *interfaces* are the shaped ones; None if unknown. Uploads share one device.
    """
    told: set[str] = set()
    for index, rule in enumerate(policy.rules):
        if Direction.DOWN not in rule.direction:
            continue
        if rule.throttle is not None:
            yield from _on_several(index, f'the cap of rule "{rule.name}"', _leaves_by(policy, rule, interfaces))
        budget = rule.budget
        if budget is not None and budget.name not in told and any(step.throttle is not None for step in budget.steps):
            told.add(budget.name)
            fed_by = [each for each in policy.rules if each.budget == budget and Direction.DOWN in each.direction]
            used = frozenset[str]().union(*(_leaves_by(policy, each, interfaces) for each in fed_by))
            yield from _on_several(index, f"the cap of the {budget.title}", used)


def _on_several(index: int, what: str, used: Collection[str]) -> Iterator[Finding]:
    if len(used) > 1:
        *others, last = sorted(used)
        yield (
            index,
            f"{what} holds for each interface apart: where downloads leave by {', '.join(others)} and {last}, they get "
            f"up to {len(used)} times the rate together",
        )


def _leaves_by(policy: Policy, rule: Rule, interfaces: Collection[str] | None) -> frozenset[str]:
    """Return the known egress interfaces of the subflows that *rule* catches."""
    paths = [None] if rule.paths is None else [policy.paths[name].interfaces for name in rule.paths]
    if interfaces is None:
        return frozenset[str]().union(*(named for named in paths if named is not None))
    every = frozenset(interfaces)
    return frozenset[str]().union(*(every if named is None else every.intersection(named) for named in paths))


def _asked(rule: Rule) -> Iterator[tuple[Kind, Direction]]:
    for kind in Kind:
        for direction in Direction:
            if direction in rule.direction and rule.answers(kind) and (kind, direction) != (Kind.STEER, Direction.UP):
                yield kind, direction


def _shadow(policy: Policy, index: int, kind: Kind, direction: Direction) -> Rule | None:
    """Return the rule that catches first all that the rule at *index* could; None if that one can decide."""
    later = policy.rules[index]
    for earlier in policy.rules[:index]:
        if (kind, direction) in _asked(earlier) and _leaves_nothing(policy, earlier, later, kind):
            return earlier
    return None


def _leaves_nothing(policy: Policy, earlier: Rule, later: Rule, kind: Kind) -> bool:
    return _catches_all(policy, earlier, later) and earlier.conditions(kind).covers(later.conditions(kind))


def _catches_all(policy: Policy, earlier: Rule, later: Rule) -> bool:
    if earlier.paths is None or later.paths is None:
        return earlier.paths is None
    wider = [policy.paths[name] for name in earlier.paths]
    return all(any(_is_within(policy.paths[name], each) for each in wider) for name in later.paths)


def _is_within(inner: PathMatch, outer: PathMatch) -> bool:
    if inner is outer:
        return True
    for key in outer.model_fields_set:
        mine, theirs = getattr(outer, key), getattr(inner, key)
        if theirs is None:
            return False
        if key == "clients":
            wide = outer.prefixes
            within = wide is not None and all(any(wide.around(each)) for each in theirs)
        else:
            within = set(theirs) <= set(mine) if isinstance(mine, list) else theirs == mine
        if not within:
            return False
    return True


def _exempts(rule: Rule) -> bool:
    """Return whether readers may take *rule* for an exemption from everything below it."""
    return Kind.THROTTLE in rule.exempts or (rule.steer is not None and not rule.steer.kind.spreads)


def _beside(policy: Policy, index: int) -> Iterator[tuple[Kind, Rule]]:
    """Yield, for each kind that the rule at *index* leaves open, the first rule below that answers it for a subflow."""
    rule = policy.rules[index]
    for kind in Kind:
        if rule.answers(kind):
            continue
        for other in policy.rules[index + 1 :]:
            directions = rule.direction & other.direction
            if other.answers(kind) and kind not in other.exempts and _may_meet(policy, rule, other, kind, directions):
                yield kind, other
                break


def _above_exemption(policy: Policy, index: int) -> Iterator[tuple[Kind, Rule]]:
    """Yield, for each kind from which the rule exempts certain clients, the first rule for all clients above it."""
    rule = policy.rules[index]
    for kind in rule.exempts if rule.when.clients is not None else ():
        for other in policy.rules[:index]:
            directions = rule.direction & other.direction
            if not other.answers(kind) or kind in other.exempts or other.when.clients is not None:
                continue
            if _may_meet(policy, rule, other, kind, directions):
                yield kind, other
                break


def _not_exempted_from(policy: Policy, index: int) -> Iterator[tuple[Kind, Rule]]:
    """Yield, for each kind from which the rule exempts without ``direction``, the first for uploads below it."""
    rule = policy.rules[index]
    for kind in rule.exempts if "direction" not in rule.model_fields_set else ():
        for other in policy.rules[index + 1 :]:
            directions = other.direction - rule.direction
            if other.answers(kind) and kind not in other.exempts and _may_meet(policy, rule, other, kind, directions):
                yield kind, other
                break


def _may_meet(policy: Policy, one: Rule, other: Rule, kind: Kind, directions: frozenset[Direction]) -> bool:
    """Return whether both rules can hold for one subflow at once, in one of *directions*."""
    theirs = other.conditions(kind)
    return (
        (Direction.DOWN in directions if kind is Kind.STEER else bool(directions))
        and _paths_may_meet(policy, one, other)
        and any(one.answers(answered) and not one.conditions(answered).exclude(theirs) for answered in Kind)
    )


def _paths_may_meet(policy: Policy, one: Rule, other: Rule) -> bool:
    if one.paths is None or other.paths is None:
        return True
    return any(not _apart(policy.paths[mine], policy.paths[theirs]) for mine in one.paths for theirs in other.paths)


def _apart(one: PathMatch, other: PathMatch) -> bool:
    """Return whether no subflow can be on both paths."""
    for key in one.model_fields_set & other.model_fields_set:
        mine, theirs = getattr(one, key), getattr(other, key)
        if key == "clients":
            here, there = one.prefixes, other.prefixes
            apart = (
                here is None
                or there is None
                or not (any(any(there.around(each)) for each in mine) or any(any(here.around(each)) for each in theirs))
            )
        else:
            apart = set(mine).isdisjoint(theirs) if isinstance(mine, list) else mine != theirs
        if apart:
            return True
    return False
