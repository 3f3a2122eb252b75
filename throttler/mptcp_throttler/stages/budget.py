"""The stage of budgets: counts what metered subflows carry, and puts the cap of the step reached on them. Pure.

Metering follows verdicts: a subflow is metered while its verdict names a rule with a budget, whatever caps it. What the
subflows of one budget carry comes together in its account (``budget_accounts``): a sample costs the same however many
share it, and only when it reaches a step are they all decided anew. What is not yet in the ledger is kept as data until
somebody fetches it (:meth:`BudgetStage.take_pending`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from mptcp_common.units import approximate_size, format_rate
from mptcp_throttler.mptcp.model import Connection, End, FourTuple
from mptcp_throttler.policy.budget import Account, Counters
from mptcp_throttler.policy.model import BEFORE, Cap, Policy, Rule, ScopeKey, Share, Throttle, Verdict, joined
from mptcp_throttler.stages.budget_accounts import NOTHING_USED, Accounts, Part, Usage, Volume
from mptcp_throttler.stages.budget_sockets import Metered, MeteredSockets
from mptcp_throttler.stages.stage import SLICE, Effect, Outcome, Samples, Stage

__all__ = ["NOTHING_USED", "BudgetStage", "Usage"]

MAX_URGENT: Final = 200
"""Subflows."""


@dataclass(frozen=True, slots=True)
class Reached(Effect):
    """To be told: an account came to a step, or to a share of its first one."""

    budget: str
    client: str
    """"" for all clients together."""
    sentence: str
    rule: str
    """The first that feeds it, as that of its caps."""


class BudgetStage(Stage):
    """The first stage. Users know it as quota."""

    name: Final = "quota"
    interval: float = 0.1
    """Seconds."""
    period: float = 1.0
    """Seconds."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._accounts = Accounts()
        self._sockets = MeteredSockets(self._accounts.add, self._accounts.renewed)
        self._first_rule: dict[str, str] = {}
        """Of each budget, the first rule that feeds it: it gives its caps their mark."""
        self._capping: dict[str, Rule] = {}
        """Each rule with a budget, by name, as the one that decided about a cap of it."""
        self._subflows: dict[int, tuple[FourTuple, ...]] = {}
        """Of each connection, the subflows with verdicts, metered or not."""
        self._metering_since = -math.inf
        """Monotonic seconds: before that, a policy without budgets metered nothing."""
        self._urgent: tuple[FourTuple, ...] = ()

    def restore(self, used: Mapping[Account, int], counters: Mapping[int, Counters] | None = None) -> None:
        """Take what the ledger has of accounts and, at the start, of sockets."""
        self._accounts.restore(used)
        if counters is not None:
            self._sockets.restore(counters)

    def refresh(self, used: Mapping[Account, int]) -> Collection[int]:
        """Take what the ledger has of all accounts of :meth:`periods`, which somebody else has changed. All that was
        fetched must have been written. Return the connections whose verdicts are to be made anew."""
        self._accounts.refresh(used)
        return self._accounts.take_stale()

    def accounts(self) -> Mapping[Account, int]:
        """Return the bytes of every account that is known."""
        return self._accounts.used()

    def periods(self) -> Collection[tuple[str, int]]:
        """Return name and begin of the period of each budget: the accounts that are of interest."""
        return self._accounts.periods.starts

    def take_pending(self) -> Usage:
        """Return what is to be written, and begin anew: who fetches it keeps it until it is written."""
        return Usage(self._accounts.take_added(), *self._sockets.take())

    @property
    def pending(self) -> tuple[int, int]:
        """Of how many sockets there are new counters to be written, and how many closed."""
        return len(self._sockets.dirty), len(self._sockets.closed)

    def advance(self, now: float, monotonic: float) -> Collection[int]:
        """Begin the periods that hold *now*, seconds since the epoch, and forget sockets that are long gone. Return the
        connections whose verdicts are to be made anew for that."""
        self._sockets.forget_old(monotonic)
        self._accounts.begin_periods(now)
        return self._accounts.take_stale()

    def forget_unlisted(self, monotonic: float, listed: Callable[[float], Set[int] | None]) -> None:
        """Forget what the ledger knows of sockets that are gone without a word. *listed*, which is asked rarely,
        returns the cookies of all sockets that the last sweep found; None where that ended before its argument."""
        self._sockets.forget_unlisted(monotonic, listed)

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count what a socket has carried in its life, bytes; *end* is the client's address and port and our port."""
        self._sockets.socket_closed(cookie, end, acked, received)

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force; :meth:`apply` follows for every connection."""
        if self._policy is not None and not self._policy.budgets:
            self._metering_since = self._sockets.now
        self._policy = policy
        self._accounts.set_policy(policy)
        feeding = [rule for rule in policy.rules if rule.budget is not None]
        self._capping = {rule.name: rule.model_copy(update={"guard": rule.budget_guard}) for rule in feeding}
        self._first_rule = {rule.budget.name: rule.name for rule in reversed(feeding) if rule.budget is not None}
        if not feeding:
            self._sockets.end_all()
            self._subflows.clear()

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Meter the subflows whose verdicts say so, and return *verdicts* with the caps of budgets that are used up."""
        if not self._first_rule:
            return verdicts
        self._accounts.begin_periods(now)
        token = connection.token
        parts: dict[FourTuple, tuple[Part, ...]] = {}
        basis: set[Volume] = set()
        result = []
        for verdict in verdicts:
            rule = verdict.budget
            counted = parts.setdefault(verdict.four_tuple, ())
            if rule is None or rule.budget is None:
                result.append(verdict)
                continue
            part = self._accounts.part(rule.budget, verdict.four_tuple.remote)
            volume = part[0]
            basis.add(volume)
            if part not in counted:
                parts[verdict.four_tuple] = (*counted, part)
            result.append(self._with_cap(verdict, rule, volume, token))
        self._meter(connection, parts)
        self._accounts.depend(token, basis)
        return tuple(result)

    def forget(self, token: int) -> None:
        """The connection has ended. What its sockets carried last is still to come."""
        self._accounts.depend(token, set())
        for four_tuple in self._subflows.pop(token, ()):
            self._sockets.release(four_tuple, token)

    def watched(self) -> Collection[FourTuple]:
        """Return all metered subflows."""
        return self._sockets.metered.keys()

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows that bring accounts near their next step there, those first that carry most."""
        return self._urgent

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Count what *samples* have more than those before, a slice at a time."""
        for _ in self._sockets.sample(samples.sockets, samples.complete, samples.time):
            yield Outcome()
        if samples.complete:
            for _ in self._bringing_near(samples.time):
                yield Outcome()
        yield Outcome(
            self._accounts.take_stale(),
            [self._reached(each) for each in self._accounts.take_reached()],
        )

    def _reached(self, volume: Volume) -> Reached:
        name = volume.budget.name
        return Reached(name, volume.key.client, self._accounts.describe(volume), self._first_rule.get(name, name))

    def _meter(self, connection: Connection, parts: Mapping[FourTuple, tuple[Part, ...]]) -> None:
        token = connection.token
        before = set(self._subflows.get(token, ()))
        since = {each.four_tuple: each.since for each in connection.subflows} if parts.keys() - before else {}
        for four_tuple, counted in parts.items():
            seen = four_tuple in before or since.get(four_tuple, math.inf) < self._metering_since
            self._sockets.meter(four_tuple, token, counted, seen)
        for four_tuple in before - parts.keys():
            self._sockets.release(four_tuple, token)
        if before != parts.keys():
            self._subflows[token] = tuple(parts)

    def _bringing_near(self, now: float) -> Iterator[None]:
        """Find the subflows that are urgent from now on, and yield after every slice."""
        tokens: dict[int, None] = {}
        for number, near in enumerate(self._accounts.near_a_step(now), 1):
            tokens.update(dict.fromkeys(near))
            if not number % (4 * SLICE):
                yield
        metered: dict[FourTuple, Metered] = {}
        for number, token in enumerate(tokens, 1):
            for four_tuple in self._subflows.get(token, ()):
                found = self._sockets.metered.get(four_tuple)
                if found is not None and found.carried:
                    metered[four_tuple] = found
            if not number % (4 * SLICE):
                # Those that carry most of all until here: there may be thousands.
                metered = {each.four_tuple: each for each in nlargest(MAX_URGENT, metered.values(), key=_carried)}
                yield
        self._urgent = tuple(each.four_tuple for each in nlargest(MAX_URGENT, metered.values(), key=_carried))

    def _with_cap(self, verdict: Verdict, rule: Rule, volume: Volume, token: int) -> Verdict:
        """Return *verdict* with the sentence of the budget and, where it is the tightest, its cap."""
        direction, budget, step = verdict.direction, volume.budget, volume.step
        mine, decided, reason = verdict.throttle, verdict.rule, verdict.reason
        sentence = self._accounts.describe(volume)
        cap: Cap | None = None
        beside: Cap | None = None
        if step is not None and step.throttle is not None:
            cap = self._cap(verdict, rule, volume, token, step.after, step.throttle)
        if step is None or cap is None or mine is None or decided is None:
            reason = joined(reason, sentence, direction)
        elif (mine.ceil, mine.rate) < (cap.throttle.ceil, cap.throttle.rate):
            beyond = f"{format_rate(cap.throttle.ceil)} beyond {approximate_size(step.after)}"
            until = self._accounts.periods.until(budget)
            reason = joined(reason, f"tighter than the {budget.title}, {beyond} {until}", direction)
            beside = cap._replace(reason=BEFORE[direction] + sentence)
            cap = None
        else:
            looser = f"tighter than the {format_rate(mine.ceil)} of rule {decided.name}"
            beside = None if verdict.scope is None else Cap(decided, verdict.scope, mine, reason)
            reason = f"{BEFORE[direction]}{sentence}; {looser}"
        return Verdict(
            verdict.four_tuple,
            verdict.path,
            decided if cap is None else cap.rule,
            verdict.scope if cap is None else cap.scope,
            mine if cap is None else cap.throttle,
            reason,
            direction,
            verdict.budget,
            verdict.steer,
            verdict.steer_path,
            beside,
        )

    def _cap(self, verdict: Verdict, rule: Rule, volume: Volume, token: int, after: int, throttle: Throttle) -> Cap:
        """Return the cap of the step that *volume* has reached."""
        member: bytes | int | None = None
        if throttle.share is not Share.PATH:
            member = verdict.four_tuple.remote if throttle.share is Share.CLIENT else token
        first = self._first_rule[volume.budget.name]
        scope = ScopeKey(first, throttle.share, member, verdict.direction, after)
        return Cap(self._capping[rule.name], scope, throttle, "")


def _carried(metered: Metered) -> int:
    return metered.carried
