"""The accounts of budgets: whose bytes have come to how much in the present periods, and what follows from it. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from mptcp_common.units import approximate_size
from mptcp_throttler.policy.budget import Account, next_step, step_of
from mptcp_throttler.policy.model import Budget, BudgetStep, Direction, Policy
from mptcp_throttler.stages.budget_periods import Periods

ANNOUNCED_PERCENT: Final = (50, 80, 95)
"""Of the first step's volume: where reasons say that so much is used."""
MAX_REACHED: Final = 1024
"""Accounts that are told of at a time: the latest."""
NEAR_SECONDS: Final = 3.0
"""An account is near its next step when it would reach it within that time at its present rate."""


class Usage(NamedTuple):
    """What the ledger is to hear, all of it or nothing."""

    added: Mapping[Account, int]
    """Bytes."""
    counters: Mapping[int, tuple[int, int]]
    """Of each socket, by cookie, acked and received bytes that the accounts know of."""
    closed: frozenset[int]
    """Sockets that are gone."""

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.counters or self.closed)

    def followed_by(self, later: Usage) -> Usage:
        """Return both as one: what could not be written, and what came since."""
        if self.is_empty:
            return later
        added = dict(self.added)
        for account, octets in later.added.items():
            added[account] = added.get(account, 0) + octets
        closed = self.closed | later.closed
        counters = {
            cookie: read for cookie, read in {**self.counters, **later.counters}.items() if cookie not in closed
        }
        return Usage(added, counters, closed)


NOTHING_USED: Final = Usage({}, {}, frozenset())


