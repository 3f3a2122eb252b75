"""What ``mptcp-throttler quota`` shows and resets: the ledger and its policy."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.budget import Account, next_step, period, step_of
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.storage.budget_ledger import Ledger


def names(policy: Policy) -> list[str]:
    """Return the names a user may give for budgets: those of the rules that feed them, and their own."""
    rules = [rule.name for rule in policy.rules if rule.budget is not None]
    return list(dict.fromkeys([*rules, *policy.budgets]))


def ledger_accounts(ledger: Ledger, policy: Policy, now: float) -> dict[Account, dict[str, Any]]:
    """Return the accounts used in their present period, and all shared ones, as for ``--json``: bytes, ISO 8601 times.
    ``budget`` is its own name, otherwise its rule's, ``rule`` the first rule that feeds it, ``client`` empty for all
    clients together, ``step`` the volume of the step in force, None before the first."""
    found = {}
    for budget in policy.budgets.values():
        begin, end = period(budget, policy.time_zone, now)
        since, until = (datetime.fromtimestamp(at, policy.time_zone).isoformat() for at in (begin, end))
        used = ledger.used([(budget.name, begin)])
        rules = [rule.name for rule in policy.rules if rule.budget is not None and rule.budget.name == budget.name]
        for account in sorted(used) or ([] if budget.per_client else [Account(budget.name, "", begin)]):
            octets = used.get(account, 0)
            step, coming = step_of(budget, octets), next_step(budget, octets)
            found[account] = {
                "budget": budget.name,
                "rule": rules[0],
                "rules": rules,
                "client": account.client,
                "used": max(0, octets),
                "step": None if step is None else step.after,
                "next_step": None if coming is None else coming.after,
                "since": since,
                "until": until,
            }
    return found


def print_accounts(found: Iterable[dict[str, Any]], console: Console) -> None:
    """Print a table of accounts."""
    table = Table()
    for title in ("budget", "client", "used", "step", "next at", "until"):
        table.add_column(title, justify="right" if title in ("used", "step", "next at") else "left", no_wrap=True)
    for each in found:
        volumes = [each[key] for key in ("used", "step", "next_step")]
        sizes = ["-" if volume is None else approximate_size(volume) for volume in volumes]
        table.add_row(each["budget"], each["client"] or "all", *sizes, each["until"][:16].replace("T", " "))
    console.print(table)
