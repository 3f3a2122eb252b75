"""The text of a policy file to a :class:`~.model.Policy`, or to everything that is wrong with it.

Reading the file is the caller's business: here text comes in, and nothing is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from .budget_section import budget_of
from .fields import DIRECTIONS
from .model import Guard, Mode, Network, PathMatch, Policy, Rule, Window
from .problems import (
    DocumentError,
    Problem,
    Severity,
    did_you_mean,
    in_order,
    key_text,
    nearest,
    shown,
)
from .schedule import EVERY_DAY, MIDNIGHT
from .schema import (
    ACTIONS,
    DEFAULT_MIN_SUBFLOWS,
    PathSection,
    PolicySection,
    RuleSection,
    WhenSection,
)
from .steer_section import named_paths, steer_of
from .throttle_section import throttle_of
from .validate import problem_at, validate
from .yaml_document import Document, parse_document


class PolicyError(DocumentError):
    """A policy that cannot be used. ``problems`` has all that is wrong, ``str()`` one line for each."""


@dataclass(frozen=True, slots=True)
class CheckedPolicy:
    """What :func:`check_policy` found."""

    policy: Policy | None
    """None where any of the problems is an error."""
    problems: tuple[Problem, ...]
    """Errors, or else warnings, in the order of their lines."""


def check_policy(text: str, source: str) -> CheckedPolicy:
    """Return the policy in *text* and every problem with it. *source* names the file for people."""
    document = parse_document(text, source)
    section, problems = validate(PolicySection, document)
    errors = in_order([*problems, *_unknown_paths(document), *_repeated_names(document), *_not_one_action(document)])
    if section is None or errors:
        return CheckedPolicy(None, errors)
    policy = _policy(section)
    return CheckedPolicy(policy, in_order(_warnings(policy, document)))


def load_policy(text: str, source: str) -> Policy:
    """Return the policy in *text*; raise :class:`PolicyError` with all problems where there is an error."""
    checked = check_policy(text, source)
    if checked.policy is None:
        raise PolicyError(checked.problems)
    return checked.policy


def _policy(section: PolicySection) -> Policy:
    return Policy(
        paths=tuple(_path(name, path) for name, path in section.paths.items()),
        rules=tuple(_rule(rule) for rule in section.rules),
        time_zone=section.time_zone,
        dry_run=section.dry_run,
        guard=Guard(**section.guard.model_dump()),
    )


def _path(name: str, path: PathSection) -> PathMatch:
    return PathMatch(
        name=name,
        interfaces=None if path.interfaces is None else frozenset(path.interfaces),
        clients=None if path.clients is None else tuple(path.clients),
        remote_ids=None if path.remote_ids is None else frozenset(path.remote_ids),
        initial=None if path.subflow is None else path.subflow == "initial",
        backup=path.backup,
    )


def _rule(rule: RuleSection) -> Rule:
    when = rule.when or WhenSection()
    # An exemption that ended with the second subflow would leave the first to the next rule.
    steer = None if rule.steer is None else steer_of(rule.steer)
    # What a path carries counts from the first subflow on, too.
    spared = rule.throttle is None and (steer is None or steer.mode is Mode.SMALLEST_DELAY)
    default = 1 if spared else min(DEFAULT_MIN_SUBFLOWS, when.max_subflows or DEFAULT_MIN_SUBFLOWS)
    paths = rule.paths if steer is None or not steer.paths else steer.paths
    return Rule(
        name=rule.name,
        paths=None if paths is None else tuple(paths),
        throttle=None if rule.throttle is None else throttle_of(rule.throttle),
        min_subflows=default if when.min_subflows is None else when.min_subflows,
        max_subflows=when.max_subflows,
        clients=None if when.clients is None else tuple(when.clients),
        windows=_windows(when),
        lift_last=rule.lift_last,
        directions=DIRECTIONS[rule.direction],
        # A budget is about money: its caps hold unless the rule says otherwise.
        guard=rule.guard and (rule.budget is None or "guard" in rule.model_fields_set),
        steer=steer,
        budget=None if rule.budget is None else budget_of(rule.budget),
    )


def _windows(when: WhenSection) -> tuple[Window, ...] | None:
    if when.days is None and when.hours is None:
        return None
    days = EVERY_DAY if when.days is None else frozenset[int]().union(*when.days)
    hours = when.hours or [(MIDNIGHT, MIDNIGHT)]
    return tuple(Window(days, start, end) for start, end in hours)


# These look at the document, not at the checked sections: an error in one place hides none in another.


def _rules_of(document: Document) -> Iterator[tuple[int, dict[str, object]]]:
    rules = (document.data or {}).get("rules")
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        if isinstance(rule, dict):
            yield index, rule


def _unknown_paths(document: Document) -> Iterator[Problem]:
    paths = (document.data or {}).get("paths", {})
    if not isinstance(paths, dict):
        return
    known = f"the paths are {', '.join(key_text((path,)) for path in paths)}" if paths else "no paths are defined"
    for index, rule in _rules_of(document):
        named = rule.get("paths")
        listed = [(("paths", place), name) for place, name in enumerate(named if isinstance(named, list) else [])]
        for key, name in [*listed, *named_paths(rule)]:
            if isinstance(name, str) and name not in paths:
                message = f"{shown(name)} is not a path{did_you_mean(name, paths)}; {known}"
                yield problem_at(document, ("rules", index, *key), name, message)


def _not_one_action(document: Document) -> Iterator[Problem]:
    for index, rule in _rules_of(document):
        given = [key for key in ACTIONS if key in rule]
        rule_at = document.key_position(("rules", index))
        others = f"{' or '.join(ACTIONS[1:])} in its place"
        if not given and not any(nearest(str(key), ACTIONS) for key in rule):
            yield problem_at(document, ("rules", index, ACTIONS[0]), None, f"is required, or {others}", rule_at)
        for key in given[1:]:
            at = document.key_position(("rules", index, key))
            message = f"the rule has {given[0]} already; a rule has one of {', '.join(ACTIONS)}"
            yield problem_at(document, ("rules", index, key), None, message, at)
        steer = rule.get("steer")
        foreign = dict.fromkeys(("lift_last", "direction", "guard"), "belongs to throttle, not to steer")
        if isinstance(steer, dict) and steer.get("mode") != Mode.SMALLEST_DELAY.value:
            foreign["paths"] = "steer itself names the paths of the rule; leave this out"
        for key, message in foreign.items() if "steer" in given else ():
            if key in rule:
                at = document.key_position(("rules", index, key))
                yield problem_at(document, ("rules", index, key), None, message, at)


def _repeated_names(document: Document) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, rule in _rules_of(document):
        name = rule.get("name")
        if not isinstance(name, str):
            continue
        if name in first:
            line = document.value_position(("rules", first[name], "name")).line
            message = f"{shown(name)} is already the name of the rule on line {line}; give each its own"
            yield problem_at(document, ("rules", index, "name"), name, message)
        first.setdefault(name, index)


def _warnings(policy: Policy, document: Document) -> Iterator[Problem]:
    def warning(index: int, message: str) -> Problem:
        at = document.key_position(("rules", index))
        key = key_text(("rules", index))
        return Problem(document.source, at.line, at.column, key, None, message, Severity.WARNING)

    for index, rule in enumerate(policy.rules):
        for earlier in policy.rules[:index]:
            if _leaves_nothing(earlier, rule):
                yield warning(
                    index,
                    f'rule "{rule.name}" is never reached: "{earlier.name}" above it catches all that it could catch',
                )
                break
        else:
            if rule.throttle is not None and rule.lift_last and rule.max_subflows == 1:
                yield warning(
                    index,
                    f'rule "{rule.name}" never caps anything: the only active subflow is the last usable '
                    "one, so its cap is lifted; write lift_last: false to cap it",
                )


def _leaves_nothing(earlier: Rule, later: Rule) -> bool:
    """Return whether *earlier* catches every subflow that *later* could."""
    return (
        earlier.directions >= later.directions
        and (earlier.paths is None or (later.paths is not None and set(later.paths) <= set(earlier.paths)))
        and earlier.min_subflows <= later.min_subflows
        and (
            earlier.max_subflows is None
            or (later.max_subflows is not None and later.max_subflows <= earlier.max_subflows)
        )
        and (earlier.windows is None or earlier.windows == later.windows)
        and (
            earlier.clients is None
            or (
                later.clients is not None
                and all(any(_inside(inner, outer) for outer in earlier.clients) for inner in later.clients)
            )
        )
    )


def _inside(inner: Network, outer: Network) -> bool:
    # subnet_of() takes only a prefix of the same family, which the first test ensures.
    return inner.version == outer.version and inner.subnet_of(cast("Any", outer))
