"""What was used of budgets, as answers have it: by account, those first of which most is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mptcp_throttler.policy.budget import Account, next_step, period
from mptcp_throttler.policy.model import Policy


def budgets(policy: Policy, used: Mapping[Account, int], now: float) -> list[dict[str, Any]]:
    """Return the accounts of the present periods, the fullest first; of a budget for all one even where unused."""
    found = []
    for budget in policy.budgets:
        begin, end = period(budget, policy.time_zone, now)
        rules = [rule.name for rule in policy.rules if rule.budget is not None and rule.budget.name == budget.name]
        accounts = [each for each in used if each.budget == budget.name and each.start == begin]
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


def _fullest_first(budget: Mapping[str, Any]) -> tuple[float, str, str]:
    return -budget["used"] / max(1, budget["volume"]), budget["name"], budget["client"] or ""
