"""The present periods of all budgets of a policy, found anew only when one of them ends. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from datetime import datetime
from ipaddress import ip_address
from zoneinfo import ZoneInfo

from mptcp_throttler.policy.budget import Account, period
from mptcp_throttler.policy.model import Budget


class Periods:
    """Of *budgets*, by the calendar of *zone*."""

    def __init__(self, budgets: Sequence[Budget], zone: ZoneInfo | None) -> None:
        self.budgets = budgets
        self._zone = zone
        self._of: dict[str, tuple[int, str]] = {}
        self._from = math.inf
        self._to = -math.inf

    def find(self, now: float) -> bool:
        """Have the periods that hold *now*, seconds since the epoch; return whether any is another than before."""
        if self._from <= now < self._to or self._zone is None or not self.budgets:
            return False
        found = {}
        self._from, self._to = -math.inf, math.inf
        for budget in self.budgets:
            begin, end = period(budget, self._zone, now)
            local = datetime.fromtimestamp(end, self._zone)
            found[budget.name] = begin, f"until {local:%Y-%m-%d %H:%M %Z}"
            self._from, self._to = max(self._from, begin), min(self._to, end)
        changed, self._of = found != self._of, found
        return changed

    @property
    def starts(self) -> Collection[tuple[str, int]]:
        """Name of each budget and begin of its period."""
        return [(name, begin) for name, (begin, _) in self._of.items()]

    def account(self, budget: Budget, remote: bytes) -> Account:
        """Return the present account of *budget* for a client, whose address is packed."""
        client = str(ip_address(remote)) if budget.per_client else ""
        return Account(budget.name, client, self._of[budget.name][0])

    def until(self, budget: Budget) -> str:
        """Return until when it lasts, for people."""
        return self._of[budget.name][1]
