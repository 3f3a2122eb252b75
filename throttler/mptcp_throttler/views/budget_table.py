"""What ``mptcp-throttler quota`` shows and resets: the ledger beside the policy that it is for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.budget import Account, next_step, period, step_of
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.storage.budget_ledger import Ledger


@dataclass(frozen=True, slots=True)
class Quota:
    """One account in its present period. Sizes in bytes, times in ISO 8601."""

    budget: str
    """Its own name, or that of its rule where it has none."""
    rule: str
    """The first rule that feeds it."""
    rules: tuple[str, ...]
    """All of them."""
    client: str
    """"" for all clients together."""
    used: int
    step: int | None
    """The volume of the step that holds; None before the first."""
    next_step: int | None
    since: str
    until: str
    account: Account

    def goes_by(self, name: str) -> bool:
        """Whether *name* is that of the budget or of a rule that feeds it."""
        return name == self.budget or name in self.rules


def names(policy: Policy) -> list[str]:
    """Return what a user may call the budgets of *policy*: the rules that feed them, and names of their own."""
    rules = [rule.name for rule in policy.rules if rule.budget is not None]
    return list(dict.fromkeys([*rules, *policy.budgets]))


def quotas(ledger: Ledger, policy: Policy, now: float) -> list[Quota]:
    """Return every account of the policy's budgets that has something in its present period."""
    found = []
    for budget in policy.budgets.values():
        begin, end = period(budget, policy.time_zone, now)
        used = ledger.used([(budget.name, begin)])
        rules = tuple(rule.name for rule in policy.rules if rule.budget is not None and rule.budget.name == budget.name)
        for account in sorted(used) or ([] if budget.per_client else [Account(budget.name, "", begin)]):
            octets = used.get(account, 0)
            step, coming = step_of(budget, octets), next_step(budget, octets)
            since, until = (datetime.fromtimestamp(at, policy.time_zone).isoformat() for at in (begin, end))
            found.append(
                Quota(
                    budget.name,
                    rules[0],
                    rules,
                    account.client,
                    octets,
                    None if step is None else step.after,
                    None if coming is None else coming.after,
                    since,
                    until,
                    account,
                )
            )
    return found


def print_quotas(found: list[Quota], console: Console) -> None:
    """Print a table."""
    table = Table()
    for title in ("budget", "client", "used", "step", "next at", "until"):
        table.add_column(title, justify="right" if title in ("used", "step", "next at") else "left", no_wrap=True)
    for each in found:
        table.add_row(
            each.budget,
            each.client or "all",
            approximate_size(each.used),
            "-" if each.step is None else approximate_size(each.step),
            "-" if each.next_step is None else approximate_size(each.next_step),
            each.until[:16].replace("T", " "),
        )
    console.print(table)


def as_json(found: list[Quota]) -> list[dict[str, object]]:
    """Return the same for machines."""
    return [{key: value for key, value in asdict(each).items() if key != "account"} for each in found]
