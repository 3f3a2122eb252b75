"""Each rule of a policy in words: when and for whom it holds, and what it does: a cap, a budget, steering, exemptions.

Nothing of a rule is left out that changes what it does to a subflow, but of many clients four are named. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from mptcp_common.units import approximate_size, counted
from mptcp_throttler.policy.evaluate import cap_text
from mptcp_throttler.policy.model import Budget, Direction, Kind, Onset, Period, Policy, Rule, Steer, Throttle
from mptcp_throttler.policy.schedule import DAYS, MIDNIGHT, hours_text

MOST_PREFIXES: Final = 4
"""Of clients that are named; of more, how many."""
_EXEMPT: Final = {Kind.THROTTLE: "no cap", Kind.BUDGET: "no budget", Kind.STEER: "no steering"}
_COUNTED: Final = {Direction.DOWN: "downloads", Direction.UP: "uploads"}


def rules_in_words(policy: Policy) -> list[dict[str, Any]]:
    """Return for each rule, in order, its ``rule`` name, its ``conditions`` and what it ``does``, in words."""
    return [
        {"rule": rule.name, "conditions": list(_conditions(rule, policy)), "does": list(_does(rule))}
        for rule in policy.rules
    ]


def _conditions(rule: Rule, policy: Policy) -> Iterator[str]:
    if rule.paths is not None:
        yield f"path {' or '.join(rule.paths)}"
    if rule.directions != {Direction.DOWN}:
        yield "uploads" if rule.directions == {Direction.UP} else "downloads and uploads"
    if rule.clients is not None:
        named = ", ".join(str(each) for each in rule.clients[:MOST_PREFIXES])
        more = len(rule.clients) - MOST_PREFIXES
        yield f"clients {named}{f' and {more} more' if more > 0 else ''}"
    if rule.min_subflows is not None:
        yield f"at least {counted(rule.min_subflows, 'active subflow')}"
    if rule.max_subflows is not None:
        yield f"at most {counted(rule.max_subflows, 'active subflow')}"
    if rule.windows is not None:
        yield f"{hours_text(rule.windows)} ({policy.time_zone})"


def _does(rule: Rule) -> Iterator[str]:
    if rule.throttle is not None:
        last = "" if rule.lift_last else ", on the last usable subflow too"
        guard = "" if rule.guard else ", never relaxed by the guard"
        yield f"cap of {_cap(rule.throttle)}{last}{guard}{_from_the_second(rule, Kind.THROTTLE)}"
    if rule.budget is not None:
        yield _budget(rule.budget) + (", relaxed by the guard" if rule.budget_guard else "")
    if rule.steer is not None:
        yield _steering(rule.steer) + _from_the_second(rule, Kind.STEER)
    for kind in Kind:
        if kind in rule.exempts:
            yield _EXEMPT[kind]


def _from_the_second(rule: Rule, kind: Kind) -> str:
    """Return what holds of a rule that does not say from how many subflows on."""
    return ", from the second active subflow on" if rule.min_subflows is None and rule.least(kind) > 1 else ""


def _cap(throttle: Throttle) -> str:
    burst = "" if throttle.burst is None else f", burst of {approximate_size(throttle.burst)}"
    onset = ", at once" if throttle.onset is Onset.AT_ONCE else ""
    return f"{cap_text(throttle)}{burst}{onset}"


def _budget(budget: Budget) -> str:
    steps = (
        f"after {approximate_size(step.after)} {'no cap' if step.throttle is None else _cap(step.throttle)}"
        for step in budget.steps
    )
    whose = "each client" if budget.per_client else "all clients together"
    counts = "" if len(budget.counted) == len(Direction) else f" ({_COUNTED[next(iter(budget.counted))]} alone)"
    return f"{budget.title}, by {budget.period.value}{_reset(budget)} for {whose}{counts}: {', '.join(steps)}"


def _reset(budget: Budget) -> str:
    """Return when the period begins, where that is not midnight of the month's first day, of Monday, or of each day."""
    days = {
        Period.MONTH: (f"day {budget.reset_day}, ", budget.reset_day == 1),
        Period.WEEK: (f"{DAYS[budget.reset_day % len(DAYS)].title()}, ", budget.reset_day == 0),
        Period.DAY: ("", True),
    }
    day, usual = days[budget.period]
    return "" if usual and budget.reset_time == MIDNIGHT else f" from {day}{budget.reset_time:%H:%M}"


def _steering(steer: Steer) -> str:
    if steer.weights:
        shares = (f"{path} {weight}" for path, weight in zip(steer.paths, steer.weights, strict=True))
        return f"steering {steer.name}: {', '.join(shares)}"
    among = f": {', then '.join(steer.paths)}" if steer.paths else ""
    return f"steering {steer.name}{among}"
