# SPDX-License-Identifier: GPL-2.0-or-later
"""The stage of budgets: counts the bytes of metered subflows, and caps them according to the step reached. Pure.

A subflow is metered while its verdict names a rule with a budget, even if another rule or stage caps it. The subflows
of one budget share an account (``budget_accounts``), so the cost of a sample does not depend on their number. They are
decided again only when the account reaches a step. Counts for the ledger are kept until
:meth:`MeteredSockets.take_pending` fetches them.

Each byte counts once. A change of a subflow's accounts takes effect after the next sample of its socket. Counting
begins with the first byte if the first verdict meters the subflow, otherwise with the counters in the ledger. A closed
socket is known by its cookie and the client's end of its four-tuple.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from typing import Final

from mptcp_common.units import approximate_size, format_rate
from mptcp_throttler.mptcp.connection_table import TimedTable
from mptcp_throttler.mptcp.model import Connection, End, FourTuple, KernelSubflow, Sockets
from mptcp_throttler.policy.budget import Usage
from mptcp_throttler.policy.model import Direction, Policy, Rule, Share
from mptcp_throttler.policy.verdict import BEFORE, ScopeKey, Verdict, joined
from mptcp_throttler.stages.budget_accounts import Accounts, OpenAccount
from mptcp_throttler.stages.stage import SLICE, Effect, Outcome, Samples, Stage

FORGET_SECONDS: Final = 120.0  # wait for the last counters of a socket that is in no sweep: it may be closing
MAX_URGENT: Final = 200  # maximum number of urgent subflows
Metering = dict[FourTuple, tuple[OpenAccount, ...]]  # the accounts that each subflow of a connection feeds


@dataclass(slots=True, eq=False)
class Metered:
    four_tuple: FourTuple
    token: int
    accounts: tuple[OpenAccount, ...] = ()
    next_accounts: tuple[OpenAccount, ...] | None = None  # the accounts after the next sample; None: the same
    active: bool = True  # whether the subflow has a verdict
    cookie: int | None = None  # cookie of the socket; None before the first sample and after the close
    reported: bool = False  # whether the socket has closed and its final counters are known
    carried: int = 0  # bytes since the previous sample
    missing_since: float | None = None

    @property
    def end(self) -> End:
        return self.four_tuple.remote, self.four_tuple.remote_port, self.four_tuple.local_port


class MeteredSockets:
    """All metered subflows, and the counters of each socket that the accounts include. Times are monotonic seconds."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.metered: dict[FourTuple, Metered] = {}
        self.counters: dict[int, tuple[int, int]] = {}
        """Acknowledged and received bytes already counted of each socket, by cookie; initially from the ledger. Those
        of an unmetered socket that ends without a report stay until the host boots."""
        self.dirty: set[int] = set()  # sockets whose counters the ledger does not have yet
        self.closed: set[int] = set()  # sockets whose counters the ledger can forget
        self.now = 0.0
        self._by_cookie: dict[int, Metered] = {}
        self._by_end: dict[End, Metered] = {}
        self._gone: TimedTable[int, int] = TimedTable()
        """Cookies of sockets that closed or lost their four-tuple: samples of them that arrive later are ignored."""

    def take_pending(self) -> Usage:
        """Return and reset what must be written to the ledger."""
        counters = {cookie: self.counters[cookie] for cookie in self.dirty}
        usage = Usage(self._accounts.added, counters, frozenset(self.closed))
        self._accounts.added, self.dirty, self.closed = {}, set(), set()
        return usage

    def put_back(self, usage: Usage) -> None:
        """Take back counts that could not be written; the next :meth:`take_pending` includes them."""
        for account, octets in usage.added.items():
            self._accounts.added[account] = self._accounts.added.get(account, 0) + octets
        self.dirty |= usage.counters.keys() & self.counters.keys()
        self.closed |= usage.closed

    def already_counted(self, cookie: int, acked: int, received: int) -> None:
        """Exclude the bytes that a socket carried so far, unless the accounts already include some of them."""
        if cookie not in self.counters:
            self.counters[cookie] = acked, received
            self.dirty.add(cookie)

    def meter(self, four_tuple: FourTuple, token: int, accounts: tuple[OpenAccount, ...], seen: bool) -> None:
        """Count a subflow's bytes to *accounts*. *seen*: the subflow had, or may have had, verdicts before."""
        metered = self.metered.get(four_tuple)
        if metered is not None and metered.token == token:
            metered.active = True
            metered.next_accounts = None if accounts == metered.accounts else accounts
            return
        if metered is not None:
            # The client reused the port: the four-tuple belongs to a newer connection.
            metered.active = False
            self._lose(metered)
            self._drop(metered)
        if accounts:
            new = Metered(four_tuple, token, () if seen else accounts, accounts if seen else None)
            self.metered[four_tuple] = self._by_end[new.end] = new

    def release(self, four_tuple: FourTuple, token: int) -> None:
        """Note that the subflow has lost its verdict. Its socket may still carry data."""
        metered = self.metered.get(four_tuple)
        if metered is not None and metered.token == token:
            metered.active = False
            if metered.reported:
                self._drop(metered)

    def end_all(self) -> None:
        """Stop metering all subflows. The caller will not report the end of each subflow."""
        for metered in list(self.metered.values()):
            metered.next_accounts = ()
            self.release(metered.four_tuple, metered.token)

    def sample(self, sockets: Sockets, complete: bool, now: float) -> Iterator[None]:
        """Count the growth of the counters of *sockets*; yield after every slice."""
        self.now = now
        for number, four_tuple in enumerate(list(self.metered if complete else sockets), 1):
            if not number % (2 * SLICE):
                yield
            metered, socket = self.metered.get(four_tuple), sockets.get(four_tuple)
            if metered is None:
                continue
            if socket is None:
                if metered.missing_since is None:
                    metered.missing_since = now
                elif not metered.active and now - metered.missing_since > FORGET_SECONDS:
                    self._drop(metered)
                    self._forget_counters(metered.cookie)
            elif socket.token == metered.token:  # otherwise an earlier connection had the four-tuple
                self._sample(metered, socket)
        yield

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count the bytes that a closed socket carried. *end*: the client's address and port, and the proxy's port."""
        metered = self._by_cookie.pop(cookie, None)
        if metered is None and cookie not in self._gone:
            metered = self._by_end.get(end)  # it was never sampled; its port may be a newer subflow's by now
        if metered is not None:
            self._count(metered, cookie, acked, received)
            if metered.cookie == cookie or (metered.cookie is None and not metered.active):
                metered.cookie, metered.reported = None, True
                if metered.next_accounts is not None:
                    metered.accounts, metered.next_accounts = metered.next_accounts, None
                if not metered.active:
                    self._drop(metered)
        self._forget_counters(cookie)
        self._gone.put(cookie, cookie, self.now)

    def forget_old(self, now: float) -> None:
        """Forget sockets that closed or lost their four-tuple more than ``FORGET_SECONDS`` ago."""
        self.now = now
        for cookie in self._gone.pop_until(now - FORGET_SECONDS):
            metered = self._by_cookie.get(cookie)
            if metered is not None and metered.cookie != cookie:
                del self._by_cookie[cookie]
                self._forget_counters(cookie)

    def _sample(self, metered: Metered, socket: KernelSubflow) -> None:
        cookie = socket.cookie
        if metered.cookie != cookie:
            if cookie in self._gone:
                return
            self._lose(metered)
            metered.cookie, metered.reported = cookie, False
            self._by_cookie[cookie] = metered
        metered.missing_since = None
        self._count(metered, cookie, socket.bytes_acked, socket.bytes_received)
        if metered.next_accounts is not None:
            metered.accounts, metered.next_accounts = metered.next_accounts, None
            if not metered.accounts:
                self._drop(metered)

    def _count(self, metered: Metered, cookie: int, acked: int, received: int) -> None:
        acked_before, received_before = self.counters.get(cookie, (0, 0))
        down, up = max(0, acked - acked_before), max(0, received - received_before)
        metered.carried = down + up
        if not metered.carried:
            return
        # Update the counters even if the bytes count to no account: a restarted daemon must not count them.
        self.counters[cookie] = acked_before + down, received_before + up
        self.dirty.add(cookie)
        # When a period ends, a subflow's accounts are renewed only when it carries data.
        if any(each.over for each in metered.accounts):
            remote = metered.four_tuple.remote
            metered.accounts = tuple([self._accounts.renewed(each, remote) for each in metered.accounts])
        for account in metered.accounts:
            count = account.budget.count
            octets = (down if Direction.DOWN in count else 0) + (up if Direction.UP in count else 0)
            if octets:
                self._accounts.add(account, octets)

    def _lose(self, metered: Metered) -> None:
        """Note that the subflow's socket no longer has the four-tuple: only its cookie identifies the later report."""
        if metered.cookie is not None:
            self._gone.put(metered.cookie, metered.cookie, self.now)
            metered.cookie = None

    def _drop(self, metered: Metered) -> None:
        if self.metered.get(metered.four_tuple) is metered:
            del self.metered[metered.four_tuple]
        if self._by_end.get(metered.end) is metered:
            del self._by_end[metered.end]
        if metered.cookie is not None:
            self._by_cookie.pop(metered.cookie, None)

    def _forget_counters(self, cookie: int | None) -> None:
        """Let the ledger forget an ended socket. Its bytes are in the same transaction or an earlier one."""
        if cookie is not None and self.counters.pop(cookie, None) is not None:
            self.dirty.discard(cookie)
            self.closed.add(cookie)


