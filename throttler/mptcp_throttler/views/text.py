# SPDX-License-Identifier: GPL-2.0-or-later
"""Describes values, paths and rules of a policy, for answers and for the output of commands. Pure.

A description includes everything that affects a rule's effect on a subflow, but at most four clients.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import lru_cache
from ipaddress import ip_address
from typing import Final

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.conditions import PathMatch, clients_text
from mptcp_throttler.policy.evaluate import cap_text
from mptcp_throttler.policy.model import Budget, Direction, Kind, Onset, Policy, Rule, Throttle
from mptcp_throttler.policy.schedule import DAYS, MIDNIGHT
from mptcp_throttler.policy.verdict import Verdict, add_sentence
from mptcp_throttler.views.answers import PathText, RuleText

_EXEMPTION_TEXT: Final = {Kind.THROTTLE: "no cap", Kind.BUDGET: "no budget", Kind.STEER: "no steering"}
_DIRECTION_TEXT: Final = {Direction.DOWN: "downloads", Direction.UP: "uploads"}


@lru_cache(4096)
def address_text(address: bytes) -> str | None:
    """Return a packed address as text; None if it is empty."""
    return str(ip_address(address)) if address else None


def end_text(address: bytes, port: int) -> str:
    """Return a packed address and port as text."""
    if len(address) == 4:
        return f"{socket.inet_ntoa(address)}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, address)}]:{port}"


def describe_paths(policy: Policy) -> list[PathText]:
    """Return the name (``path``) and the ``conditions`` of each path, in order."""
    return [{"path": name, "conditions": list(_path_conditions(each))} for name, each in policy.paths.items()]


def _path_conditions(path: PathMatch) -> Iterator[str]:
    if path.interfaces is not None:
        yield f"interface {' or '.join(sorted(path.interfaces))}"
    if path.clients is not None:
        yield clients_text(path.clients)
    if path.remote_ids is not None:
        yield f"client's address ID {' or '.join(map(str, sorted(path.remote_ids)))}"
    if path.subflow is not None:
        yield "the initial subflow" if path.subflow == "initial" else "joined subflows"
    if path.backup is not None:
        yield "backup subflows" if path.backup else "subflows that are not backup"


def describe_rules(policy: Policy) -> list[RuleText]:
    """Return the name (``rule``) of each rule, its ``conditions`` and its actions (``does``), in order."""
    return [
        {"rule": rule.name, "conditions": list(_conditions(rule, policy)), "does": list(_actions(rule))}
        for rule in policy.rules
    ]


def _conditions(rule: Rule, policy: Policy) -> Iterator[str]:
    if rule.paths is not None:
        yield f"path {' or '.join(rule.paths)}"
    if rule.direction != ({Direction.DOWN} if rule.has_effect else set(Direction)):
        yield " and ".join(_DIRECTION_TEXT[each] for each in Direction if each in rule.direction)
    yield from rule.when.words(policy.time_zone)


def _actions(rule: Rule) -> Iterator[str]:
    if rule.throttle is not None:
        last_path = "" if rule.lift_last else ", on the last usable path too"
        guard = "" if rule.guard else ", never relaxed by the guard"
        extent = ", always" if rule.always else f"{last_path}{guard}{_default_condition(rule, Kind.THROTTLE)}"
        yield f"cap of {describe_cap(rule.throttle)}{extent}"
    if rule.budget is not None:
        yield describe_budget(rule.budget) + (", relaxed by the guard" if rule.budget_guard else "")
    if rule.steer is not None:
        yield f"steering {rule.steer.words()}" + _default_condition(rule, Kind.STEER)
    for kind in Kind:
        if kind in rule.exempted_kinds:
            yield _EXEMPTION_TEXT[kind]


def _default_condition(rule: Rule, kind: Kind) -> str:
    """Return the default condition of a rule without a minimum number of paths or subflows."""
    is_set = rule.when.model_fields_set & {"min_paths", "min_subflows"}
    return ", once there are subflows on two paths" if not is_set and rule.required_paths(kind) > 1 else ""


def describe_cap(throttle: Throttle) -> str:
    """Return a text such as ``5 Mbit/s per client, up to 8 Mbit/s, at once``."""
    burst = "" if throttle.burst is None else f", burst of {approximate_size(throttle.burst)}"
    onset = ", at once" if throttle.landing is Onset.IMMEDIATE else ""
    return f"{cap_text(throttle)}{burst}{onset}"


def describe_budget(budget: Budget) -> str:
    """Return a text such as ``budget monthly, by month for each client: after 5.00 GB 512 kbit/s``."""
    steps = (
        f"after {approximate_size(step.after)} {'no cap' if step.throttle is None else describe_cap(step.throttle)}"
        for step in budget.steps
    )
    clients = "each client" if budget.per_client else "all clients together"
    directions = "" if len(budget.count) == len(Direction) else f" (only {_DIRECTION_TEXT[next(iter(budget.count))]})"
    return f"{budget.title}, by {budget.period}{_period_start(budget)} for {clients}{directions}: {', '.join(steps)}"


def _period_start(budget: Budget) -> str:
    """Return the start of the period, unless it is midnight of the month's first day, of Monday, or of each day."""
    days = {
        "month": (f"day {budget.reset_day}, ", budget.reset_day == 1),
        "week": (f"{DAYS[budget.reset_day % len(DAYS)].title()}, ", budget.reset_day == 0),
        "day": ("", True),
    }
    day, is_default = days[budget.period]
    return "" if is_default and budget.reset_time == MIDNIGHT else f" from {day}{budget.reset_time:%H:%M}"


def planned_reason(verdict: Verdict, *, with_budget: bool = False) -> str:
    """Return the reason of *verdict*, with the steering and the metering budget, which are known without samples."""
    reason, rule = verdict.reason, verdict.steer
    budget = None if verdict.budget is None else verdict.budget.budget
    if with_budget and budget is not None:
        reason = add_sentence(reason, f"metered by the {budget.title}", verdict.direction)
    if rule is not None and rule.steer is not None:
        reason = add_sentence(reason, f"steered {rule.steer.mode} by rule {rule.name}", verdict.direction)
    return reason
