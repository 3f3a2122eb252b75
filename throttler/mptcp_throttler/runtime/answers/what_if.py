# SPDX-License-Identifier: GPL-2.0-or-later
"""The answer to ``what_if``: the current subflows that another policy would cap or steer differently.

Only a policy's effects on a subflow are compared: its cap, its role in a steering mode, the budget that meters it, and
whether the policy is a dry run. The current state of paths, such as a fail-over of steering, makes no difference.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Final

from mptcp_common.problems import DocumentError
from mptcp_throttler.config.files import accept_policy
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Budget, Direction, Throttle
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.runtime.answers.snapshot import Snapshot
from mptcp_throttler.stages.steering import find_steering
from mptcp_throttler.views.answers import Difference, WhatIfAnswer
from mptcp_throttler.views.requests import Arguments, RequestError
from mptcp_throttler.views.text import describe_budget, describe_cap, end_text

MAX_LISTED: Final = 200  # maximum number of subflows listed as changed, and of those listed as capped without a change
MAX_SECONDS: Final = 2.5  # maximum duration of the query, because the console waits for 3 s
NICE: Final = 0  # priority (nice value) of the child: the same as that of the proxy


@dataclass(frozen=True, slots=True)
class _Treatment:
    """The effects of a policy on one subflow in one direction."""

    cap: tuple[str, Throttle] | None = None
    """Name of the rule, and limits of the cap, which may come from a budget or from load balancing."""
    steering: str = ""
    budget: Budget | None = None  # the budget that meters the subflow, whether it is used up or not
    dry_run: bool = False  # whether a cap or a steering mode is not applied because of a dry run

    @property
    def is_capped(self) -> bool:
        return self.cap is not None and not self.dry_run

    def describe(self, other: _Treatment) -> str:
        """Return the treatment in words, without the budget if *other* has the same budget."""
        parts = ["not capped"]
        if self.cap is not None:
            rule, cap = self.cap[0], describe_cap(self.cap[1])
            parts = [f"capped at {cap}{',' if ',' in cap else ''} by rule {rule}"]
        if self.steering or other.steering:
            parts.append(self.steering or "not steered")
        if self.budget != other.budget:
            parts.append("no budget" if self.budget is None else describe_budget(self.budget))
        return f"{'; '.join(parts)}{' (dry run)' if self.dry_run else ''}"


def what_if(snapshot: Snapshot, request: Arguments) -> WhatIfAnswer:
    """Evaluate the policy in *request* for every connection. This changes only the child's copy of the daemon.

    This is the longest query, and every reader of the status may send it. So it runs at the priority of the proxy, for
    a limited time. Raises RequestError if the time is too short.
    """
    deadline = time.monotonic() + MAX_SECONDS
    # If the daemon was started at a lower priority, keep it: raising it needs a capability.
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        policy, _ = accept_policy(request["policy"], "policy", snapshot.settings)
    except DocumentError as error:
        # mypy does not detect that the missing keys are optional.
        return {**snapshot.common_keys, "errors": [str(problem) for problem in error.problems]}  # type: ignore[typeddict-item]
    changes: list[Difference] = []
    unchanged: list[Difference] = []
    changed = stay_capped = capped_now = capped_then = 0
    decisions, connections = snapshot.engine.decisions, snapshot.connections
    decisions.set_policy(policy)
    # The kernel's path manager can make only the subflows of new connections backup.
    note = "" if snapshot.engine.path_manager.is_active or decisions.is_dry else ", from the next connection on"
    for number, (token, connection) in enumerate(connections.items()):
        if time.monotonic() > deadline:
            progress = f"{number:,} of {len(connections):,} connections in {MAX_SECONDS:g} s"
            raise RequestError(f"the evaluation of this policy takes too long: {progress}")
        current = snapshot.verdicts(token)
        *_, planned = decisions.verdict_steps(connection)
        before, after = _treatments(current, snapshot.is_dry), _treatments(planned, decisions.is_dry, note)
        verdicts = {(each.four_tuple, each.direction): each for each in (*current, *planned)}
        for key in dict.fromkeys([*before, *after]):
            old, new = before.get(key, _Treatment()), after.get(key, _Treatment())
            capped_now += old.is_capped
            capped_then += new.is_capped
            listed = unchanged
            if old != new:
                changed += 1
                listed = changes
            elif new.is_capped:
                stay_capped += 1
            else:
                continue
            if len(listed) < MAX_LISTED:
                verdict = verdicts[key]  # the verdict of the other policy if it decided, otherwise the current one
                listed.append(
                    {
                        "token": f"{connection.token:08x}",
                        "remote": end_text(verdict.four_tuple.remote, verdict.four_tuple.remote_port),
                        "path": verdict.path,
                        "direction": verdict.direction,
                        "now": old.describe(new),
                        "then": new.describe(old),
                        "why": verdict.reason if key in after else None,
                    }
                )
    return {
        **snapshot.common_keys,
        "errors": [],
        "changes": changes,
        "changed": changed,
        "stay_capped": unchanged,
        "stay_capped_count": stay_capped,
        "capped_now": capped_now,
        "capped_then": capped_then,
        "dry_run_now": snapshot.is_dry,
        "dry_run_then": decisions.is_dry,
    }


def _treatments(
    verdicts: tuple[Verdict, ...], dry_run: bool, note: str = ""
) -> dict[tuple[FourTuple, Direction], _Treatment]:
    steering = _steering_roles(verdicts, note)
    treatments = {}
    for each in verdicts:
        cap = None if each.throttle is None or each.rule is None else (each.rule.name, each.throttle)
        role = steering.get(each.four_tuple, "") if each.direction is Direction.DOWN else ""
        budget = None if each.budget is None else each.budget.budget
        # Budgets also meter in a dry run.
        treatments[each.four_tuple, each.direction] = _Treatment(cap, role, budget, dry_run and bool(cap or role))
    return treatments


def _steering_roles(verdicts: tuple[Verdict, ...], note: str) -> dict[FourTuple, str]:
    """Return the role of each steered subflow, in words. If a rule steers by order, all subflows except those on the
    first existing path are backup. *note* is appended if the role needs a backup flag."""
    rule, path_of = find_steering(verdicts)
    if rule is None or rule.steer is None:
        return {}
    steer, words = rule.steer, f"steered {rule.steer.mode} by rule {rule.name}"
    first = min(path_of.values(), key=steer.paths.index)
    note = note if steer.mode_class.sets_backup else ""
    return {each: f"{words}, {steer.role(path, first)}{note}" for each, path in path_of.items()}