@dataclass(frozen=True, slots=True)
class Reached(Effect):
    """Report that an account reached a step or an announced percentage."""

    budget: str
    client: str  # the client's address; empty if the account is shared by all clients
    sentence: str
    rule: str  # the first rule that feeds the budget; the budget's caps belong to it


class BudgetStage(Stage):
    """The first stage: meters subflows and caps them by their budgets."""

    of_sockets = False
    interval, period = 0.1, 1.0

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self.accounts = Accounts()
        self.sockets = MeteredSockets(self.accounts)
        self._first_rule: dict[str, str] = {}  # the first rule that feeds each budget; it marks the caps
        self._metering: dict[int, Metering] = {}  # by connection: its subflows with verdicts
        self._metering_since = -math.inf  # when a policy without budgets was last replaced, monotonic seconds
        self._urgent: tuple[FourTuple, ...] = ()  # subflows of accounts near their next step, the busiest first

    def advance(self, now: float, monotonic: float) -> Collection[int]:
        """Begin the periods of *now*, seconds since the epoch; forget old sockets; return the connections to decide."""
        self.sockets.forget_old(monotonic)
        self.accounts.begin_periods(now)
        return self.accounts.take_stale()

    def set_policy(self, policy: Policy) -> None:
        if self._policy is not None and not self._policy.budgets:
            self._metering_since = self.sockets.now
        self._policy = policy
        self.accounts.set_policy(policy)
        feeding = [rule for rule in policy.rules if rule.budget is not None]
        self._first_rule = {rule.budget.name: rule.name for rule in reversed(feeding) if rule.budget is not None}
        if not feeding:
            self.sockets.end_all()
            self._metering.clear()

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Meter subflows as the verdicts say; return *verdicts* with the caps of the steps reached."""
        if not self._first_rule:
            return verdicts
        self.accounts.begin_periods(now)
        metering: Metering = {}
        result = []
        for verdict in verdicts:
            rule = verdict.budget
            counted = metering.setdefault(verdict.four_tuple, ())
            if rule is None or rule.budget is None:
                result.append(verdict)
                continue
            account = self.accounts.account(rule.budget, verdict.four_tuple.remote)
            if account not in counted:
                metering[verdict.four_tuple] = (*counted, account)
            result.append(self._with_cap(verdict, rule, account, connection.token))
        self._meter(connection, metering)
        return tuple(result)

    def forget(self, token: int) -> None:
        """Drop a connection that has ended. Its sockets will still report their last bytes."""
        for four_tuple, accounts in self._metering.pop(token, {}).items():
            self.sockets.release(four_tuple, token)
            for account in accounts:
                account.tokens.discard(token)

    def watched(self) -> Collection[FourTuple]:
        return self.sockets.metered.keys()

    def urgent(self) -> Collection[FourTuple]:
        return self._urgent

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        for _ in self.sockets.sample(samples.sockets, samples.complete, samples.time):
            yield Outcome()
        if samples.complete:
            for _ in self._find_urgent(samples.time):
                yield Outcome()
        reached = [
            Reached(each.key.budget, each.key.client, self.accounts.describe(each), self._first_rule[each.key.budget])
            for each in self.accounts.reached
            if not each.over
        ]
        self.accounts.reached.clear()
        yield Outcome(self.accounts.take_stale(), reached)

    def _meter(self, connection: Connection, metering: Metering) -> None:
        token = connection.token
        before = self._metering.get(token, {})
        for account in chain.from_iterable(before.values()):
            account.tokens.discard(token)
        for account in chain.from_iterable(metering.values()):
            account.tokens.add(token)
        since = {each.four_tuple: each.since for each in connection.subflows} if metering.keys() - before else {}
        for four_tuple, accounts in metering.items():
            seen = four_tuple in before or since.get(four_tuple, math.inf) < self._metering_since
            self.sockets.meter(four_tuple, token, accounts, seen)
        for four_tuple in before.keys() - metering:
            self.sockets.release(four_tuple, token)
        self._metering[token] = metering

    def _find_urgent(self, now: float) -> Iterator[None]:
        tokens: dict[int, None] = {}
        for number, near in enumerate(self.accounts.near_a_step(now), 1):
            tokens.update(dict.fromkeys(near))
            if not number % (4 * SLICE):
                yield
        heaviest: list[Metered] = []
        for number, token in enumerate(tokens, 1):
            found = [self.sockets.metered.get(each) for each in self._metering.get(token, ())]
            heaviest += [each for each in found if each is not None and each.carried]
            if not number % (4 * SLICE):
                # Keep only the busiest: there may be thousands.
                heaviest = nlargest(MAX_URGENT, heaviest, key=lambda each: each.carried)
                yield
        self._urgent = tuple(each.four_tuple for each in nlargest(MAX_URGENT, heaviest, key=lambda each: each.carried))

    def _with_cap(self, verdict: Verdict, rule: Rule, account: OpenAccount, token: int) -> Verdict:
        """Return *verdict* with the sentence of the budget and, if it is the tightest, its cap."""
        direction, reason, sentence = verdict.direction, verdict.reason, self.accounts.describe(account)
        step, mine = account.step, verdict.throttle
        cap = None if step is None else step.throttle
        if step is None or cap is None:
            return verdict._replace(reason=joined(reason, sentence, direction))
        guarded = rule.budget_guard and (mine is None or verdict.guarded)
        if mine is not None and (mine.ceil, mine.rate) < (cap.ceil, cap.rate):
            beyond = f"{format_rate(cap.ceil)} beyond {approximate_size(step.after)}"
            tighter = f"tighter than the {account.budget.title}, {beyond} {self.accounts.until(account.budget)}"
            return verdict._replace(reason=joined(reason, tighter, direction), guarded=guarded)
        if mine is None or verdict.rule is None:
            reason = joined(reason, sentence, direction)
        else:
            looser = f"the {format_rate(mine.ceil)} of rule {verdict.rule.name}"
            reason = f"{BEFORE[direction]}{sentence}; tighter than {looser}"
        member = {Share.PATH: None, Share.CLIENT: verdict.four_tuple.remote, Share.CONNECTION: token}[cap.share]
        scope = ScopeKey(self._first_rule[account.budget.name], cap.share, member, direction, step.after)
        return verdict._replace(rule=rule, scope=scope, throttle=cap, reason=reason, guarded=guarded)
