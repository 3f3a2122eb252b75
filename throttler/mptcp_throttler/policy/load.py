# SPDX-License-Identifier: GPL-2.0-or-later
"""Loads the text of a policy file into a :class:`~.model.Policy`, or reports all errors in it; and finds rules that
never decide, rules that conflict, and caps that apply to several interfaces separately."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from mptcp_common.fields import NAME_PATTERN
from mptcp_common.problems import (
    DocumentError,
    KeyPath,
    Problem,
    Severity,
    did_you_mean,
    in_order,
    key_text,
    nearest,
    shown,
)
from mptcp_common.validate import problem_at, validate
from mptcp_common.yaml_document import Document, parse_document
from mptcp_throttler.policy.model import DIRECTIONS, NO_BUDGET, Direction, Kind, Policy, Rule, named_paths
from mptcp_throttler.policy.values import volume_as_budget
from mptcp_throttler.steering import BY_NAME

ACTIONS: Final = ("throttle", "steer", "budget")  # keys of which a rule needs at least one
_UPLOADS: Final = {Direction.DOWN: "", Direction.UP: " for uploads"}
Finding = tuple[int, str]  # index of a rule, and a sentence


@dataclass(frozen=True, slots=True)
class CheckedPolicy:
    policy: Policy | None  # None if any of the problems is an error
    problems: tuple[Problem, ...]  # errors or, without errors, warnings; in the order of their lines
    notes: tuple[Problem, ...] = ()
    """For ``check``: caps per interface, rules that never apply, caps without plain TCP."""


def check_policy(text: str, source: str, interfaces: Collection[str] | None = None) -> CheckedPolicy:
    """Return the policy in *text* and its problems. *source*: file name; *interfaces*: from the settings, if known."""
    document = parse_document(text, source)
    policy, problems = validate(Policy, document)
    checks = (_unknown_paths, _unknown_budgets, _repeated_names, _wrong_actions)
    errors = in_order([*problems, *(problem for check in checks for problem in check(document))])
    if policy is None or errors:
        return CheckedPolicy(None, errors)
    if errors := _at_rules(_errors(policy), document, Severity.ERROR):
        return CheckedPolicy(None, errors)
    policy.__dict__["text"] = text
    warnings = [*_unused_budgets(policy, document), *_at_rules(_warnings(policy), document, Severity.WARNING)]
    notes = _at_rules(_notes(policy, interfaces), document, Severity.NOTE)
    return CheckedPolicy(policy, in_order(warnings), notes)


def load_policy(text: str, source: str) -> Policy:
    """Return the policy in *text*. Raises :class:`DocumentError` with all errors."""
    checked = check_policy(text, source)
    if checked.policy is None:
        raise DocumentError(checked.problems)
    return checked.policy


# These functions check the document, not the validated sections, so that no error hides another error.


def _document_rules(document: Document) -> Iterator[tuple[int, dict[str, object]]]:
    rules = (document.data or {}).get("rules")
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        if isinstance(rule, dict):
            yield index, rule


def _unknown_paths(document: Document) -> Iterator[Problem]:
    paths = (document.data or {}).get("paths", {})
    if not isinstance(paths, dict):
        return
    defined = f"the paths are {', '.join(key_text((path,)) for path in paths)}" if paths else "no paths are defined"
    for index, rule in _document_rules(document):
        paths_of_rule, steer = rule.get("paths"), rule.get("steer")
        references: list[tuple[KeyPath, object]] = []
        if isinstance(paths_of_rule, list):
            references += [(("paths", index), name) for index, name in enumerate(paths_of_rule)]
        if isinstance(steer, dict):
            references += [(("steer", *key), name) for key, name in named_paths(steer)]
        for key, name in references:
            if isinstance(name, str) and name not in paths:
                message = f"{shown(name)} is not a path{did_you_mean(name, paths)}; {defined}"
                yield problem_at(document, ("rules", index, *key), name, message)


def _unknown_budgets(document: Document) -> Iterator[Problem]:
    """Yield unknown budgets named in rules, and names that two budgets would share."""
    budgets = (document.data or {}).get("budgets", {})
    if not isinstance(budgets, dict):
        return
    names = ", ".join(key_text((name,)) for name in budgets)
    defined = f"the budgets are {names}" if budgets else "no budgets are defined"
    if NO_BUDGET in budgets:
        message = f"{shown(NO_BUDGET)} in a rule means that it has no budget; give this budget another name"
        yield _at_key(document, ("budgets", NO_BUDGET), message)
    for index, rule in _document_rules(document):
        budget, name = rule.get("budget"), rule.get("name")
        # Validation refuses values that are not names.
        if isinstance(budget, str) and re.fullmatch(NAME_PATTERN, budget) and budget not in (NO_BUDGET, *budgets):
            unknown = f"{shown(budget)} is not a budget{did_you_mean(budget, budgets)}; {defined}"
            message = volume_as_budget(budget) or unknown
            yield problem_at(document, ("rules", index, "budget"), budget, message)
        if isinstance(budget, dict) and isinstance(name, str) and name in budgets:
            line = document.key_position(("budgets", name)).line
            message = (
                f"the budget of this rule and the one named {shown(name)} on line {line} would be one account; give "
                "either another name"
            )
            yield problem_at(document, ("rules", index, "name"), name, message)


def _wrong_actions(document: Document) -> Iterator[Problem]:
    for index, rule in _document_rules(document):
        actions = [key for key in ACTIONS if key in rule]
        position = document.key_position(("rules", index))
        alternative = f"unless the rule has {' or '.join(ACTIONS[1:])}"
        if not actions and not any(nearest(str(key), ACTIONS) for key in rule):
            yield problem_at(document, ("rules", index, ACTIONS[0]), None, f"is required, {alternative}", position)
        steer = rule.get("steer")
        unexpected: dict[str, str] = {}
        if actions == ["steer"]:
            throttle_keys = ("always", "plain_tcp", "lift_last", "direction", "guard")
            unexpected = dict.fromkeys(throttle_keys, "belongs to throttle, not to steer")
        elif "steer" in actions and rule.get("direction") == "up":
            unexpected["direction"] = "steer is for downloads; write down or both, or give steer a rule of its own"
        mode = BY_NAME.get(str(steer.get("mode", ""))) if isinstance(steer, dict) else None
        if isinstance(steer, dict) and (mode is None or mode.spreads_data):
            unexpected["paths"] = "steer itself names the paths of the rule; leave this out"
        for key, message in unexpected.items():
            if key in rule:
                yield _at_key(document, ("rules", index, key), message)


def _repeated_names(document: Document) -> Iterator[Problem]:
    first_index: dict[str, int] = {}
    for index, rule in _document_rules(document):
        name = rule.get("name")
        if isinstance(name, str) and first_index.setdefault(name, index) != index:
            line = document.value_position(("rules", first_index[name], "name")).line
            message = f"{shown(name)} is already the name of the rule on line {line}; choose another name"
            yield problem_at(document, ("rules", index, "name"), name, message)


def _unused_budgets(policy: Policy, document: Document) -> Iterator[Problem]:
    for name in set((document.data or {}).get("budgets") or ()) - policy.budgets.keys():  # type: ignore[call-overload]
        yield _at_key(document, ("budgets", name), "no rule uses this budget", Severity.WARNING)


def _at_rules(findings: Iterable[Finding], document: Document, severity: Severity) -> tuple[Problem, ...]:
    return in_order(_at_key(document, ("rules", index), message, severity) for index, message in findings)


def _at_key(document: Document, path: KeyPath, message: str, severity: Severity = Severity.ERROR) -> Problem:
    return replace(problem_at(document, path, None, message, document.key_position(path)), severity=severity)


# These functions check the policy. They assume that two rules may catch the same subflow unless that is impossible.


def _errors(policy: Policy) -> Iterator[Finding]:
    """Yield rules that the throttler cannot apply."""
    for index, rule in enumerate(policy.rules):
        for name in rule.paths or () if rule.caps_plain_tcp else ():
            if others := sorted(policy.paths[name].model_fields_set - {"clients", "interfaces"}):
                yield index, f'plain_tcp: cap is for paths with clients or interfaces; path "{name}" has {others[0]}'


def _warnings(policy: Policy) -> Iterator[Finding]:
    """Yield probable mistakes."""
    paths_by_ids = {name for name, path in policy.paths.items() if path.remote_ids is not None}
    for index, rule in enumerate(policy.rules):
        for name in sorted(paths_by_ids.intersection(rule.paths or ())):
            paths_by_ids.remove(name)
            message = (
                f'path "{name}" has remote_ids, which do not identify an uplink: the first subflow of a connection '
                "always has 0, and clients renumber the others; write the uplink's prefixes under clients"
            )
            yield index, message
        for message in _rule_warnings(policy, rule, policy.rules[:index], policy.rules[index + 1 :]):
            yield index, message


def _rule_warnings(policy: Policy, rule: Rule, above: Collection[Rule], below: Collection[Rule]) -> Iterator[str]:
    decisions = [decision for decision in product(Kind, Direction) if rule.decides(*decision)]
    shadows = {decision: _shadow(policy, rule, above, *decision) for decision in decisions}
    names = list(dict.fromkeys(f'"{shadow.name}"' for shadow in shadows.values() if shadow is not None))
    if shadows and all(shadows.values()):
        verb = "catches" if len(names) == 1 else "catch"
        yield f'rule "{rule.name}" is never reached: {" and ".join(names)} above it {verb} all its subflows'
        return
    for (kind, direction), shadow in shadows.items():
        if shadow is not None:
            subject = f'the {kind.value} of rule "{rule.name}" never decides{_UPLOADS[direction]}'
            yield f'{subject}: "{shadow.name}" above it decides for all its subflows'
    if rule.throttle is not None and rule.lift_last and rule.when.max_subflows == 1:
        yield (
            f'rule "{rule.name}" never caps anything: the only active subflow is on the last usable '
            "path, so its cap is lifted; write lift_last: false to cap it"
        )
    if "direction" not in rule.model_fields_set:
        others = frozenset(Direction) - rule.direction
        for kind, other in _find_conflicts(policy, rule, rule.exempted_kinds, below, others):
            yield (
                f'rule "{rule.name}" exempts only downloads from a {kind.value}: rule "{other.name}" below applies to '
                "uploads; write direction: both, or direction: down if that is meant"
            )
    if rule.when.clients is not None and not any(shadows.values()):
        for_all_clients = [each for each in above if each.when.clients is None]
        for kind, other in _find_conflicts(policy, rule, rule.exempted_kinds, for_all_clients, rule.direction):
            yield (
                f'rule "{rule.name}" does not exempt from the {kind.value} of rule "{other.name}" above it: the first '
                f'matching rule decides; move rule "{rule.name}" above rule "{other.name}"'
            )
    # Readers may think that these rules exempt from all rules below.
    if Kind.THROTTLE in rule.exempted_kinds or (rule.steer is not None and not rule.steer.mode_class.spreads_data):
        undefined_kinds = [kind for kind in Kind if not rule.defines(kind)]
        for kind, other in _find_conflicts(policy, rule, undefined_kinds, below, rule.direction):
            yield (
                f'rule "{rule.name}" does not exempt from the {kind.value} of rule "{other.name}" below it: add '
                f'"{kind.value}: none" to exempt from that too, or move rule "{other.name}" above it'
            )


def _notes(policy: Policy, interfaces: Collection[str] | None) -> Iterator[Finding]:
    """Yield ``always`` caps that plain TCP can exceed, caps that apply to several interfaces separately, and rules that
    wait for two paths although all traffic is on one. *interfaces* are the shaped interfaces; None if unknown."""
    only_path = next(iter(policy.paths.values())) if len(policy.paths) == 1 else None
    if only_path is not None and (
        interfaces is None
        or only_path.model_fields_set != {"interfaces"}
        or not set(interfaces) <= set(only_path.interfaces or ())
    ):
        only_path = None
    for index, rule in enumerate(policy.rules):
        if rule.always and not rule.caps_plain_tcp and rule.direction != DIRECTIONS["up"]:
            advice = "to cap downloads over plain TCP on its paths, too, write plain_tcp: cap"
            yield index, f'rule "{rule.name}" caps Multipath TCP only; {advice}'
        if only_path is not None and any(rule.required_paths(kind) > 1 for kind in Kind if rule.defines(kind)):
            message = (
                f'rule "{rule.name}" waits for subflows on two paths, but all are on path "{only_path.name}"; name '
                "paths by their clients, or write when: {min_subflows: 2}"
            )
            yield index, message
        if Direction.DOWN not in rule.direction:
            continue  # uploads share one device
        if rule.throttle is not None:
            yield from _interface_notes(index, f'the cap of rule "{rule.name}"', policy, [rule], interfaces)
        budget = rule.budget
        if budget is not None and any(step.throttle is not None for step in budget.steps):
            rules = [each for each in policy.rules if each.budget is budget and Direction.DOWN in each.direction]
            if rules[0] is not rule:
                continue
            yield from _interface_notes(index, f"the cap of the {budget.title}", policy, rules, interfaces)


def _interface_notes(
    index: int, subject: str, policy: Policy, rules: Iterable[Rule], interfaces: Collection[str] | None
) -> Iterator[Finding]:
    """Yield a note if the subflows of *rules* may leave through several interfaces: each has its own class."""
    used: set[str] = set()
    for rule in rules:
        for names in [None] if rule.paths is None else [policy.paths[name].interfaces for name in rule.paths]:
            if names is None:
                used.update(interfaces or ())
            else:
                used.update(names if interfaces is None else set(interfaces).intersection(names))
    if len(used) > 1:
        *others, last = sorted(used)
        message = (
            f"{subject} applies to each interface separately: if downloads leave through {', '.join(others)} and "
            f"{last}, they get up to {len(used)} times the rate together"
        )
        yield index, message


def _shadow(policy: Policy, rule: Rule, above: Iterable[Rule], kind: Kind, direction: Direction) -> Rule | None:
    """Return the rule *above* that catches all subflows that *rule* could catch; None if *rule* can decide."""
    for earlier in above:
        if (
            earlier.decides(kind, direction)
            and _catches_all(policy, earlier, rule)
            and earlier.conditions(kind).covers(rule.conditions(kind))
        ):
            return earlier
    return None


def _catches_all(policy: Policy, earlier: Rule, later: Rule) -> bool:
    if earlier.paths is None or later.paths is None:
        return earlier.paths is None
    wider = [policy.paths[name] for name in earlier.paths]
    return all(any(policy.paths[name].is_within(each) for each in wider) for name in later.paths)


def _find_conflicts(
    policy: Policy, rule: Rule, kinds: Iterable[Kind], others: Iterable[Rule], directions: frozenset[Direction]
) -> Iterator[tuple[Kind, Rule]]:
    """Yield for each of *kinds* the first of *others* that acts in one of *directions* while *rule* may hold, too."""
    for kind in kinds:
        for other in others:
            if _may_conflict(policy, rule, other, kind, directions):
                yield kind, other
                break


def _may_conflict(policy: Policy, rule: Rule, other: Rule, kind: Kind, directions: frozenset[Direction]) -> bool:
    """Return whether *other* acts on a subflow, in one of *directions*, while *rule* may hold for it."""
    if kind in other.exempted_kinds or not any(other.decides(kind, direction) for direction in directions):
        return False
    conditions = other.conditions(kind)
    if all(not rule.defines(own_kind) or rule.conditions(own_kind).exclude(conditions) for own_kind in Kind):
        return False
    pairs = [(policy.paths[first], policy.paths[second]) for first in rule.paths or () for second in other.paths or ()]
    return rule.paths is None or other.paths is None or any(not first.is_disjoint(second) for first, second in pairs)
