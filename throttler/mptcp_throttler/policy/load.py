"""The text of a policy file to a :class:`~.model.Policy`, or to everything that is wrong with it.

Reading the file is the caller's business: here text comes in, and nothing is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from mptcp_common.problems import (
    DocumentError,
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
from mptcp_throttler.policy import composition
from mptcp_throttler.policy.budget_section import NO_BUDGET, budget_of
from mptcp_throttler.policy.fields import DIRECTIONS
from mptcp_throttler.policy.model import Budget, Guard, Kind, Mode, PathMatch, Policy, Rule, Window
from mptcp_throttler.policy.schedule import EVERY_DAY, MIDNIGHT
from mptcp_throttler.policy.schema import (
    ACTIONS,
    GuardSection,
    PathSection,
    PolicySection,
    RuleSection,
    WhenSection,
)
from mptcp_throttler.policy.steer_section import named_paths, steer_of
from mptcp_throttler.policy.throttle_section import throttle_of


class PolicyError(DocumentError):
    """A policy that cannot be used. ``problems`` has all that is wrong, ``str()`` one line for each."""


@dataclass(frozen=True, slots=True)
class CheckedPolicy:
    """What :func:`check_policy` found."""

    policy: Policy | None
    """None where any of the problems is an error."""
    problems: tuple[Problem, ...]
    """Errors, or else warnings, in the order of their lines."""
    notes: tuple[Problem, ...] = ()
    """Which rules hold beside others, and which caps for each interface apart: what ``check`` shows besides."""


def check_policy(text: str, source: str, interfaces: Collection[str] | None = None) -> CheckedPolicy:
    """Return the policy in *text* and every problem with it. *source* names the file for people.

    *interfaces* are those of the settings, where they are known.
    """
    document = parse_document(text, source)
    section, problems = validate(PolicySection, document)
    errors = in_order(
        [
            *problems,
            *_unknown_paths(document),
            *_unknown_budgets(document),
            *_repeated_names(document),
            *_wrong_actions(document),
        ]
    )
    if section is None or errors:
        return CheckedPolicy(None, errors)
    policy = _policy(section, text)
    warnings = [*_unused_budgets(section, document), *_of_rules(composition.warnings(policy), document)]
    found = [*composition.notes(policy), *composition.per_interface(policy, interfaces)]
    found += composition.on_one_path(policy, interfaces)
    notes = _of_rules(found, document, Severity.NOTE)
    return CheckedPolicy(policy, in_order(warnings), in_order(notes))


def load_policy(text: str, source: str) -> Policy:
    """Return the policy in *text*; raise :class:`PolicyError` with all problems where there is an error."""
    checked = check_policy(text, source)
    if checked.policy is None:
        raise PolicyError(checked.problems)
    return checked.policy


def _policy(section: PolicySection, text: str) -> Policy:
    budgets = {name: budget_of(name, True, each) for name, each in section.budgets.items()}
    return Policy(
        paths=tuple(_path(name, path) for name, path in section.paths.items()),
        rules=tuple(_rule(rule, budgets) for rule in section.rules),
        time_zone=section.time_zone,
        dry_run=section.dry_run,
        guard=_guard(section.guard),
        anticipate=section.anticipate,
        rest_slow_paths=section.rest_slow_paths,
        text=text,
    )


def _guard(section: GuardSection) -> Guard:
    longest = section.longest_retry
    if longest is None:
        # No pause is to be shorter than the one before.
        longest = max(section.retry, Guard().longest_retry)
    return Guard(section.enabled, section.after, section.retry, longest)


def _path(name: str, path: PathSection) -> PathMatch:
    return PathMatch(
        name=name,
        interfaces=None if path.interfaces is None else frozenset(path.interfaces),
        clients=None if path.clients is None else tuple(path.clients),
        remote_ids=None if path.remote_ids is None else frozenset(path.remote_ids),
        initial=None if path.subflow is None else path.subflow == "initial",
        backup=path.backup,
    )


def _rule(rule: RuleSection, budgets: dict[str, Budget]) -> Rule:
    when = rule.when or WhenSection()
    steer = None if rule.steer is None else steer_of(rule.steer)
    if isinstance(rule.budget, str):
        budget: Budget | None = budgets[rule.budget]
    else:
        budget = None if rule.budget is None else budget_of(rule.name, False, rule.budget)
    paths = rule.paths if steer is None or not steer.paths else steer.paths
    return Rule(
        name=rule.name,
        paths=None if paths is None else tuple(paths),
        throttle=None if rule.throttle is None else throttle_of(rule.throttle),
        min_paths=when.min_paths,
        min_subflows=when.min_subflows,
        max_subflows=when.max_subflows,
        clients=None if when.clients is None else tuple(when.clients),
        windows=_windows(when),
        lift_last=rule.lift_last,
        directions=DIRECTIONS[rule.direction],
        guard=rule.guard,
        steer=steer,
        budget=budget,
        budget_guard=rule.guard and "guard" in rule.model_fields_set,
        exempts=frozenset(
            kind for kind in Kind if kind.value in rule.model_fields_set and getattr(rule, kind.value) is None
        ),
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


def _unknown_budgets(document: Document) -> Iterator[Problem]:
    """Yield rules that name a budget that is not there, and names that would mix up two accounts."""
    budgets = (document.data or {}).get("budgets", {})
    if not isinstance(budgets, dict):
        return
    known = f"the budgets are {', '.join(key_text((name,)) for name in budgets)}" if budgets else "none are defined"
    if NO_BUDGET in budgets:
        at = document.key_position(("budgets", NO_BUDGET))
        message = f"{shown(NO_BUDGET)} in a rule means that it has no budget; give this one another name"
        yield problem_at(document, ("budgets", NO_BUDGET), None, message, at)
    for index, rule in _rules_of(document):
        budget, name = rule.get("budget"), rule.get("name")
        if isinstance(budget, str) and budget not in (NO_BUDGET, *budgets):
            message = f"{shown(budget)} is not a budget{did_you_mean(budget, budgets)}; {known}"
            yield problem_at(document, ("rules", index, "budget"), budget, message)
        if isinstance(budget, dict) and isinstance(name, str) and name in budgets:
            line = document.key_position(("budgets", name)).line
            message = (
                f"the budget of this rule and the one named {shown(name)} on line {line} would be one account; give "
                "either another name"
            )
            yield problem_at(document, ("rules", index, "name"), name, message)


def _wrong_actions(document: Document) -> Iterator[Problem]:
    for index, rule in _rules_of(document):
        given = [key for key in ACTIONS if key in rule]
        rule_at = document.key_position(("rules", index))
        others = f"{' or '.join(ACTIONS[1:])} in its place"
        if not given and not any(nearest(str(key), ACTIONS) for key in rule):
            yield problem_at(document, ("rules", index, ACTIONS[0]), None, f"is required, or {others}", rule_at)
        steer = rule.get("steer")
        foreign: dict[str, str] = {}
        if given == ["steer"]:
            foreign = dict.fromkeys(("lift_last", "direction", "guard"), "belongs to throttle, not to steer")
        elif "steer" in given and rule.get("direction") == "up":
            foreign["direction"] = "steer is for downloads; write down or both, or give steer a rule of its own"
        if isinstance(steer, dict) and steer.get("mode") != Mode.SMALLEST_DELAY.value:
            foreign["paths"] = "steer itself names the paths of the rule; leave this out"
        for key, message in foreign.items():
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


def _unused_budgets(section: PolicySection, document: Document) -> Iterator[Problem]:
    for name in section.budgets.keys() - {rule.budget for rule in section.rules if isinstance(rule.budget, str)}:
        at = document.key_position(("budgets", name))
        key = key_text(("budgets", name))
        yield Problem(document.source, at.line, at.column, key, None, "no rule feeds this budget", Severity.WARNING)


def _of_rules(
    found: Iterable[composition.Finding], document: Document, severity: Severity = Severity.WARNING
) -> Iterator[Problem]:
    for index, message in found:
        at = document.key_position(("rules", index))
        yield Problem(document.source, at.line, at.column, key_text(("rules", index)), None, message, severity)
