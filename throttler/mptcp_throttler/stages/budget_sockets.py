"""The sockets of metered subflows: what each has carried since it was last seen, each byte once. Pure.

A change of where a subflow's bytes count takes effect with the next sample of its socket: what was carried before that
is counted as before. A subflow that is metered from its first verdict on is counted from its first byte; one whose
counters the ledger knows, from those. A closed socket says its cookie and the client's end of its four-tuple.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Final

from mptcp_throttler.mptcp.model import End, FourTuple, KernelSubflow
from mptcp_throttler.policy.budget import Counters
from mptcp_throttler.stages.budget_accounts import Part, Volume
from mptcp_throttler.stages.stage import SLICE

FORGET_SECONDS: Final = 120.0
"""How long the counters of a subflow whose socket is in no sweep are waited for: it may be closing."""
LOOK_SECONDS: Final = 600.0
"""Between two looks whether sockets are still there of which the ledger knows and that nothing meters."""


class Metered:
    """A subflow whose bytes count, and its socket."""

    __slots__ = (
        "acked",
        "active",
        "carried",
        "coming",
        "cookie",
        "four_tuple",
        "missing_since",
        "parts",
        "received",
        "reported",
        "token",
    )

    def __init__(self, four_tuple: FourTuple, token: int, parts: tuple[Part, ...]) -> None:
        self.four_tuple = four_tuple
        self.token = token
        self.parts = parts
        """Where its bytes count."""
        self.coming: tuple[Part, ...] | None = None
        """Where they count from the next sample on; None where nothing changes."""
        self.active = True
        """It has a verdict."""
        self.cookie: int | None = None
        """None while nothing is known of its socket."""
        self.acked = self.received = 0
        self.carried = 0
        """Bytes since the sample before."""
        self.missing_since: float | None = None
        self.reported = False
        """A socket of it has closed, and its last counters are known."""

    @property
    def end(self) -> End:
        return self.four_tuple.remote, self.four_tuple.remote_port, self.four_tuple.local_port


class MeteredSockets:
    """All metered subflows.

    *add* hears what comes to which account; *renewed* says where bytes count whose account's period is over.
    """

    def __init__(
        self,
        add: Callable[[Volume, int], None],
        renewed: Callable[[tuple[Part, ...], bytes], tuple[Part, ...]],
    ) -> None:
        self._add = add
        self._renewed = renewed
        self.metered: dict[FourTuple, Metered] = {}
        self.dirty: dict[int, tuple[int, int]] = {}
        """Of each socket, the counters that the ledger does not have yet."""
        self.closed: set[int] = set()
        """Sockets of which it need not have any."""
        self._by_cookie: dict[int, Metered] = {}
        self._ends: dict[End, Metered] = {}
        self._departed: dict[End, Metered] = {}
        """Subflows that lost their four-tuple before any sample of their socket, which is yet to report."""
        self._restored: dict[int, Counters] = {}
        """What the ledger knows of sockets that have not been metered since."""
        self._looked_at: float | None = None
        self._rows: set[int] = set()
        """The sockets of which the ledger has counters."""
        self._unmetered: set[int] = set()
        """Those of them that nothing metered at the last look."""
        self._done: set[int] = set()
        self._expiring: deque[tuple[float, int]] = deque()
        """Sockets that closed or lost their four-tuple, and when, monotonic."""
        self.now = 0.0

    def restore(self, counters: Mapping[int, Counters]) -> None:
        """Take what the ledger knows of sockets, at the start."""
        self._restored = dict(counters)
        self._rows = set(counters)

    def take(self) -> tuple[dict[int, tuple[int, int]], frozenset[int]]:
        """Return what the ledger is to hear, and begin anew."""
        counters, closed = self.dirty, frozenset(self.closed)
        self._rows |= counters.keys()
        self._rows -= closed
        self.dirty, self.closed = {}, set()
        return counters, closed

    def meter(self, four_tuple: FourTuple, token: int, parts: tuple[Part, ...], seen: bool) -> None:
        """The verdicts on a subflow say where its bytes count. *seen*: it has had verdicts before, or could have."""
        metered = self.metered.get(four_tuple)
        if metered is not None and metered.token != token:
            # A client that reuses a port soon has the same four-tuple in a newer connection.
            if metered.cookie is not None:
                self._detach(metered)
            elif not metered.reported:
                metered.missing_since = self.now
                self._departed[metered.end] = metered
            self._drop(metered)
            metered = None
        if metered is not None and not metered.parts and metered.coming is None:
            # Its metering ended in a sweep that is not over, and begins again.
            self._drop(metered)
            metered, seen = None, True
        if metered is not None:
            metered.active = True
            metered.coming = None if parts == metered.parts else parts
        elif parts:
            metered = self.metered[four_tuple] = Metered(four_tuple, token, () if seen else parts)
            metered.coming = parts if seen else None
            self._ends[metered.end] = metered

    def release(self, four_tuple: FourTuple, token: int) -> None:
        """The subflow has no verdict any more; its socket may still be there, and carry."""
        metered = self.metered.get(four_tuple)
        if metered is not None and metered.token == token:
            metered.active = False
            if metered.reported and metered.cookie is None:
                self._drop(metered)

    def end_all(self) -> None:
        """Nothing is metered any more, and of no subflow anybody will say that it has ended."""
        for metered in list(self.metered.values()):
            metered.coming, metered.active = (), False
            if metered.reported and metered.cookie is None:
                self._drop(metered)

    def sample(self, sockets: Mapping[FourTuple, KernelSubflow], complete: bool, now: float) -> Iterator[None]:
        """Count what *sockets* have more than before, and yield after every slice. *now* is monotonic."""
        self.now = now
        if complete:
            missing = []
            for number, (four_tuple, metered) in enumerate(list(self.metered.items()), 1):
                if not number % (2 * SLICE):
                    yield
                if self.metered.get(four_tuple) is not metered:
                    continue  # it ended between two slices
                socket = sockets.get(four_tuple)
                if socket is None:
                    missing.append(metered)
                elif socket.token != metered.token:
                    continue  # the socket of a connection before it, which had its four-tuple when the sweep read it
                elif self._sample(metered, socket):
                    self._drop(metered)
            self._forget_missing(missing)
        else:
            for four_tuple, socket in sockets.items():
                found = self.metered.get(four_tuple)
                if found is not None and socket.token == found.token and self._sample(found, socket):
                    self._drop(found)
        yield

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count what a socket has carried in its life."""
        metered = self._by_cookie.get(cookie)
        if metered is None:
            metered = self._departed.pop(end, None) or self._ends.get(end)
            if metered is not None and (metered.cookie is not None or not self._bind(metered, cookie)):
                metered = None
        if metered is not None:
            self._count(metered, acked, received)
            del self._by_cookie[cookie]
            metered.cookie, metered.acked, metered.received, metered.reported = None, 0, 0, True
            if metered.coming is not None:
                metered.parts, metered.coming = metered.coming, None
            if not metered.active:
                self._drop(metered)
        self._forget_counters(cookie)
        self._done.add(cookie)
        self._expiring.append((self.now, cookie))

    def _sample(self, metered: Metered, socket: KernelSubflow) -> bool:
        """Count what *socket* has more than before; return whether the subflow is metered no more."""
        if metered.cookie != socket.cookie and not self._bind(metered, socket.cookie):
            return False
        metered.missing_since = None
        self._count(metered, socket.bytes_acked, socket.bytes_received)
        if metered.coming is None:
            return False
        metered.parts, metered.coming = metered.coming, None
        # Whatever was carried before: a daemon that comes back must not count it.
        self.dirty[socket.cookie] = (metered.acked, metered.received)
        return not metered.parts

    def _count(self, metered: Metered, acked: int, received: int) -> None:
        down, up = max(0, acked - metered.acked), max(0, received - metered.received)
        metered.carried = down + up
        if not metered.carried or metered.cookie is None:
            return
        metered.acked += down
        metered.received += up
        parts = metered.parts
        if parts:
            self.dirty[metered.cookie] = (metered.acked, metered.received)
            # When a period ends, only what carries something is renewed, and when it does.
            for part in parts:
                if part[0].over:
                    parts = metered.parts = self._renewed(parts, metered.four_tuple.remote)
                    break
        for volume, down_counts, up_counts in parts:
            octets = (down if down_counts else 0) + (up if up_counts else 0)
            if octets:
                self._add(volume, octets)

    def _bind(self, metered: Metered, cookie: int) -> bool:
        """Take *cookie* as that of the subflow's socket; return whether it can be."""
        if cookie in self._done:
            return False
        if metered.cookie is not None:
            self._detach(metered)
        metered.cookie = cookie
        metered.acked, metered.received = self._restored.pop(cookie, (0, 0))
        self._by_cookie[cookie] = metered
        return True

    def _detach(self, metered: Metered) -> None:
        """Another socket has the four-tuple now; the one before is known by its cookie alone, and yet to report."""
        assert metered.cookie is not None
        left = Metered(metered.four_tuple, metered.token, metered.parts)
        left.active, left.cookie = False, metered.cookie
        left.acked, left.received = metered.acked, metered.received
        self._by_cookie[metered.cookie] = left
        self._expiring.append((self.now, metered.cookie))

    def _drop(self, metered: Metered) -> None:
        if self.metered.get(metered.four_tuple) is metered:
            del self.metered[metered.four_tuple]
        if self._ends.get(metered.end) is metered:
            del self._ends[metered.end]
        if metered.cookie is not None and self._by_cookie.get(metered.cookie) is metered:
            del self._by_cookie[metered.cookie]

    def _forget_counters(self, cookie: int) -> None:
        """A socket is gone: the ledger need not know its counters. Whatever they say has been added to accounts, and is
        written in the transaction that forgets them, or was before."""
        if cookie in self._rows or cookie in self.dirty:
            self.dirty.pop(cookie, None)
            self.closed.add(cookie)
        self._restored.pop(cookie, None)

    def _forget_missing(self, missing: Iterable[Metered]) -> None:
        now = self.now
        for metered in missing:
            if self.metered.get(metered.four_tuple) is not metered:
                continue  # it ended between two slices; its socket may be one that is yet to report
            if metered.missing_since is None:
                metered.missing_since = now
            elif not metered.active and now - metered.missing_since > FORGET_SECONDS:
                self._drop(metered)
                if metered.cookie is not None:
                    self._forget_counters(metered.cookie)

    def forget_old(self, now: float) -> None:
        """Forget sockets that are long gone. *now* is monotonic."""
        self.now = now
        while self._expiring and now - self._expiring[0][0] > FORGET_SECONDS:
            _, cookie = self._expiring.popleft()
            self._done.discard(cookie)
            gone = self._by_cookie.get(cookie)
            if gone is not None and self.metered.get(gone.four_tuple) is not gone:
                del self._by_cookie[cookie]
                self._forget_counters(cookie)
        for end, metered in list(self._departed.items()):
            if metered.missing_since is not None and now - metered.missing_since > FORGET_SECONDS:
                del self._departed[end]

    def forget_unlisted(self, now: float, listed: Callable[[float], Set[int] | None]) -> None:
        """Forget, now and then, what the ledger knows of sockets that nothing meters and that are in no sweep: *listed*
        returns the cookies of all that the last one found, None where that ended before the time that it is given. One
        that nothing meters now may be metered later, and must not count anew then."""
        since = self._looked_at
        if since is not None and now - since <= LOOK_SECONDS:
            return
        self._looked_at = now
        before, self._unmetered = self._unmetered, self._rows - self._by_cookie.keys()
        # Of a socket that began after a sweep, that sweep says nothing: these were there at the look before.
        known = before & self._unmetered
        there = None if since is None or not known else listed(since)
        for cookie in () if there is None else known - there:
            self._forget_counters(cookie)
