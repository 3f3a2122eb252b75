# SPDX-License-Identifier: GPL-2.0-or-later
"""The budget stage: counts the bytes of metered subflows, and applies the cap of the step that a budget reached. Pure.

A subflow is metered while its verdict names a rule with a budget, even if another rule or stage caps it. The subflows
of one budget share an account. They are decided again only when the account reaches a step, so the cost of a sample
does not depend on their number.

Each byte counts once. If a subflow's first verdict meters it, counting begins with the first byte or, after a restart,
with the counters in the ledger. A later change of its accounts takes effect after the next sample of its socket. A
closed socket is identified by its cookie and the client's end of its four-tuple.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nlargest
from ipaddress import ip_address
from itertools import chain
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from mptcp_common.units import approximate_size, format_rate
from mptcp_throttler.mptcp.connection_table import TimedTable
from mptcp_throttler.mptcp.model import Connection, End, FourTuple, KernelSubflow, Sockets
from mptcp_throttler.policy.budget import Account, Usage, period
from mptcp_throttler.policy.model import Budget, BudgetStep, Direction, Policy, Rule, Share
from mptcp_throttler.policy.verdict import PREFIX, ScopeKey, Verdict, add_sentence
from mptcp_throttler.stages.stage import SLICE, Outcome, Samples, Stage

NEAR_SECONDS: Final = 3.0  # an account is near a step that it would reach within this time at its present rate
MAX_URGENT: Final = 200  # maximum number of urgent subflows
FORGET_SECONDS: Final = 120.0  # how long to wait for the last counters of a socket that no sweep lists
CHECK_SECONDS: Final = 600.0  # interval of checks whether unmetered sockets in the ledger still exist
ANNOUNCED_PERCENT: Final = (50, 80, 95)  # percentages of the first step's volume that reasons announce
MAX_REACHED: Final = 1024  # maximum number of accounts reported at a time: the latest that reached a step


@dataclass(slots=True, eq=False)
class OpenAccount:
    """An account of the present period that subflows use."""

    key: Account
    budget: Budget
    has_ended: bool = False  # whether the period has ended or the policy no longer has the budget
    tokens: set[int] = field(default_factory=set)  # connections whose verdicts depend on this account
    step: BudgetStep | None = None
    percent: int = 0  # highest announced percentage of the first step's volume that is used; 0 once a step is reached
    next_change: float = math.inf  # used bytes at which the verdicts change next
    new_bytes: int = 0  # bytes used since the last full sweep
    sentence: str = ""

    def update_level(self, used: int) -> bool:
        """Set step and percent for *used* bytes; return whether they changed."""
        before = self.step, self.percent
        self.step, self.percent, self.next_change, self.sentence = None, 0, math.inf, ""
        first = self.budget.steps[0].after
        announced = [(-(-first * percent // 100), None, percent) for percent in ANNOUNCED_PERCENT]
        for volume, step, percent in [*announced, *((each.after, each, 0) for each in self.budget.steps)]:
            if used < volume:
                self.next_change = volume
                break
            self.step, self.percent = step, percent
        return (self.step, self.percent) != before

    def check_next_change(self, used: int, span: float) -> bool:
        """Reset ``new_bytes``; return whether the verdicts may change soon. *span*: seconds between the last sweeps."""
        octets, self.new_bytes = self.new_bytes, 0
        # The next sweeps may take as long as this one, so look ahead for three of them.
        return span > 0 and used + octets / span * max(NEAR_SECONDS, 3 * span) >= self.next_change


class Accounts:
    """All accounts of the policy in force, and the connections that depend on them."""

    def __init__(self) -> None:
        self._budgets: Mapping[str, Budget] = {}
        self._zone: ZoneInfo | None = None
        self._cap_verb = ""
        self._now: float | None = None
        """Time of the last :meth:`begin_periods`, seconds since the epoch."""
        self._period_of: dict[str, tuple[int, int]] = {}  # start and end of the present period of each budget
        self._open_accounts: dict[tuple[str, bytes], OpenAccount] = {}
        """Accounts by budget name and packed client address, which is empty for an account shared by all clients."""
        self.used: dict[Account, int] = {}
        """Used bytes by account, also of unused accounts, and of the previous periods in case the clock is set back."""
        self.added: dict[Account, int] = {}  # bytes by account that the ledger does not have yet
        self._grown_accounts: dict[OpenAccount, None] = {}  # accounts with new bytes since the last full sweep
        self._stale_tokens: set[int] = set()  # connections whose verdicts are out of date
        self.reached: deque[OpenAccount] = deque(maxlen=MAX_REACHED)  # accounts that reached a step or a percentage

    def set_policy(self, policy: Policy) -> None:
        """Adopt *policy*, which is now in force; drop accounts of budgets that the policy lacks."""
        self._budgets, self._zone, self._cap_verb = policy.budgets, policy.time_zone, policy.cap_verb
        self._period_of = {}
        for name_and_client, account in list(self._open_accounts.items()):
            if account.key.budget in self._budgets:
                account.budget = self._budgets[account.key.budget]
                account.update_level(self.used[account.key])
            else:
                account.has_ended = True
                del self._open_accounts[name_and_client]
        if not self._budgets:
            self.used.clear()
        if self._now is not None:
            # Samples and closed sockets may need the periods before the first decision.
            self.begin_periods(self._now)

    def begin_periods(self, now: float) -> None:
        """Begin the periods that include *now*, seconds since the epoch."""
        self._now = now
        is_current = self._period_of and all(begin <= now < end for begin, end in self._period_of.values())
        if is_current or self._zone is None or not self._budgets:
            return
        before = set(self.periods)
        self._period_of = {name: period(budget, self._zone, now) for name, budget in self._budgets.items()}
        present = set(self.periods)
        if present == before:
            return
        for name_and_client, account in list(self._open_accounts.items()):
            if (account.key.budget, account.key.start) not in present:
                account.has_ended = True
                self._stale_tokens |= account.tokens
                del self._open_accounts[name_and_client]
        recent = present | before
        self.used = {key: octets for key, octets in self.used.items() if (key.budget, key.start) in recent}

    @property
    def periods(self) -> Collection[tuple[str, int]]:
        """Name of each budget and start of its present period."""
        return [(name, begin) for name, (begin, _) in self._period_of.items()]

    def describe_end(self, budget: Budget) -> str:
        """Return the end of the present period of *budget*, in words."""
        return f"until {datetime.fromtimestamp(self._period_of[budget.name][1], self._zone):%Y-%m-%d %H:%M %Z}"

    def set_used(self, periods: Collection[tuple[str, int]], used: Mapping[Account, int]) -> Collection[int]:
        """Set the used bytes of all accounts of *periods* from the ledger; return the connections to decide again.
        Before the call, all counts that were fetched for the ledger must have been written or restored."""
        read_periods = set(periods)
        others = {key: octets for key, octets in self.used.items() if (key.budget, key.start) not in read_periods}
        self.used = others | dict(used)
        for account in self._open_accounts.values():
            if (account.key.budget, account.key.start) in read_periods:
                self.used[account.key] = used.get(account.key, 0) + self.added.get(account.key, 0)
                self._refresh_level(account)
        return self.pop_stale_tokens()

    def account(self, budget: Budget, remote: bytes) -> OpenAccount:
        """Return the present account of *budget* for the client with packed address *remote*."""
        client = remote if budget.per_client else b""
        account = self._open_accounts.get((budget.name, client))
        if account is None:
            key = Account(budget.name, str(ip_address(client)) if client else "", self._period_of[budget.name][0])
            account = self._open_accounts[budget.name, client] = OpenAccount(key, budget)
            account.update_level(self.used.setdefault(key, 0))
        return account

    def current_account(self, account: OpenAccount, remote: bytes) -> OpenAccount:
        """Return *account*; if its period is over, return the account of the present period."""
        budget = self._budgets.get(account.key.budget) if account.has_ended else None
        return account if budget is None else self.account(budget, remote)

    def add(self, account: OpenAccount, octets: int) -> None:
        key = account.key
        self.added[key] = self.added.get(key, 0) + octets
        if account.has_ended:
            return  # only the ledger gets these bytes
        account.new_bytes += octets
        self._grown_accounts[account] = None
        used = self.used[key] = self.used[key] + octets
        if used >= account.next_change:
            self._refresh_level(account)

    def tokens_near_change(self, span: float) -> Iterator[Collection[int]]:
        """After a full sweep, yield for each account with new bytes its connections, or () if their verdicts cannot
        change soon. The caller may pause at any point."""
        grown, self._grown_accounts = self._grown_accounts, {}
        for account in grown:
            used = self.used.get(account.key, 0)  # missing if the account's period has ended
            yield tuple(account.tokens) if account.check_next_change(used, span) else ()

    def _refresh_level(self, account: OpenAccount) -> None:
        if account.update_level(self.used[account.key]):
            self._stale_tokens |= account.tokens
            self.reached.append(account)

    def pop_stale_tokens(self) -> Collection[int]:
        """Return the connections whose verdicts are out of date, and empty their list."""
        tokens, self._stale_tokens = self._stale_tokens, set()
        return tokens

    def describe(self, account: OpenAccount) -> str:
        """Return the sentence about *account* for reasons. It is formatted when first needed."""
        if not account.sentence:
            budget, step = account.budget, account.step
            if step is None:
                share = f"over {account.percent} %" if account.percent else f"under {ANNOUNCED_PERCENT[0]} %"
                text = f"{budget.title}: {share} of {approximate_size(budget.steps[0].after)} used"
            elif step.throttle is None:
                text = f"{budget.title}: no cap above {approximate_size(step.after)}"
            else:
                subject = f"{'budget' if budget.is_shared else 'rule'} {budget.name}"
                text = f"{subject} {self._cap_verb} what exceeds {approximate_size(step.after)}"
            account.sentence = f"{text} {self.describe_end(budget)}"
        return account.sentence


Metering = dict[FourTuple, tuple[OpenAccount, ...]]  # the accounts that count the bytes of each subflow


@dataclass(slots=True, eq=False)
class MeteredSubflow:
    four_tuple: FourTuple
    token: int
    accounts: tuple[OpenAccount, ...] = ()
    next_accounts: tuple[OpenAccount, ...] | None = None  # the accounts after the next sample; None: no change
    is_active: bool = True  # whether the subflow has a verdict
    cookie: int | None = None  # cookie of the socket; None before the first sample and after the close
    has_final_counters: bool = False  # whether the socket has closed and its final counters are known
    new_bytes: int = 0  # bytes since the previous sample
    missing_since: float | None = None

    @property
    def end(self) -> End:
        return self.four_tuple.remote, self.four_tuple.remote_port, self.four_tuple.local_port


class MeteredSockets:
    """All metered subflows, and the counters of each socket that the accounts include. Times are monotonic seconds."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.metered: dict[FourTuple, MeteredSubflow] = {}
        self.counters: dict[int, tuple[int, int]] = {}
        """Acknowledged and received bytes already counted of each socket, by cookie; initially from the ledger."""
        self.dirty: set[int] = set()  # sockets whose counters the ledger does not have yet
        self.closed: set[int] = set()  # sockets whose counters the ledger can forget
        self.now = 0.0
        self._by_cookie: dict[int, MeteredSubflow] = {}
        self._by_end: dict[End, MeteredSubflow] = {}
        self._former_cookies: TimedTable[int, int] = TimedTable()
        """Cookies of sockets that closed or lost their four-tuple: samples of them that arrive later are ignored."""
        self._last_check: float | None = None
        self._unmetered_sockets: set[int] = set()  # sockets with counters that were unmetered at the last check

    def take_pending(self) -> Usage:
        """Return and reset the counts that must be written to the ledger."""
        counters = {cookie: self.counters[cookie] for cookie in self.dirty}
        usage = Usage(self._accounts.added, counters, frozenset(self.closed))
        self._accounts.added, self.dirty, self.closed = {}, set(), set()
        return usage

    def restore_pending(self, usage: Usage) -> None:
        """Restore counts that could not be written; the next :meth:`take_pending` includes them."""
        for account, octets in usage.added.items():
            self._accounts.added[account] = self._accounts.added.get(account, 0) + octets
        self.dirty |= usage.counters.keys() & self.counters.keys()
        self.closed |= usage.closed

    def exclude_earlier_bytes(self, cookie: int, acked: int, received: int) -> None:
        """Exclude the bytes that a socket carried so far, unless the accounts already include some of them."""
        if cookie not in self.counters:
            self.counters[cookie] = acked, received
            self.dirty.add(cookie)

    def meter(self, four_tuple: FourTuple, token: int, accounts: tuple[OpenAccount, ...], is_known: bool) -> None:
        """Add a subflow's bytes to *accounts* from now on. *is_known*: it had, or may have had, verdicts before."""
        metered = self.metered.get(four_tuple)
        if metered is not None and metered.token == token:
            metered.is_active = True
            metered.next_accounts = None if accounts == metered.accounts else accounts
            return
        if metered is not None:
            # The client reused the port, so the four-tuple belongs to a newer connection.
            metered.is_active = False
            self._detach(metered)
            self._remove(metered)
        if accounts:
            new = MeteredSubflow(four_tuple, token, () if is_known else accounts, accounts if is_known else None)
            self.metered[four_tuple] = self._by_end[new.end] = new

    def release(self, four_tuple: FourTuple, token: int) -> None:
        """Note that the subflow has lost its verdict. Its socket may still carry data."""
        metered = self.metered.get(four_tuple)
        if metered is not None and metered.token == token:
            metered.is_active = False
            if metered.has_final_counters:
                self._remove(metered)

    def end_all(self) -> None:
        """Stop metering all subflows. The caller will not report the end of each subflow."""
        for metered in list(self.metered.values()):
            metered.next_accounts = ()
            self.release(metered.four_tuple, metered.token)

    def sample(self, sockets: Sockets, complete: bool, now: float) -> Iterator[None]:
        """Count the bytes that *sockets* carried since their last samples; yield after every slice."""
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
                elif not metered.is_active and now - metered.missing_since > FORGET_SECONDS:
                    self._remove(metered)
                    self._forget_counters(metered.cookie)
            elif socket.token == metered.token:  # otherwise an earlier connection had the four-tuple
                self._sample(metered, socket)
        yield

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count the bytes that a closed socket carried. *end*: the client's address and port, and the proxy's port."""
        metered = self._by_cookie.pop(cookie, None)
        if metered is None and cookie not in self._former_cookies:
            metered = self._by_end.get(end)  # the socket was never sampled; a newer subflow may have its port now
        if metered is not None:
            self._count(metered, cookie, acked, received)
            if metered.cookie == cookie or (metered.cookie is None and not metered.is_active):
                metered.cookie, metered.has_final_counters = None, True
                if metered.next_accounts is not None:
                    metered.accounts, metered.next_accounts = metered.next_accounts, None
                if not metered.is_active:
                    self._remove(metered)
        self._forget_counters(cookie)
        self._former_cookies.put(cookie, cookie, self.now)

    def forget_old(self, now: float) -> None:
        """Forget sockets that closed or lost their four-tuple more than ``FORGET_SECONDS`` ago."""
        self.now = now
        for cookie in self._former_cookies.pop_until(now - FORGET_SECONDS):
            metered = self._by_cookie.get(cookie)
            if metered is not None and metered.cookie != cookie:
                del self._by_cookie[cookie]
                self._forget_counters(cookie)

    def forget_unlisted(self, now: float, listed: Callable[[float], Set[int] | None]) -> None:
        """Forget, every ``CHECK_SECONDS``, the counters of unmetered sockets that ended without a report. The counters
        of other sockets are kept: if these are metered later, their old bytes must not count again. *listed* returns
        the cookies of the last sweep, or None if that sweep ended before the given time."""
        since = self._last_check
        if since is not None and now - since <= CHECK_SECONDS:
            return
        self._last_check = now
        before, self._unmetered_sockets = self._unmetered_sockets, self.counters.keys() - self._by_cookie.keys()
        # Consider only sockets that existed at the previous check: a sweep misses sockets that began after it.
        candidates = before & self._unmetered_sockets
        existing = None if since is None or not candidates else listed(since)
        for cookie in () if existing is None else candidates - existing:
            self._forget_counters(cookie)

    def _sample(self, metered: MeteredSubflow, socket: KernelSubflow) -> None:
        cookie = socket.cookie
        if metered.cookie != cookie:
            if cookie in self._former_cookies:
                return
            self._detach(metered)
            metered.cookie, metered.has_final_counters = cookie, False
            self._by_cookie[cookie] = metered
        metered.missing_since = None
        self._count(metered, cookie, socket.bytes_acked, socket.bytes_received)
        if metered.next_accounts is not None:
            metered.accounts, metered.next_accounts = metered.next_accounts, None
            if not metered.accounts:
                self._remove(metered)

    def _count(self, metered: MeteredSubflow, cookie: int, acked: int, received: int) -> None:
        acked_before, received_before = self.counters.get(cookie, (0, 0))
        down, up = max(0, acked - acked_before), max(0, received - received_before)
        metered.new_bytes = down + up
        if not metered.new_bytes:
            return
        # Update the counters even if no account gets the bytes: a restarted daemon must not count them.
        self.counters[cookie] = acked_before + down, received_before + up
        self.dirty.add(cookie)
        # When a period ends, a subflow's accounts are renewed only when it carries data.
        if any(each.has_ended for each in metered.accounts):
            remote = metered.four_tuple.remote
            metered.accounts = tuple([self._accounts.current_account(each, remote) for each in metered.accounts])
        for account in metered.accounts:
            count = account.budget.count
            octets = (down if Direction.DOWN in count else 0) + (up if Direction.UP in count else 0)
            if octets:
                self._accounts.add(account, octets)

    def _detach(self, metered: MeteredSubflow) -> None:
        """Note that the subflow's socket no longer has the four-tuple: only its cookie identifies the later report."""
        if metered.cookie is not None:
            self._former_cookies.put(metered.cookie, metered.cookie, self.now)
            metered.cookie = None

    def _remove(self, metered: MeteredSubflow) -> None:
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


