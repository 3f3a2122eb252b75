"""The sockets of metered subflows: what each carried since it was last seen, each byte counted once. Pure.

A change of a subflow's accounts takes effect after the next sample of its socket. Counting begins with the first byte
if the first verdict meters the subflow, otherwise with the counters in the ledger. A closed socket is known by its
cookie and the client's end of its four-tuple.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final

from mptcp_throttler.mptcp.model import End, FourTuple, KernelSubflow
from mptcp_throttler.stages.budget_accounts import Accounts, OpenAccount
from mptcp_throttler.stages.stage import SLICE

FORGET_SECONDS: Final = 120.0
"""How long to wait for the last counters of a socket that is in no sweep: it may be closing."""
LOOK_SECONDS: Final = 600.0
"""Interval of checks whether unmetered sockets in the ledger still exist."""


class Metered:
    """A subflow whose bytes count."""

    __slots__ = (
        "accounts",
        "active",
        "before",
        "carried",
        "cookie",
        "four_tuple",
        "missing_since",
        "next_accounts",
        "reported",
        "token",
    )

    def __init__(self, four_tuple: FourTuple, token: int, before: Metered | None) -> None:
        self.four_tuple = four_tuple
        self.token = token
        self.before = before
        """The previous subflow of the four-tuple, if its socket was never sampled and has yet to report."""
        self.accounts: tuple[OpenAccount, ...] = ()
        self.next_accounts: tuple[OpenAccount, ...] | None = None
        """The accounts after the next sample; None if they stay the same."""
        self.active = True
        """It has a verdict."""
        self.cookie: int | None = None
        """None before the first sample and after the close."""
        self.reported = False
        """The socket has closed, and its last counters are known."""
        self.carried = 0
        """Bytes since the previous sample."""
        self.missing_since: float | None = None

    @property
    def end(self) -> End:
        return self.four_tuple.remote, self.four_tuple.remote_port, self.four_tuple.local_port


class MeteredSockets:
    """All metered subflows, and the counters of each socket that the accounts include."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self.metered: dict[FourTuple, Metered] = {}
        self.counters: dict[int, tuple[int, int]] = {}
        """Acked and received bytes counted of each socket, by cookie; initially those in the ledger."""
        self.dirty: set[int] = set()
        """Sockets whose counters the ledger does not have yet."""
        self.closed: set[int] = set()
        """Sockets whose counters the ledger can forget."""
        self.now = 0.0
        """Monotonic seconds."""
        self._by_cookie: dict[int, Metered] = {}
        self._by_end: dict[End, Metered] = {}
        self._gone: deque[tuple[float, int]] = deque()
        """Sockets that closed or lost their four-tuple, with the monotonic time."""
        self._reported: set[int] = set()
        """Closed sockets: older samples of them are void."""
        self._looked_at: float | None = None
        self._unmetered: set[int] = set()
        """Sockets with counters that were unmetered at the last check."""

    def take(self) -> tuple[dict[int, tuple[int, int]], frozenset[int]]:
        """Return and reset the counters to write to the ledger, and the sockets that it can forget."""
        counters, closed = {cookie: self.counters[cookie] for cookie in self.dirty}, frozenset(self.closed)
        self.dirty, self.closed = set(), set()
        return counters, closed

    def put_back(self, counters: Mapping[int, tuple[int, int]], closed: Set[int]) -> None:
        """Take back what could not be written."""
        self.dirty |= counters.keys() & self.counters.keys()
        self.closed |= closed

    def already_counted(self, cookie: int, acked: int, received: int) -> None:
        """Exclude what a socket carried so far, unless the accounts already include some of it."""
        if cookie not in self.counters:
            self.counters[cookie] = acked, received
            self.dirty.add(cookie)

    def meter(self, four_tuple: FourTuple, token: int, accounts: tuple[OpenAccount, ...], seen: bool) -> None:
        """Count a subflow's bytes to *accounts*. *seen*: it has or may have had verdicts before."""
        metered = self.metered.get(four_tuple)
        before = None
        if metered is not None and metered.token != token:
            # The client reused the port: the four-tuple belongs to a newer connection.
            if metered.cookie is None and not metered.reported:
                before = metered
            metered.active = False
            self._lose(metered)
            self._drop(metered)
            metered = None
        if metered is not None:
            metered.active = True
            metered.next_accounts = None if accounts == metered.accounts else accounts
        elif accounts:
            metered = self.metered[four_tuple] = Metered(four_tuple, token, before)
            self._by_end[metered.end] = metered
            if seen:
                metered.next_accounts = accounts
            else:
                metered.accounts = accounts

    def release(self, four_tuple: FourTuple, token: int) -> None:
        """Note that the subflow has lost its verdict; its socket may still carry data."""
        metered = self.metered.get(four_tuple)
        if metered is not None and metered.token == token:
            metered.active = False
            if metered.reported:
                self._drop(metered)

    def end_all(self) -> None:
        """Stop metering everything; no call will report the end of a subflow."""
        for metered in list(self.metered.values()):
            metered.next_accounts = ()
            self.release(metered.four_tuple, metered.token)

    def sample(self, sockets: Mapping[FourTuple, KernelSubflow], complete: bool, now: float) -> Iterator[None]:
        """Count the growth of the counters of *sockets*; yield after every slice. *now* is monotonic."""
        self.now = now
        for number, four_tuple in enumerate(list(self.metered if complete else sockets), 1):
            if not number % (2 * SLICE):
                yield
            metered, socket = self.metered.get(four_tuple), sockets.get(four_tuple)
            if metered is None:
                continue
            if socket is None:
                self._miss(metered, now)
            elif socket.token == metered.token:  # otherwise an earlier connection had the four-tuple
                self._sample(metered, socket)
        yield

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count the lifetime bytes of a socket."""
        metered = self._by_cookie.pop(cookie, None)
        if metered is None and cookie not in self._reported:
            metered = self._unsampled(end)
        if metered is not None:
            self._count(metered, cookie, acked, received)
            if metered.cookie in (None, cookie):
                metered.cookie, metered.reported = None, True
                if metered.next_accounts is not None:
                    metered.accounts, metered.next_accounts = metered.next_accounts, None
                if not metered.active:
                    self._drop(metered)
        self._forget_counters(cookie)
        self._reported.add(cookie)
        self._gone.append((self.now, cookie))

    def forget_old(self, now: float) -> None:
        """Forget sockets that are long gone. *now* is monotonic."""
        self.now = now
        while self._gone and now - self._gone[0][0] > FORGET_SECONDS:
            _, cookie = self._gone.popleft()
            self._reported.discard(cookie)
            metered = self._by_cookie.get(cookie)
            if metered is not None and metered.cookie != cookie:
                del self._by_cookie[cookie]
                self._forget_counters(cookie)

    def forget_unlisted(self, now: float, listed: Callable[[float], Set[int] | None]) -> None:
        """Forget, every ``LOOK_SECONDS``, the counters of unmetered sockets that are gone without a report. The others
        may be metered later, and must not count anew. *listed* returns the cookies of the last sweep, or None if that
        ended before the given time."""
        since = self._looked_at
        if since is not None and now - since <= LOOK_SECONDS:
            return
        self._looked_at = now
        before, self._unmetered = self._unmetered, self.counters.keys() - self._by_cookie.keys()
        # A sweep misses sockets that began after it. These existed at the previous check.
        known = before & self._unmetered
        there = None if since is None or not known else listed(since)
        for cookie in () if there is None else known - there:
            self._forget_counters(cookie)

    def _sample(self, metered: Metered, socket: KernelSubflow) -> None:
        cookie = socket.cookie
        if metered.cookie != cookie:
            if cookie in self._reported:
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
        # Also for bytes that count nowhere: a restarted daemon must not count them.
        self.counters[cookie] = acked_before + down, received_before + up
        self.dirty.add(cookie)
        # When a period ends, a subflow's accounts are renewed only when it carries data.
        for account in metered.accounts:
            if account.over:
                metered.accounts = self._accounts.renewed(metered.accounts, metered.four_tuple.remote)
                break
        for account in metered.accounts:
            octets = (down if account.counts_down else 0) + (up if account.counts_up else 0)
            if octets:
                self._accounts.add(account, octets)

    def _unsampled(self, end: End) -> Metered | None:
        """Return the subflow at *end* whose socket was never sampled; of several, the one before the last."""
        metered = self._by_end.get(end)
        if metered is None:
            return None
        if metered.before is not None:
            before, metered.before = metered.before, metered.before.before
            return before
        return metered if metered.cookie is None else None

    def _lose(self, metered: Metered) -> None:
        """Note that its socket lost its four-tuple: only the cookie identifies the report to come."""
        if metered.cookie is not None:
            self._gone.append((self.now, metered.cookie))
            metered.cookie = None

    def _miss(self, metered: Metered, now: float) -> None:
        if metered.missing_since is None:
            metered.missing_since = now
        elif not metered.active and now - metered.missing_since > FORGET_SECONDS:
            self._drop(metered)
            if metered.cookie is not None:
                self._forget_counters(metered.cookie)

    def _drop(self, metered: Metered) -> None:
        if self.metered.get(metered.four_tuple) is metered:
            del self.metered[metered.four_tuple]
        if self._by_end.get(metered.end) is metered:
            del self._by_end[metered.end]
        if metered.cookie is not None:
            self._by_cookie.pop(metered.cookie, None)

    def _forget_counters(self, cookie: int) -> None:
        """Let the ledger forget a socket that is gone; the same transaction, or an earlier one, has its bytes."""
        if self.counters.pop(cookie, None) is not None:
            self.dirty.discard(cookie)
            self.closed.add(cookie)
