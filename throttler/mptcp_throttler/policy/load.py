"""Load the text of a policy file into a :class:`~.model.Policy`, or report everything that is wrong with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
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
from mptcp_throttler.policy import rule_lint
from mptcp_throttler.policy.model import NO_BUDGET, Policy, named_paths
from mptcp_throttler.policy.values import volume_as_budget
from mptcp_throttler.steering.modes import BY_NAME

ACTIONS: Final = ("throttle", "steer", "budget")
"""Keys of which a rule needs at least one."""


class PolicyError(DocumentError):
    """The policy cannot be used. ``problems`` has all errors, ``str()`` one line for each."""


@dataclass(frozen=True, slots=True)
class CheckedPolicy:
    """The result of :func:`check_policy`."""

    policy: Policy | None
    """None if any of the problems is an error."""
    problems: tuple[Problem, ...]
    """Errors or, without errors, warnings; in the order of their lines."""
    notes: tuple[Problem, ...] = ()
    """Notes for ``check``: caps per interface, rules that wait in vain, caps that plain TCP exceeds."""


def check_policy(text: str, source: str, interfaces: Collection[str] | None = None) -> CheckedPolicy:
    """Return the policy in *text* and its problems. *source*: the file; *interfaces*: of the settings, if known."""
    document = parse_document(text, source)
    policy, problems = validate(Policy, document)
    checks = (_unknown_paths, _unknown_budgets, _repeated_names, _wrong_actions)
    errors = in_order([*problems, *(problem for check in checks for problem in check(document))])
    if policy is None or errors:
        return CheckedPolicy(None, errors)
    if errors := tuple(_of_rules(rule_lint.errors(policy), document, Severity.ERROR)):
        return CheckedPolicy(None, errors)
    policy.made_of(text)
    warnings = [*_unused_budgets(policy, document), *_of_rules(rule_lint.warnings(policy), document)]
    found = [
        *rule_lint.past_caps(policy),
        *rule_lint.per_interface(policy, interfaces),
        *rule_lint.on_one_path(policy, interfaces),
    ]
    notes = _of_rules(found, document, Severity.NOTE)
    return CheckedPolicy(policy, in_order(warnings), in_order(notes))


def load_policy(text: str, source: str) -> Policy:
    """Return the policy in *text*. Raises :class:`PolicyError` with all errors."""
    checked = check_policy(text, source)
    if checked.policy is None:
        raise PolicyError(checked.problems)
    return checked.policy


# These check the document, not the validated sections, so that an error in one place hides none in another.


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
        for key, name in [*listed, *_steered_among(rule)]:
            if isinstance(name, str) and name not in paths:
                message = f"{shown(name)} is not a path{did_you_mean(name, paths)}; {known}"
                yield problem_at(document, ("rules", index, *key), name, message)


def _steered_among(rule: dict[str, object]) -> Iterator[tuple[KeyPath, object]]:
    steer = rule.get("steer")
    for key, name in named_paths(steer) if isinstance(steer, dict) else ():
        yield ("steer", *key), name


def _unknown_budgets(document: Document) -> Iterator[Problem]:
    """Yield rules that name an unknown budget, and names that would mix up two accounts."""
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
            if re.fullmatch(NAME_PATTERN, budget):  # validation refuses all others
                message = volume_as_budget(budget) or message
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
            foreign = dict.fromkeys(
                ("always", "plain_tcp", "lift_last", "direction", "guard"), "belongs to throttle, not to steer"
            )
        elif "steer" in given and rule.get("direction") == "up":
            foreign["direction"] = "steer is for downloads; write down or both, or give steer a rule of its own"
        mode = BY_NAME.get(str(steer.get("mode", ""))) if isinstance(steer, dict) else None
        if isinstance(steer, dict) and (mode is None or mode.spreads):
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


def _unused_budgets(policy: Policy, document: Document) -> Iterator[Problem]:
    for name in set((document.data or {}).get("budgets") or ()) - policy.budgets.keys():  # type: ignore[call-overload]
        at = document.key_position(("budgets", name))
        key = key_text(("budgets", name))
        yield Problem(document.source, at.line, at.column, key, None, "no rule feeds this budget", Severity.WARNING)


def _of_rules(
    found: Iterable[rule_lint.Finding], document: Document, severity: Severity = Severity.WARNING
) -> Iterator[Problem]:
    for index, message in found:
        at = document.key_position(("rules", index))
        yield Problem(document.source, at.line, at.column, key_text(("rules", index)), None, message, severity)
