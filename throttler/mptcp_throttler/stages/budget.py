"""The stage of budgets: counts what metered subflows carry, and caps them by the step reached. Pure.

A subflow is metered while its verdict names a rule with a budget, whatever caps it. The subflows of one budget share an
account (``budget_accounts``), so a sample costs the same for any number of them. They are decided anew only when the
account reaches a step. Data for the ledger waits for :meth:`BudgetStage.take_pending`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from heapq import nlargest
from operator import attrgetter
from typing import Final

from mptcp_common.units import approximate_size, format_rate
from mptcp_throttler.mptcp.model import Connection, End, FourTuple
from mptcp_throttler.policy.budget import Account, Usage
from mptcp_throttler.policy.model import Policy, Rule, Share
from mptcp_throttler.policy.verdict import BEFORE, Cap, ScopeKey, Verdict, joined
from mptcp_throttler.stages.budget_accounts import Accounts, OpenAccount
from mptcp_throttler.stages.budget_sockets import Metered, MeteredSockets
from mptcp_throttler.stages.stage import SLICE, Effect, Outcome, Samples, Stage

MAX_URGENT: Final = 200
"""Subflows."""
_carried: Final = attrgetter("carried")


@dataclass(frozen=True, slots=True)
class Reached(Effect):
    """Report that an account reached a step or an announced percentage."""

    budget: str
    client: str
    """"" for all clients together."""
    sentence: str
    rule: str
    """The first rule that feeds the budget, as for its caps."""


class BudgetStage(Stage):
    """The first stage."""

    of_sockets = False

    interval: float = 0.1
    period: float = 1.0

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._accounts = Accounts()
        self.sockets = MeteredSockets(self._accounts)
        self._first_rule: dict[str, str] = {}
        """The first rule that feeds each budget; it determines the mark of the caps."""
        self._capping: dict[str, Rule] = {}
        """Rules with budgets, by name, with the budget's guard setting."""
        self._subflows: dict[int, tuple[FourTuple, ...]] = {}
        """Subflows with verdicts of each connection, metered or not."""
        self._metering_since = -math.inf
        """Monotonic seconds. Before this, a policy without budgets metered nothing."""
        self._urgent: tuple[FourTuple, ...] = ()

    def set_used(self, periods: Collection[tuple[str, int]], used: Mapping[Account, int]) -> Collection[int]:
        """Take *used*, the ledger's bytes of all accounts of *periods*; return the connections to decide anew. All
        fetched data must have been written or put back."""
        self._accounts.set_used(periods, used)
        return self._accounts.take_stale()

    def accounts(self) -> Mapping[Account, int]:
        """Return the bytes of all known accounts, including some of previous periods."""
        return self._accounts.used()

    def periods(self) -> Collection[tuple[str, int]]:
        """Return the name of each budget and the begin of its present period."""
        return self._accounts.periods

    def take_pending(self) -> Usage:
        """Return and reset what must be written to the ledger."""
        return Usage(self._accounts.take_added(), *self.sockets.take())

    def put_back(self, usage: Usage) -> None:
        """Take back what could not be written; the next fetch includes it."""
        self._accounts.put_back(usage.added)
        self.sockets.put_back(usage.counters, usage.closed)

    def advance(self, now: float, monotonic: float) -> Collection[int]:
        """Begin the periods at *now*, seconds since the epoch; forget old sockets; return what to decide anew."""
        self.sockets.forget_old(monotonic)
        self._accounts.begin_periods(now)
        return self._accounts.take_stale()

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count the lifetime bytes of a socket; *end* is the client's address and port and our port."""
        self.sockets.socket_closed(cookie, end, acked, received)

    def set_policy(self, policy: Policy) -> None:
        if self._policy is not None and not self._policy.budgets:
            self._metering_since = self.sockets.now
        self._policy = policy
        self._accounts.set_policy(policy)
        feeding = [rule for rule in policy.rules if rule.budget is not None]
        self._capping = {rule.name: rule.model_copy(update={"guard": rule.budget_guard}) for rule in feeding}
        self._first_rule = {rule.budget.name: rule.name for rule in reversed(feeding) if rule.budget is not None}
        if not feeding:
            self.sockets.end_all()
            self._subflows.clear()

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Meter subflows as the verdicts say; return *verdicts* with the caps of the steps reached."""
        if not self._first_rule:
            return verdicts
        self._accounts.begin_periods(now)
        metering: dict[FourTuple, tuple[OpenAccount, ...]] = {}
        basis: set[OpenAccount] = set()
        result = []
        for verdict in verdicts:
            rule = verdict.budget
            counted = metering.setdefault(verdict.four_tuple, ())
            if rule is None or rule.budget is None:
                result.append(verdict)
                continue
            account = self._accounts.account(rule.budget, verdict.four_tuple.remote)
            basis.add(account)
            if account not in counted:
                metering[verdict.four_tuple] = (*counted, account)
            result.append(self._with_cap(verdict, rule, account, connection.token))
        self._meter(connection, metering)
        self._accounts.depend(connection.token, basis)
        return tuple(result)

    def forget(self, token: int) -> None:
        """Drop a connection that has ended. Its sockets have yet to report their last bytes."""
        self._accounts.depend(token, set())
        for four_tuple in self._subflows.pop(token, ()):
            self.sockets.release(four_tuple, token)

    def watched(self) -> Collection[FourTuple]:
        """Return all metered subflows."""
        return self.sockets.metered.keys()

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows of accounts near their next step, the busiest first."""
        return self._urgent

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Count the growth of the counters in *samples*, a slice at a time."""
        for _ in self.sockets.sample(samples.sockets, samples.complete, samples.time):
            yield Outcome()
        if samples.complete:
            for _ in self._find_urgent(samples.time):
                yield Outcome()
        yield Outcome(
            self._accounts.take_stale(),
            [self._reached(each) for each in self._accounts.take_reached()],
        )

    def _reached(self, account: OpenAccount) -> Reached:
        name, client, _ = account.key
        return Reached(name, client, self._accounts.describe(account), self._first_rule[name])

    def _meter(self, connection: Connection, metering: Mapping[FourTuple, tuple[OpenAccount, ...]]) -> None:
        token = connection.token
        before = set(self._subflows.get(token, ()))
        since = {each.four_tuple: each.since for each in connection.subflows} if metering.keys() - before else {}
        for four_tuple, accounts in metering.items():
            seen = four_tuple in before or since.get(four_tuple, math.inf) < self._metering_since
            self.sockets.meter(four_tuple, token, accounts, seen)
        for four_tuple in before - metering.keys():
            self.sockets.release(four_tuple, token)
        if before != metering.keys():
            self._subflows[token] = tuple(metering)

    def _find_urgent(self, now: float) -> Iterator[None]:
        tokens: dict[int, None] = {}
        for number, near in enumerate(self._accounts.near_a_step(now), 1):
            tokens.update(dict.fromkeys(near))
            if not number % (4 * SLICE):
                yield
        most: list[Metered] = []
        for number, token in enumerate(tokens, 1):
            found = [self.sockets.metered.get(each) for each in self._subflows.get(token, ())]
            most += [each for each in found if each is not None and each.carried]
            if not number % (4 * SLICE):
                # Keep only the busiest: there may be thousands.
                most = nlargest(MAX_URGENT, most, key=_carried)
                yield
        self._urgent = tuple(each.four_tuple for each in nlargest(MAX_URGENT, most, key=_carried))

    def _with_cap(self, verdict: Verdict, rule: Rule, account: OpenAccount, token: int) -> Verdict:
        """Return *verdict* with the sentence of the budget and, if it is the tightest, its cap."""
        direction, reason, sentence = verdict.direction, verdict.reason, self._accounts.describe(account)
        decided, scope, mine = verdict.rule, verdict.scope, verdict.throttle
        beside: Cap | None = None
        cap = self._cap(verdict, rule, account, token)
        if cap is None:
            reason = joined(reason, sentence, direction)
        elif mine is None or decided is None:
            reason = joined(reason, sentence, direction)
            decided, scope, mine, _ = cap
        elif (mine.ceil, mine.rate) < (cap.throttle.ceil, cap.throttle.rate):
            beyond = f"{format_rate(cap.throttle.ceil)} beyond {approximate_size(cap.scope.step or 0)}"
            tighter = f"tighter than the {account.budget.title}, {beyond} {self._accounts.until(account.budget)}"
            reason = joined(reason, tighter, direction)
            beside = cap._replace(reason=BEFORE[direction] + sentence)
        else:
            beside = None if scope is None else Cap(decided, scope, mine, reason)
            reason = f"{BEFORE[direction]}{sentence}; tighter than the {format_rate(mine.ceil)} of rule {decided.name}"
            decided, scope, mine, _ = cap
        others = verdict.budget, verdict.steer, verdict.steer_path
        # dataclasses.replace takes several times as long.
        return Verdict(verdict.four_tuple, verdict.path, decided, scope, mine, reason, direction, *others, beside)

    def _cap(self, verdict: Verdict, rule: Rule, account: OpenAccount, token: int) -> Cap | None:
        step = account.step
        if step is None or step.throttle is None:
            return None
        share = step.throttle.share
        member = {Share.PATH: None, Share.CLIENT: verdict.four_tuple.remote, Share.CONNECTION: token}[share]
        scope = ScopeKey(self._first_rule[account.budget.name], share, member, verdict.direction, step.after)
        return Cap(self._capping[rule.name], scope, step.throttle, "")
