"""What ``mptcp-throttler quota`` shows and resets: the ledger beside the policy that it is for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table

from .ledger import Account, Ledger
from .policy.budget import next_step, period, step_of
from .policy.model import Policy
from .policy.units import approximate_size


@dataclass(frozen=True, slots=True)
class Quota:
    """One account in its present period. Sizes in bytes, times in ISO 8601."""

    rule: str
    client: str
    """"" for all clients together."""
    used: int
    step: int | None
    """The volume of the step that holds; None before the first."""
    next_step: int | None
    since: str
    until: str


def quotas(ledger: Ledger, policy: Policy, now: float) -> list[Quota]:
    """Return every account of the policy's budgets that has something in its present period."""
    found = []
    used = ledger.used()
    for rule in policy.rules:
        if rule.budget is None:
            continue
        begin, end = period(rule.budget, policy.time_zone, now)
        accounts = sorted(each for each in used if each.rule == rule.name and each.start == begin)
        for account in accounts or ([] if rule.budget.per_client else [Account(rule.name, "", begin)]):
            octets = used.get(account, 0)
            step, coming = step_of(rule.budget, octets), next_step(rule.budget, octets)
            found.append(
                Quota(
                    rule.name,
                    account.client,
                    octets,
                    None if step is None else step.after,
                    None if coming is None else coming.after,
                    *(datetime.fromtimestamp(at, policy.time_zone).isoformat() for at in (begin, end)),
                )
            )
    return found


def print_quotas(found: list[Quota], console: Console) -> None:
    """Print a table."""
    table = Table()
    for title in ("rule", "client", "used", "step", "next at", "until"):
        table.add_column(title, justify="right" if title in ("used", "step", "next at") else "left", no_wrap=True)
    for each in found:
        table.add_row(
            each.rule,
            each.client or "all",
            approximate_size(each.used),
            "-" if each.step is None else approximate_size(each.step),
            "-" if each.next_step is None else approximate_size(each.next_step),
            each.until[:16].replace("T", " "),
        )
    console.print(table)


def as_json(found: list[Quota]) -> list[dict[str, object]]:
    """Return the same for machines."""
    return [asdict(each) for each in found]