class StepReached(NamedTuple):
    """Report that an account reached a step or an announced percentage."""

    budget: str
    client: str  # the client's address; empty if the account is shared by all clients
    sentence: str
    rule: str  # the first rule with the budget; the budget's caps belong to it


class BudgetStage(Stage):
    """The first stage: meters subflows and applies the caps of their budgets."""

    needs_sockets = False
    interval, period = 0.1, 1.0

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self.accounts = Accounts()
        self.sockets = MeteredSockets(self.accounts)
        self._rule_of: dict[str, str] = {}  # the first rule with each budget; the budget's caps belong to it
        self._metering: dict[int, Metering] = {}  # by connection: its subflows with verdicts
        self._last_sweep = -math.inf  # when the last full sweep began, monotonic seconds
        self._urgent: tuple[FourTuple, ...] = ()  # subflows of accounts near their next step, the busiest first
        self._metering_since = -math.inf  # when a policy without budgets was last replaced, monotonic seconds

    def advance(self, now: float, monotonic: float) -> Collection[int]:
        """Begin the periods of *now*, seconds since the epoch; forget old sockets; return connections to decide."""
        self.sockets.forget_old(monotonic)
        self.accounts.begin_periods(now)
        return self.accounts.pop_stale_tokens()

    def set_policy(self, policy: Policy) -> None:
        if self._policy is not None and not self._policy.budgets:
            self._metering_since = self.sockets.now
        self._policy = policy
        self.accounts.set_policy(policy)
        budget_rules = [rule for rule in policy.rules if rule.budget is not None]
        self._rule_of = {rule.budget.name: rule.name for rule in reversed(budget_rules) if rule.budget is not None}
        if not budget_rules:
            self.sockets.end_all()
            self._metering.clear()

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Meter subflows as the *verdicts* require; return these with the caps of the steps reached."""
        if not self._rule_of:
            return verdicts
        self.accounts.begin_periods(now)
        metering: Metering = {}
        result = []
        for verdict in verdicts:
            rule = verdict.budget
            accounts = metering.setdefault(verdict.four_tuple, ())
            if rule is None or rule.budget is None:
                result.append(verdict)
                continue
            account = self.accounts.account(rule.budget, verdict.four_tuple.remote)
            if account not in accounts:
                metering[verdict.four_tuple] = (*accounts, account)
            result.append(self._add_cap(verdict, rule, account, connection.token))
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
            StepReached(each.key.budget, each.key.client, self.accounts.describe(each), self._rule_of[each.key.budget])
            for each in self.accounts.reached
            if not each.has_ended
        ]
        self.accounts.reached.clear()
        yield Outcome(self.accounts.pop_stale_tokens(), reached)

    def _meter(self, connection: Connection, metering: Metering) -> None:
        token = connection.token
        before = self._metering.get(token, {})
        for account in chain.from_iterable(before.values()):
            account.tokens.discard(token)
        for account in chain.from_iterable(metering.values()):
            account.tokens.add(token)
        since = {each.four_tuple: each.since for each in connection.subflows} if metering.keys() - before else {}
        for four_tuple, accounts in metering.items():
            is_known = four_tuple in before or since.get(four_tuple, math.inf) < self._metering_since
            self.sockets.meter(four_tuple, token, accounts, is_known)
        for four_tuple in before.keys() - metering:
            self.sockets.release(four_tuple, token)
        self._metering[token] = metering

    def _find_urgent(self, now: float) -> Iterator[None]:
        """Find the subflows whose next bytes may reach a step; yield after some work."""
        busiest: list[MeteredSubflow] = []
        tokens = dict[int, None]()
        span, self._last_sweep = now - self._last_sweep, now
        for number, near in enumerate(self.accounts.tokens_near_change(span), 1):
            tokens |= dict.fromkeys(near)
            if not number % (4 * SLICE):
                yield
        for number, token in enumerate(tokens, 1):
            subflows = [self.sockets.metered.get(each) for each in self._metering.get(token, ())]
            busiest += [each for each in subflows if each is not None and each.new_bytes]
            if not number % (4 * SLICE):
                busiest = nlargest(MAX_URGENT, busiest, key=lambda each: each.new_bytes)  # there may be thousands
                yield
        self._urgent = tuple(each.four_tuple for each in nlargest(MAX_URGENT, busiest, key=lambda each: each.new_bytes))

    def _add_cap(self, verdict: Verdict, rule: Rule, account: OpenAccount, token: int) -> Verdict:
        """Return *verdict* with the sentence of the budget and, if the budget's cap is the tightest, with that cap."""
        direction, reason, sentence = verdict.direction, verdict.reason, self.accounts.describe(account)
        step, rule_cap = account.step, verdict.throttle
        cap = None if step is None else step.throttle
        if step is None or cap is None:
            return verdict._replace(reason=add_sentence(reason, sentence, direction))
        if rule_cap is not None and (rule_cap.ceil, rule_cap.rate) < (cap.ceil, cap.rate):
            excess = f"{format_rate(cap.ceil)} above {approximate_size(step.after)}"
            addition = f"tighter than the {account.budget.title}, {excess} {self.accounts.describe_end(account.budget)}"
            bound = None if rule.budget_guard else cap.ceil
            return verdict._replace(reason=add_sentence(reason, addition, direction), bound=bound)
        if rule_cap is None or verdict.rule is None:
            reason = add_sentence(reason, sentence, direction)
        else:
            rule_limit = f"the {format_rate(rule_cap.ceil)} of rule {verdict.rule.name}"
            reason = f"{PREFIX[direction]}{sentence}; tighter than {rule_limit}"
        member = {Share.PATH: None, Share.CLIENT: verdict.four_tuple.remote, Share.CONNECTION: token}[cap.share]
        scope = ScopeKey(self._rule_of[account.budget.name], cap.share, member, direction, step.after)
        bound = None if rule_cap is None or verdict.guarded else rule_cap.ceil
        return verdict._replace(
            rule=rule, scope=scope, throttle=cap, reason=reason, guarded=rule.budget_guard, bound=bound
        )
