# SPDX-License-Identifier: GPL-2.0-or-later
"""The accounts of budgets: the bytes used in the present period, and the step of the budget they reach. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import ip_address
from typing import Final
from zoneinfo import ZoneInfo

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.budget import Account, next_step, period
from mptcp_throttler.policy.model import Budget, BudgetStep, Policy

ANNOUNCED_PERCENT: Final = (50, 80, 95)  # percentages of the first step's volume that reasons announce
MAX_REACHED: Final = 1024  # maximum accounts reported at a time; if more reached a step, the latest are
NEAR_SECONDS: Final = 3.0  # an account is near its next step if it would reach it within this time at its present rate


@dataclass(slots=True, eq=False)
class OpenAccount:
    """An account of a present period, in use by subflows."""

    key: Account
    budget: Budget
    swept: int = 0  # bytes since the last full sweep
    over: bool = False  # whether the period has ended or the policy no longer has the budget
    tokens: set[int] = field(default_factory=set)  # connections whose verdicts depend on this account
    step: BudgetStep | None = None
    percent: int = 0  # the last announced percentage of the first step that was used; 0 once a step is reached
    turn: float = math.inf  # used bytes at which the verdicts change next
    sentence: str = ""

    def find_level(self, used: int) -> bool:
        """Set step and percent for *used* bytes; return whether they changed."""
        before = self.step, self.percent
        self.step, self.percent, self.turn, self.sentence = None, 0, math.inf, ""
        first = self.budget.steps[0].after
        announced = [(-(-first * percent // 100), None, percent) for percent in ANNOUNCED_PERCENT]
        for at, step, percent in [*announced, *((each.after, each, 0) for each in self.budget.steps)]:
            if used < at:
                self.turn = at
                break
            self.step, self.percent = step, percent
        return (self.step, self.percent) != before


class Accounts:
    """All accounts of the policy in force, and the connections that depend on them."""

    def __init__(self) -> None:
        self._budgets: Mapping[str, Budget] = {}
        self._zone: ZoneInfo | None = None
        self._cap_verb = ""
        self._now: float | None = None
        """Time of the last :meth:`begin_periods`, seconds since the epoch."""
        self._present: dict[str, tuple[int, int]] = {}  # begin and end of the present period of each budget
        self._from, self._to = math.inf, -math.inf  # begin and end of the time in which all these are present
        self._open: dict[tuple[str, bytes], OpenAccount] = {}
        """Accounts by budget name and packed client address, which is empty for an account shared by all clients."""
        self.used: dict[Account, int] = {}
        """Used bytes by account, also of those not yet in use and of previous periods: the clock may be set back."""
        self.added: dict[Account, int] = {}  # bytes by account that the ledger does not have yet
        self._stale: set[int] = set()
        self.reached: deque[OpenAccount] = deque(maxlen=MAX_REACHED)  # those that reached a step or a percentage
        self._swept: list[OpenAccount] = []
        self._swept_at: float | None = None

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force; drop accounts of budgets that it lacks."""
        self._budgets, self._zone, self._cap_verb = policy.budgets, policy.time_zone, policy.cap_verb
        self._present, self._from, self._to = {}, math.inf, -math.inf
        for client, account in list(self._open.items()):
            if account.key.budget in self._budgets:
                account.budget = self._budgets[account.key.budget]
                account.find_level(self.used[account.key])
            else:
                account.over = True
                del self._open[client]
        if not self._budgets:
            self.used.clear()
        if self._now is not None:
            # Samples and closed sockets may need the periods before the first decision.
            self.begin_periods(self._now)

    def begin_periods(self, now: float) -> None:
        """Begin the periods that include *now*, seconds since the epoch."""
        self._now = now
        if self._from <= now < self._to or self._zone is None or not self._budgets:
            return
        before = set(self.periods)
        self._present = {name: period(budget, self._zone, now) for name, budget in self._budgets.items()}
        self._from = max(begin for begin, _ in self._present.values())
        self._to = min(end for _, end in self._present.values())
        present = set(self.periods)
        if present == before:
            return
        for client, account in list(self._open.items()):
            if (account.key.budget, account.key.start) not in present:
                account.over = True
                self._stale |= account.tokens
                del self._open[client]
        kept = present | before
        self.used = {key: octets for key, octets in self.used.items() if (key.budget, key.start) in kept}

    @property
    def periods(self) -> Collection[tuple[str, int]]:
        """Name of each budget and begin of its present period."""
        return [(name, begin) for name, (begin, _) in self._present.items()]

    def until(self, budget: Budget) -> str:
        """Return the end of the present period of *budget*, in words."""
        return f"until {datetime.fromtimestamp(self._present[budget.name][1], self._zone):%Y-%m-%d %H:%M %Z}"

    def set_used(self, periods: Collection[tuple[str, int]], used: Mapping[Account, int]) -> Collection[int]:
        """Take *used*, the ledger's bytes of all accounts of *periods*; return the connections to decide again. Before
        the call, all counts that were fetched for the ledger must have been written or put back."""
        read = set(periods)
        others = {key: octets for key, octets in self.used.items() if (key.budget, key.start) not in read}
        self.used = others | dict(used)
        for account in self._open.values():
            if (account.key.budget, account.key.start) in read:
                self.used[account.key] = used.get(account.key, 0) + self.added.get(account.key, 0)
                self._settle_level(account)
        return self.take_stale()

    def account(self, budget: Budget, remote: bytes) -> OpenAccount:
        """Return the present account of *budget* for the client with packed address *remote*."""
        whose = remote if budget.per_client else b""
        found = self._open.get((budget.name, whose))
        if found is None:
            key = Account(budget.name, str(ip_address(whose)) if whose else "", self._present[budget.name][0])
            found = self._open[budget.name, whose] = OpenAccount(key, budget)
            found.find_level(self.used.setdefault(key, 0))
        return found

    def renewed(self, account: OpenAccount, remote: bytes) -> OpenAccount:
        """Return *account*, or the present one in its place if its period is over."""
        budget = self._budgets.get(account.key.budget) if account.over else None
        return account if budget is None else self.account(budget, remote)

    def add(self, account: OpenAccount, octets: int) -> None:
        key = account.key
        self.added[key] = self.added.get(key, 0) + octets
        if account.over:
            return  # the account has ended: only the ledger gets these bytes
        if not account.swept:
            self._swept.append(account)
        account.swept += octets
        used = self.used[key] = self.used[key] + octets
        if used >= account.turn:
            self._settle_level(account)

    def _settle_level(self, account: OpenAccount) -> None:
        if account.find_level(self.used[account.key]):
            self._stale |= account.tokens
            self.reached.append(account)

    def take_stale(self) -> Collection[int]:
        """Return the connections whose verdicts are out of date, and forget them."""
        stale, self._stale = self._stale, set()
        return stale

    def near_a_step(self, now: float) -> Iterator[Collection[int]]:
        """After a full sweep at *now*, monotonic, yield for each account with new bytes: its connections if it is near
        its next step, otherwise none. The caller may pause at any point."""
        span = 0.0 if self._swept_at is None else now - self._swept_at
        swept, self._swept, self._swept_at = self._swept, [], now
        for account in swept:
            octets, account.swept = account.swept, 0
            used = self.used.get(account.key, 0)  # missing if the account's period has ended
            coming = next_step(account.budget, used)
            # The next sweeps may take as long as this one, so look ahead for three of them.
            soon = octets / span * max(NEAR_SECONDS, 3 * span) if span > 0 else 0.0
            yield tuple(account.tokens) if coming is not None and coming.after - used < soon else ()

    def describe(self, account: OpenAccount) -> str:
        """Return the sentence about *account* for reasons. It is made when first needed."""
        if not account.sentence:
            budget, step = account.budget, account.step
            if step is None:
                share = f"over {account.percent} %" if account.percent else f"under {ANNOUNCED_PERCENT[0]} %"
                text = f"{budget.title}: {share} of {approximate_size(budget.steps[0].after)} used"
            elif step.throttle is None:
                text = f"{budget.title}: no cap beyond {approximate_size(step.after)}"
            else:
                who = f"{'budget' if budget.own_name else 'rule'} {budget.name}"
                text = f"{who} {self._cap_verb} what exceeds {approximate_size(step.after)}"
            account.sentence = f"{text} {self.until(budget)}"
        return account.sentence