class Volume:
    """One account as it is now."""

    __slots__ = (
        "budget",
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
        """Its period is."""
        self.tokens: set[int] = set()
        """The connections whose verdicts were made with it."""
        self.take_over(budget)

    def take_over(self, budget: Budget) -> None:
        """Take *budget* as the account's, as the policy in force has it."""
        self.budget = budget
        self.find_level()

    def find_level(self) -> None:
        """Work out what *used* means."""
        self.step: BudgetStep | None = step_of(self.budget, self.used)
        self.percent = 0
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

    @property
    def level(self) -> tuple[BudgetStep | None, int]:
        """What verdicts depend on."""
        return self.step, self.percent


Part = tuple[Volume, bool, bool]
"""An account, and whether bytes to the client and bytes from it count there."""


class Accounts:
    """All accounts of the policy in force that are in use, and what the ledger has of others."""

    def __init__(self) -> None:
        self._dry_run = False
        self._periods = Periods((), None)
        self._volumes: dict[Account, Volume] = {}
        self._by_client: dict[tuple[str, bytes], Part] = {}
        """The same by the budget's name and the packed address, which is empty for all clients together.

        Parts are kept here, for all who count there: an account that had its own would refer to itself, and never be
        freed where the garbage collector is off."""
        self._known: dict[Account, int] = {}
        """What the ledger has of accounts that nobody has asked for yet."""
        self._left: dict[Account, int] = {}
        """What is known of the periods before the last turn: the clock may be set back."""
        self._basis: dict[int, tuple[Volume, ...]] = {}
        """Of each connection, the accounts that its verdicts were made with."""
        self._stale: set[int] = set()
        self._added: dict[Account, int] = {}
        """Bytes that were not fetched yet."""
        self._swept: list[Volume] = []
        self._swept_at: float | None = None
        self._reached: deque[Volume] = deque(maxlen=MAX_REACHED)
        self._now: float | None = None
        """When it was last asked for the present periods, seconds since the epoch."""

    @property
    def periods(self) -> Periods:
        return self._periods

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force. Accounts of budgets that it does not have are given up."""
        self._dry_run = policy.dry_run
        self._periods = Periods(list(policy.budgets.values()), policy.time_zone)
        self._by_client.clear()
        budgets = policy.budgets
        for account, volume in list(self._volumes.items()):
            budget = budgets.get(account.budget)
            if budget is None:
                del self._volumes[account]
            else:
                volume.take_over(budget)
        if not budgets:
            self._basis.clear()
            self._left.clear()
        if self._now is not None:
            # Samples and closed sockets that come before the first decision need them.
            self.begin_periods(self._now)

    def restore(self, used: Mapping[Account, int]) -> None:
        """Take what the ledger has; of an account that is in use, this object knows better."""
        self._known |= {account: octets for account, octets in used.items() if account not in self._volumes}

    def refresh(self, used: Mapping[Account, int]) -> None:
        """Take what the ledger has of all accounts of the present periods, which somebody else has changed.

        It must have all that was fetched.
        """
        self._known = {account: octets for account, octets in used.items() if account not in self._volumes}
        for account, volume in self._volumes.items():
            volume.used = used.get(account, 0) + self._added.get(account, 0)
            self._settle_level(volume)

    def used(self) -> dict[Account, int]:
        """Return the bytes of every account that is known."""
        return self._known | {account: volume.used for account, volume in self._volumes.items()}

    def begin_periods(self, now: float) -> None:
        """Begin the periods that hold *now*, seconds since the epoch."""
        self._now = now
        if not self._periods.find(now):
            return
        starts = set(self._periods.starts)
        self._by_client.clear()
        before, known = self._left, self._known
        self._known = {key: octets for key, octets in (before | known).items() if (key.budget, key.start) in starts}
        self._left = {key: octets for key, octets in known.items() if (key.budget, key.start) not in starts}
        for volume in list(self._volumes.values()):
            if (volume.key.budget, volume.key.start) not in starts:
                volume.over = True
                del self._volumes[volume.key]
                self._left[volume.key] = volume.used
                self._stale |= volume.tokens

    def part(self, budget: Budget, remote: bytes) -> Part:
        """Return the present account of *budget* for a client, whose address is packed, and what counts there."""
        whose = remote if budget.per_client else b""
        part = self._by_client.get((budget.name, whose))
        if part is None:
            account = self._periods.account(budget, remote)
            volume = self._volumes.get(account)
            if volume is None:
                volume = self._volumes[account] = Volume(account, budget, self._known.pop(account, 0))
            counted = volume.budget.count
            part = self._by_client[budget.name, whose] = volume, Direction.DOWN in counted, Direction.UP in counted
        return part

    def renewed(self, parts: tuple[Part, ...], remote: bytes) -> tuple[Part, ...]:
        """Return *parts* with the present accounts in place of those whose period is over."""
        present = {budget.name: budget for budget in self._periods.budgets}
        found = ((part, present.get(part[0].budget.name)) for part in parts)
        return tuple(
            part if not part[0].over or budget is None else self.part(budget, remote) for part, budget in found
        )

    def add(self, volume: Volume, octets: int) -> None:
        """Add what a subflow has carried."""
        self._added[volume.key] = self._added.get(volume.key, 0) + octets
        if not volume.swept:
            self._swept.append(volume)
        volume.swept += octets
        volume.used += octets
        if volume.used >= volume.turn:
            self._settle_level(volume)

    def _settle_level(self, volume: Volume) -> None:
        before = volume.level
        volume.find_level()
        if volume.level != before:
            self._stale |= volume.tokens
            self._reached.append(volume)

    def take_stale(self) -> Collection[int]:
        """Return the connections whose verdicts were made with what is not so any more, and forget them."""
        stale, self._stale = self._stale, set()
        return stale

    def take_reached(self) -> list[Volume]:
        """Return the accounts that reached a step, or a share that is announced, since the last call, but for those
        that a new policy or period gave up since."""
        reached = [each for each in self._reached if self._volumes.get(each.key) is each]
        self._reached.clear()
        return reached

    def take_added(self) -> dict[Account, int]:
        """Return the bytes that came to each account since the last call."""
        added, self._added = self._added, {}
        return added

    def depend(self, token: int, basis: set[Volume]) -> None:
        """The verdicts of connection *token* were made with *basis*."""
        before = set(self._basis.get(token, ()))
        if before == basis:
            return
        for volume in before - basis:
            volume.tokens.discard(token)
        for volume in basis - before:
            volume.tokens.add(token)
        if basis:
            self._basis[token] = tuple(basis)
        else:
            self._basis.pop(token, None)

    def near_a_step(self, now: float) -> Iterator[Collection[int]]:
        """Yield, after a full sweep at *now*, monotonic, for each account that the sweep brought something its
        connections where it is near its next step, else none. It may be left for a while at any point."""
        span = 0.0 if self._swept_at is None else now - self._swept_at
        swept, self._swept, self._swept_at = self._swept, [], now
        for volume in swept:
            octets, volume.swept = volume.swept, 0
            coming = next_step(volume.budget, volume.used)
            # The next sweeps may take as long as this one.
            near = (
                span > 0
                and coming is not None
                and coming.after - volume.used < octets / span * max(NEAR_SECONDS, 3 * span)
            )
            yield tuple(volume.tokens) if near else ()

    def describe(self, volume: Volume) -> str:
        """Return what reasons say of *volume*."""
        if not volume.sentence:
            budget, step = volume.budget, volume.step
            until = self._periods.until(budget)
            if step is None:
                share = f"over {volume.percent} %" if volume.percent else f"under {ANNOUNCED_PERCENT[0]} %"
                text = f"{budget.title}: {share} of {approximate_size(budget.steps[0].after)} used {until}"
            elif step.throttle is None:
                text = f"{budget.title}: no cap beyond {approximate_size(step.after)} {until}"
            else:
                verb = "would cap" if self._dry_run else "caps"
                who = f"{'budget' if budget.own_name else 'rule'} {budget.name}"
                text = f"{who} {verb} what exceeds {approximate_size(step.after)} {until}"
            volume.sentence = text
        return volume.sentence
