# SPDX-License-Identifier: GPL-2.0-or-later
"""The used volumes of budgets for answers: by account, fullest first, and the total of each budget.

A per-client budget has an account per address, perhaps ten thousand, so rows are created only for the accounts that are
shown. An account's volume may be used before the first step; a row also has the current and the next step.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Collection, Iterator, Mapping

from mptcp_common.accounts import fullest
from mptcp_throttler.policy.budget import Account, next_step, period, step_of
from mptcp_throttler.policy.model import Budget, Policy
from mptcp_throttler.views.answers import AccountAnswer, BudgetTotals

_Fullness = tuple[float, str, str, int]
"""Negated used share of the volume, so that the fullest account is the minimum; budget, client, bytes used."""


def budget_rows(
    policy: Policy, used: Mapping[Account, int], now: float, limit: int
) -> tuple[list[BudgetTotals], list[AccountAnswer]]:
    """Return the total of each budget, and the *limit* fullest accounts, including the fullest of each budget, in the
    periods at *now* (seconds since the epoch)."""
    periods = {name: period(budget, policy.time_zone, now) for name, budget in policy.budgets.items()}
    totals = {name: _total(budget, periods[name][1]) for name, budget in policy.budgets.items()}
    starts = {name: start for name, (start, _) in periods.items()}
    current = {each: octets for each, octets in used.items() if starts.get(each.budget) == each.start}
    candidates = list(_add_totals(policy, totals, current))
    fullest_by_budget: dict[str, _Fullness] = {}
    for each in candidates:
        fullest_by_budget[each[1]] = min(each, fullest_by_budget.get(each[1], each))
    selected = sorted({*heapq.nsmallest(limit, candidates), *fullest_by_budget.values()})
    return list(totals.values()), fullest([_account(policy, totals[each[1]], each) for each in selected], limit)


def budgets_of(
    policy: Policy, used: Mapping[Account, int], now: float, clients: Collection[str]
) -> list[AccountAnswer]:
    """Return the accounts of *clients*, and those that all clients share, fullest first."""
    accounts = {each: octets for each, octets in used.items() if not each.client or each.client in clients}
    return budget_rows(policy, accounts, now, sys.maxsize)[1]


def _total(budget: Budget, end: int) -> BudgetTotals:
    return {
        "name": budget.name,
        "per": "client" if budget.per_client else "path",
        "accounts": 0,
        "used_up": 0,
        "used": 0,
        "volume": 0,
        # The volume until the first step that does not apply from the start; 0 without such a step.
        "first_volume": next((step.after for step in budget.steps if step.after), 0),
        "until": end,
    }


def _add_totals(policy: Policy, totals: Mapping[str, BudgetTotals], used: Mapping[Account, int]) -> Iterator[_Fullness]:
    """Yield the fullness of each account in *used* and of unused shared accounts, and add the accounts to *totals*."""
    for (name, client, _), octets in used.items():
        row, volume = totals[name], totals[name]["first_volume"]
        row["accounts"] += 1
        row["used_up"] += octets >= volume
        row["used"] += max(0, octets)
        row["volume"] += volume
        yield -octets / max(1, volume), name, client, octets
    for name, row in totals.items():
        if not row["accounts"] and not policy.budgets[name].per_client:
            row.update({"accounts": 1, "volume": row["first_volume"]})
            yield 0.0, name, "", 0


def _account(policy: Policy, total: BudgetTotals, fullness: _Fullness) -> AccountAnswer:
    _, name, client, used = fullness
    budget, volume = policy.budgets[name], total["first_volume"]
    step, upcoming = step_of(budget, used), next_step(budget, used)
    return {
        "name": name,
        "rule": next(rule.name for rule in policy.rules if rule.budget is not None and rule.budget.name == name),
        "client": client or None,
        # The stored number is negative if more was granted than used.
        "used": max(0, used),
        "volume": volume,
        "left": max(0, volume - used),
        "step": None if step is None else step.after,
        "next_step": None if upcoming is None else upcoming.after,
        "until": total["until"],
    }
