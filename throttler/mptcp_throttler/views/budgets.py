"""What was used of budgets, as answers have it: by account, the fullest first, and each budget in all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mptcp_throttler.policy.budget import Account, next_step, period
from mptcp_throttler.policy.model import Policy

Row = Mapping[str, Any]


def budgets(policy: Policy, used: Mapping[Account, int], now: float) -> list[dict[str, Any]]:
    """Return the accounts of the present periods, the fullest first; of a budget for all one even where unused."""
    known: dict[tuple[str, int], list[Account]] = {}
    for each in used:
        known.setdefault((each.budget, each.start), []).append(each)
    found = []
    for budget in policy.budgets:
        begin, end = period(budget, policy.time_zone, now)
        rules = [rule.name for rule in policy.rules if rule.budget is not None and rule.budget.name == budget.name]
        accounts = known.get((budget.name, begin), [])
        if not budget.per_client and not accounts:
            accounts = [Account(budget.name, "", begin)]
        for account in accounts:
            octets = used.get(account, 0)
            coming = next_step(budget, octets)
            volume = (coming or budget.steps[-1]).after
            found.append(
                {
                    "name": budget.name,
                    "rule": rules[0],
                    "client": account.client or None,
                    "used": octets,
                    "volume": volume,
                    "left": max(0, volume - octets),
                    "until": end,
                }
            )
    return sorted(found, key=_fullest_first)


def budget_totals(policy: Policy, accounts: Sequence[Row], now: float) -> list[dict[str, Any]]:
    """Return each budget of *policy* in all: what its *accounts* come to, none of which may be missing."""
    found: dict[str, dict[str, Any]] = {
        budget.name: {
            "name": budget.name,
            "per": "client" if budget.per_client else "path",
            "accounts": 0,
            "used_up": 0,
            "used": 0,
            "volume": 0,
            "until": period(budget, policy.time_zone, now)[1],
        }
        for budget in policy.budgets
    }
    for account in accounts:
        total = found[account["name"]]
        total["accounts"] += 1
        total["used_up"] += not account["left"]
        total["used"] += account["used"]
        total["volume"] += account["volume"]
    return list(found.values())


def fullest(accounts: Sequence[Row], most: int) -> list[Row]:
    """Return *most* of *accounts*, which have the fullest first: the fullest of each budget, however many budgets there
    are, and the fullest of the others."""
    firsts = {account["name"]: place for place, account in reversed(list(enumerate(accounts)))}
    shown = set(firsts.values())
    for place in range(len(accounts)):
        if len(shown) >= most:
            break
        shown.add(place)
    return [accounts[place] for place in sorted(shown)]


def _fullest_first(budget: Row) -> tuple[float, str, str]:
    return -budget["used"] / max(1, budget["volume"]), budget["name"], budget["client"] or ""
