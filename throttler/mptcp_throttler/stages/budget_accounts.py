"""The accounts of budgets: what each came to in the present period, and which step of its budget that reaches. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from zoneinfo import ZoneInfo

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.budget import Account, next_step, period, step_of
from mptcp_throttler.policy.model import Budget, BudgetStep, Direction, Policy

ANNOUNCED_PERCENT: Final = (50, 80, 95)
"""Of the first step's volume: where reasons say that so much is used."""
MAX_REACHED: Final = 1024
"""Accounts that are told of at a time: the latest."""
NEAR_SECONDS: Final = 3.0
"""An account is near its next step when it would reach it within that time at its present rate."""


@lru_cache(256)
def _until(end: int, zone: ZoneInfo | None) -> str:
    return f"until {datetime.fromtimestamp(end, zone):%Y-%m-%d %H:%M %Z}"


class OpenAccount:
    """An account of a present period that subflows use."""

    __slots__ = (
        "budget",
        "counts_down",
        "counts_up",
        "key",
        "over",
        "percent",
        "sentence",
        "step",
        "swept",
        "tokens",
        "turn",
        "used",
    )

    def __init__(self, key: Account, budget: Budget, used: int) -> None:
        self.key = key
        self.used = used
        """Bytes."""
        self.swept = 0
        """Those since the last full sweep."""
        self.over = False
        """Its period has ended."""
        self.tokens: set[int] = set()
        """The connections whose verdicts were made with it."""
        self.step: BudgetStep | None = None
        self.percent = 0
        """The announced share of the first step that is used; 0 below the least, and once there is a step."""
        self.set_budget(budget)

    def set_budget(self, budget: Budget) -> None:
        """Take *budget* as the policy in force has it."""
        self.budget = budget
        self.counts_down, self.counts_up = Direction.DOWN in budget.count, Direction.UP in budget.count
        self.find_level()

    def find_level(self) -> bool:
        """Work out step and percent of *used*; return whether they are others than before."""
        before = self.step, self.percent
        self.step, self.percent = step_of(self.budget, self.used), 0
        coming = next_step(self.budget, self.used)
        self.turn: float = math.inf if coming is None else coming.after
        """Bytes from which on verdicts are others."""
        if self.step is None and coming is not None:
            for percent in ANNOUNCED_PERCENT:
                at = -(-coming.after * percent // 100)
                if self.used < at:
                    self.turn = at
                    break
                self.percent = percent
        self.sentence = ""
        """What reasons say of it; made when first needed."""
        return (self.step, self.percent) != before


class Accounts:
    """All accounts of the policy in force, and the connections whose verdicts depend on them."""

    def __init__(self) -> None:
        self._budgets: Mapping[str, Budget] = {}
        self._zone: ZoneInfo | None = None
        self._dry_run = False
        self._now: float | None = None
        """When the present periods were last asked for, seconds since the epoch."""
        self._present: dict[str, tuple[int, int]] = {}
        """Of each budget, begin and end of the present period."""
        self._from, self._to = math.inf, -math.inf
        """While all of them are the present ones."""
        self._open: dict[Account, OpenAccount] = {}
        self._by_client: dict[tuple[str, bytes], OpenAccount] = {}
        """The same by the budget's name and the packed address, which is empty for all clients together."""
        self._idle: dict[Account, int] = {}
        """Bytes of accounts that nobody has asked for yet, and of those of the periods before: the clock may be set
        back."""
        self._added: dict[Account, int] = {}
        """Bytes that the ledger does not have."""
        self._basis: dict[int, tuple[OpenAccount, ...]] = {}
        """Of each connection, the accounts that its verdicts were made with."""
        self._stale: set[int] = set()
        self._reached: deque[OpenAccount] = deque(maxlen=MAX_REACHED)
        self._swept: list[OpenAccount] = []
        self._swept_at: float | None = None

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force. Accounts of budgets that it does not have are given up."""
        self._budgets, self._zone, self._dry_run = policy.budgets, policy.time_zone, policy.dry_run
        self._present, self._from, self._to = {}, math.inf, -math.inf
        self._by_client.clear()
        for key, account in list(self._open.items()):
            budget = self._budgets.get(key.budget)
            if budget is None:
                del self._open[key]
            else:
                account.set_budget(budget)
        if not self._budgets:
            self._basis.clear()
            self._idle.clear()
        if self._now is not None:
            # Samples and closed sockets that come before the first decision need them.
            self.begin_periods(self._now)

    def begin_periods(self, now: float) -> None:
        """Begin the periods that hold *now*, seconds since the epoch."""
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
        self._by_client.clear()
        for key, account in list(self._open.items()):
            if (key.budget, key.start) not in present:
                account.over = True
                self._idle[key] = account.used
                self._stale |= account.tokens
                del self._open[key]
        kept = present | before
        self._idle = {key: octets for key, octets in self._idle.items() if (key.budget, key.start) in kept}

    @property
    def periods(self) -> Collection[tuple[str, int]]:
        """Name and begin of the present period of each budget."""
        return [(name, begin) for name, (begin, _) in self._present.items()]

    def until(self, budget: Budget) -> str:
        """Return how long the present period of *budget* lasts, for people."""
        return _until(self._present[budget.name][1], self._zone)

    def set_used(self, periods: Collection[tuple[str, int]], used: Mapping[Account, int]) -> None:
        """Take *used*, bytes, which is what the ledger has of all accounts of *periods*."""
        read = set(periods)
        others = {key: octets for key, octets in self._idle.items() if (key.budget, key.start) not in read}
        self._idle = others | {key: octets for key, octets in used.items() if key not in self._open}
        for key, account in self._open.items():
            if (key.budget, key.start) in read:
                account.used = used.get(key, 0) + self._added.get(key, 0)
                self._settle_level(account)

    def used(self) -> dict[Account, int]:
        """Return the bytes of every account that is known, some of the periods before."""
        return self._idle | {key: account.used for key, account in self._open.items()}

    def account(self, budget: Budget, remote: bytes) -> OpenAccount:
        """Return the present account of *budget* for a client, whose address is packed."""
        whose = remote if budget.per_client else b""
        found = self._by_client.get((budget.name, whose))
        if found is None:
            key = Account(budget.name, str(ip_address(whose)) if whose else "", self._present[budget.name][0])
            found = self._open.get(key)
            if found is None:
                found = self._open[key] = OpenAccount(key, budget, self._idle.pop(key, 0))
            self._by_client[budget.name, whose] = found
        return found

    def renewed(self, accounts: tuple[OpenAccount, ...], remote: bytes) -> tuple[OpenAccount, ...]:
        """Return *accounts* with the present ones in place of those whose period is over."""
        return tuple(
            self.account(self._budgets[each.key.budget], remote)
            if each.over and each.key.budget in self._budgets
            else each
            for each in accounts
        )

    def add(self, account: OpenAccount, octets: int) -> None:
        """Add what a subflow has carried."""
        self._added[account.key] = self._added.get(account.key, 0) + octets
        if not account.swept:
            self._swept.append(account)
        account.swept += octets
        account.used += octets
        if account.used >= account.turn:
            self._settle_level(account)

    def _settle_level(self, account: OpenAccount) -> None:
        if account.find_level():
            self._stale |= account.tokens
            self._reached.append(account)

    def take_stale(self) -> Collection[int]:
        """Return the connections whose verdicts were made with what is not so any more, and forget them."""
        stale, self._stale = self._stale, set()
        return stale

    def take_reached(self) -> list[OpenAccount]:
        """Return the accounts that reached a step, or a share that is announced, since the last call, but for those
        that a new policy or period gave up since."""
        reached = [each for each in self._reached if self._open.get(each.key) is each]
        self._reached.clear()
        return reached

    def take_added(self) -> dict[Account, int]:
        """Return the bytes that came to each account since the last call."""
        added, self._added = self._added, {}
        return added

    def put_back(self, added: Mapping[Account, int]) -> None:
        """Take back what was taken and could not be written."""
        for key, octets in added.items():
            self._added[key] = self._added.get(key, 0) + octets

    def depend(self, token: int, basis: set[OpenAccount]) -> None:
        """The verdicts of connection *token* were made with *basis*."""
        before = set(self._basis.get(token, ()))
        if before == basis:
            return
        for account in before - basis:
            account.tokens.discard(token)
        for account in basis - before:
            account.tokens.add(token)
        if basis:
            self._basis[token] = tuple(basis)
        else:
            self._basis.pop(token, None)

    def near_a_step(self, now: float) -> Iterator[Collection[int]]:
        """Yield, after a full sweep at *now*, monotonic, for each account that the sweep brought something its
        connections where it is near its next step, else none. It may be left for a while at any point."""
        span = 0.0 if self._swept_at is None else now - self._swept_at
        swept, self._swept, self._swept_at = self._swept, [], now
        for account in swept:
            octets, account.swept = account.swept, 0
            coming = next_step(account.budget, account.used)
            # The next sweeps may take as long as this one.
            soon = octets / span * max(NEAR_SECONDS, 3 * span) if span > 0 else 0.0
            yield tuple(account.tokens) if coming is not None and coming.after - account.used < soon else ()

    def describe(self, account: OpenAccount) -> str:
        """Return what reasons say of *account*."""
        if not account.sentence:
            budget, step = account.budget, account.step
            if step is None:
                share = f"over {account.percent} %" if account.percent else f"under {ANNOUNCED_PERCENT[0]} %"
                text = f"{budget.title}: {share} of {approximate_size(budget.steps[0].after)} used"
            elif step.throttle is None:
                text = f"{budget.title}: no cap beyond {approximate_size(step.after)}"
            else:
                verb = "would cap" if self._dry_run else "caps"
                who = f"{'budget' if budget.own_name else 'rule'} {budget.name}"
                text = f"{who} {verb} what exceeds {approximate_size(step.after)}"
            account.sentence = f"{text} {self.until(budget)}"
        return account.sentence
