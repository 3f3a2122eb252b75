# SPDX-License-Identifier: GPL-2.0-or-later
"""The use of budgets for answers: by account, fullest first, and the total of each budget.

A per-client budget has an account per address, perhaps ten thousand: only those shown get a row. The volume of a budget
is what may be used until its first step; a row also has the step in force and the next one.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from mptcp_common.accounts import fullest
from mptcp_throttler.policy.budget import Account, next_step, period, step_of
from mptcp_throttler.policy.model import Budget, Policy
from mptcp_throttler.views.answers import AccountAnswer, BudgetTotals

_Fullness = tuple[float, str, str, int]
"""Negated used share of the volume, so that the fullest account is the least; budget, client, bytes used."""


@dataclass(slots=True)
class _Total:
    """All accounts of one budget together."""

    budget: Budget
    rule: str  # the first one that feeds the budget
    begin: int
    end: int
    accounts: int = 0
    used_up: int = 0
    used: int = 0
    volume: int = 0

    def row(self) -> BudgetTotals:
        return {
            "name": self.budget.name,
            "per": "client" if self.budget.per_client else "path",
            "accounts": self.accounts,
            "used_up": self.used_up,
            "used": self.used,
            "volume": self.volume,
            "first_volume": _volume(self.budget),
            "until": self.end,
        }

    def account(self, fullness: _Fullness) -> AccountAnswer:
        _, name, client, used = fullness
        volume = _volume(self.budget)
        step, coming = step_of(self.budget, used), next_step(self.budget, used)
        return {
            "name": name,
            "rule": self.rule,
            "client": client or None,
            # It is negative if more was granted than used.
            "used": max(0, used),
            "volume": volume,
            "left": max(0, volume - used),
            "step": None if step is None else step.after,
            "next_step": None if coming is None else coming.after,
            "until": self.end,
        }


def budget_rows(
    policy: Policy, used: Mapping[Account, int], now: float, most: int
) -> tuple[list[BudgetTotals], list[AccountAnswer]]:
    """Return the total of each budget, and the *most* fullest accounts, with the fullest of each budget among them, in
    the periods at *now* (seconds since the epoch)."""
    totals = _totals(policy, now)
    candidates = list(_counted(totals, used))
    firsts: dict[str, _Fullness] = {}
    for each in candidates:
        firsts[each[1]] = min(each, firsts.get(each[1], each))
    kept = sorted({*heapq.nsmallest(most, candidates), *firsts.values()})
    accounts = [totals[each[1]].account(each) for each in kept]
    return [total.row() for total in totals.values()], fullest(accounts, most)


def budgets_of(
    policy: Policy, used: Mapping[Account, int], now: float, clients: Collection[str]
) -> list[AccountAnswer]:
    """Return the accounts of *clients*, and those that all clients share, fullest first."""
    totals = _totals(policy, now)
    theirs = {each: octets for each, octets in used.items() if not each.client or each.client in clients}
    return [totals[each[1]].account(each) for each in sorted(_counted(totals, theirs))]


def _totals(policy: Policy, now: float) -> dict[str, _Total]:
    rules = {rule.budget.name: rule.name for rule in reversed(policy.rules) if rule.budget is not None}
    return {
        budget.name: _Total(budget, rules[budget.name], *period(budget, policy.time_zone, now))
        for budget in policy.budgets.values()
    }


def _counted(totals: Mapping[str, _Total], used: Mapping[Account, int]) -> Iterator[_Fullness]:
    """Yield the fullness of each account in the present period and add it to *totals*; even of unused shared ones."""
    volumes = {name: _volume(total.budget) for name, total in totals.items()}
    for (name, client, start), octets in used.items():
        total = totals.get(name)
        if total is None or start != total.begin:
            continue
        volume = volumes[name]
        total.accounts += 1
        total.used_up += octets >= volume
        total.used += max(0, octets)
        total.volume += volume
        yield -octets / max(1, volume), name, client, octets
    for name, total in totals.items():
        if not total.accounts and not total.budget.per_client:
            total.accounts, total.volume = 1, volumes[name]
            yield 0.0, name, "", 0


def _volume(budget: Budget) -> int:
    """Return what may be used until the first step that does not hold from the beginning; 0 without one."""
    return next((step.after for step in budget.steps if step.after), 0)
