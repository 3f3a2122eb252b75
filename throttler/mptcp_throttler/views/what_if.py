"""The answer to ``what_if``: which live subflows another policy would cap, and which it would treat otherwise.

Made from what was decided. How a subflow is treated is what the policy has done to it: its cap, its part in a steering
mode, the budget that meters it, and whether any of that is a dry run. What a path does at the moment, a fail-over of
steering say, is not the policy's doing, and makes no difference here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mptcp_throttler.mptcp.model import Connection, FourTuple
from mptcp_throttler.policy.model import Budget, Direction, Throttle, Verdict
from mptcp_throttler.stages.steering import steered
from mptcp_throttler.views.rule_words import budget_in_words, cap_in_words
from mptcp_throttler.views.snapshot import end_text

MAX_LISTED: Final = 200
"""Subflows that would be treated otherwise, and so many that would be capped as they are."""

Decided = tuple[Connection, tuple[Verdict, ...], tuple[Verdict, ...]]
"""A connection, its verdicts, and those that it would have."""
_Key = tuple[FourTuple, Direction]


@dataclass(frozen=True, slots=True)
class _Treatment:
    """What a policy does to one subflow in one direction. Two that are equal make no difference to it."""

    cap: tuple[str, Throttle] | None = None
    """The rule, and what it lets through; that of a budget or of load-balancing too."""
    steering: str = ""
    """In words."""
    budget: Budget | None = None
    """That meters it, used up or not."""
    dry_run: bool = False
    """None of it is done. Never set where nothing would be."""

    @property
    def capped(self) -> bool:
        return self.cap is not None and not self.dry_run

    def words(self, other: _Treatment) -> str:
        """Return it in words, and nothing of budgets where *other* has the same."""
        parts = [_cap(*self.cap) if self.cap is not None else "not capped"]
        if self.steering or other.steering:
            parts.append(self.steering or "not steered")
        if self.budget != other.budget:
            parts.append("no budget" if self.budget is None else budget_in_words(self.budget))
        return f"{'; '.join(parts)}{' (dry run)' if self.dry_run else ''}"


def _cap(rule: str, throttle: Throttle) -> str:
    cap = cap_in_words(throttle)
    return f"capped at {cap}{',' if ',' in cap else ''} by rule {rule}"


_NONE: Final = _Treatment()


def what_if(
    decided: Iterable[Decided], *, dry_run_now: bool, dry_run_then: bool, flags_can_be_set: bool
) -> dict[str, Any]:
    """Return the answer.

    *flags_can_be_set*: the path manager in user space is in force, without which no subflow of a connection that is
    there becomes backup; those of connections to come do.
    """
    later = "" if flags_can_be_set or dry_run_then else ", from the next connection on"
    changes: list[dict[str, Any]] = []
    unchanged: list[dict[str, Any]] = []
    changed = stay_capped = capped_now = capped_then = 0
    for connection, now, then in decided:
        before, after = _treatments(now, dry_run_now), _treatments(then, dry_run_then, later)
        verdicts = {(each.four_tuple, each.direction): each for each in (*now, *then)}
        for key in dict.fromkeys([*before, *after]):
            old, new = before.get(key, _NONE), after.get(key, _NONE)
            capped_now += old.capped
            capped_then += new.capped
            row = unchanged
            if old != new:
                changed += 1
                row = changes
            elif new.capped:
                stay_capped += 1
            else:
                continue
            if len(row) < MAX_LISTED:
                row.append(_row(connection, verdicts[key], old, new, key in after))
    return {
        "changes": changes,
        "changed": changed,
        "stay_capped": unchanged,
        "stay_capped_count": stay_capped,
        "capped_now": capped_now,
        "capped_then": capped_then,
        "dry_run_now": dry_run_now,
        "dry_run_then": dry_run_then,
    }


def _row(connection: Connection, verdict: Verdict, old: _Treatment, new: _Treatment, decided: bool) -> dict[str, Any]:
    """*verdict*: that of the other policy, where it has *decided*, else the one of now."""
    four_tuple = verdict.four_tuple
    return {
        "token": f"{connection.token:08x}",
        "remote": end_text(four_tuple.remote, four_tuple.remote_port),
        "path": verdict.path,
        "direction": verdict.direction.value,
        "now": old.words(new),
        "then": new.words(old),
        "why": verdict.reason if decided else None,
    }


def _treatments(verdicts: tuple[Verdict, ...], dry_run: bool, later: str = "") -> dict[_Key, _Treatment]:
    steering = _steering(verdicts, later)
    found = {}
    for each in verdicts:
        cap = None if each.throttle is None or each.rule is None else (each.rule.name, each.throttle)
        part = steering.get(each.four_tuple, "") if each.direction is Direction.DOWN else ""
        budget = None if each.budget is None else each.budget.budget
        # Budgets meter in a dry run, too.
        found[each.four_tuple, each.direction] = _Treatment(cap, part, budget, dry_run and bool(cap or part))
    return found


def _steering(verdicts: tuple[Verdict, ...], later: str) -> dict[FourTuple, str]:
    """Return the part of each steered subflow, in words: by order, what is not on the first path there is backup.

    *later* is said of what a backup flag does.
    """
    rule, path_of = steered(verdicts)
    if rule is None or rule.steer is None:
        return {}
    steer, words = rule.steer, f"steered {rule.steer.mode} by rule {rule.name}"
    there = sorted(path_of.values(), key=steer.paths.index)
    later = later if steer.kind.sets_backup else ""
    return {each: f"{words}, {steer.kind.part(steer.given, path, there)}{later}" for each, path in path_of.items()}
