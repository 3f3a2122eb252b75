"""How many bytes went over each path and under each cap since the daemon's start, and at what rate each subflow goes.

How many subflows are on each path and under each cap is kept with every decision: a summary of ten thousand connections
goes through none of them.

A subflow's counters are read when the sampler sweeps, and what they have more than before is added to the totals of its
path and of the cap that it has then. So totals only grow, whatever closes; nothing is counted per packet. What a
subflow carried after its last sample, or in a life shorter than the time between two, the meter of closed sockets says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from mptcp_throttler.mptcp.model import End, FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.stages.stage import Consumer, Samples
from mptcp_throttler.telemetry.cap_totals import CapClass, CapClasses, CapKey, CapTotal, Limits
from mptcp_throttler.telemetry.decision import Decision

PERIOD_SECONDS = 1.0
SWEEP_SHARE = 0.02
"""Share of a processor that sweeps for the totals alone may take."""
CLOSED_SECONDS = 120.0
"""For which the meter is waited for: a socket that lost its path tries for so long to send what it has."""
MAX_CLOSED = 16_384
"""That are waited for: 4 MB. Where there is no meter, all that closed lately."""
REPORTED_SECONDS = 10.0
"""For which a report waits for the end of its subflow. Most are of plain TCP."""
SLICE = 256
"""Subflows counted at a time: some 0.2 ms."""
MAX_CAPS = 4096
"""Totals of caps that are kept: rules, paths and directions, those of policies from before included."""


class PathKey(NamedTuple):
    path: str | None
    interface: str | None


class PathTotal:
    """Bytes over one path, and who is on it."""

    __slots__ = ("key", "received", "sent", "subflows")

    def __init__(self, key: PathKey) -> None:
        self.key = key
        self.sent = self.received = 0
        self.subflows = 0


class Rates(NamedTuple):
    """Of one subflow, as its last two samples have it. Bits/s; None while there are no two."""

    sent: int | None
    received: int | None


class _Standing(NamedTuple):
    """The cap that a subflow has in one direction, if any."""

    since: float
    """When it came to that cap, or lost one, or the cap got another rate; monotonic seconds."""
    cap: CapTotal | None = None
    of_class: CapClass | None = None
    """The class in which it has it; None once it is no subflow any more."""
    limits: Limits | None = None
    """Those of the cap then; None of one that balances loads, which change all the time."""


class _Carried:
    """One subflow."""

    __slots__ = ("acked", "cookie", "down", "place", "received", "received_rate", "sampled", "sent_rate", "token", "up")

    def __init__(self, token: int, place: PathTotal, now: float) -> None:
        self.token = token
        self.place = place
        place.subflows += 1
        self.down = self.up = _Standing(now)
        """Of what is sent, and of what is received."""
        self.cookie: int | None = None
        """None before its first sample."""
        self.acked = self.received = 0
        self.sampled = 0.0
        self.sent_rate: int | None = None
        self.received_rate: int | None = None

    def count(self, acked: int, received: int) -> None:
        sent, got = max(0, acked - self.acked), max(0, received - self.received)
        self.acked += sent
        self.received += got
        self.place.sent += sent
        self.place.received += got
        if self.down.cap is not None:
            self.down.cap.bytes += sent
        if self.up.cap is not None:
            self.up.cap.bytes += got

    def standing(self, direction: Direction) -> _Standing:
        return self.up if direction is Direction.UP else self.down

    def stand(self, direction: Direction, standing: _Standing) -> None:
        if direction is Direction.UP:
            self.up = standing
        else:
            self.down = standing

    def move(self, place: PathTotal) -> None:
        """It is on another path now."""
        self.place.subflows -= 1
        self.place = place
        place.subflows += 1

    @property
    def is_capped(self) -> bool:
        return self.down.of_class is not None or self.up.of_class is not None


_UNKNOWN = Rates(None, None)


class Traffic(Consumer):
    """Of one daemon."""

    interval = float("inf")
    period = 0.1
    """Of nothing while no sweep is due: see :meth:`watches_any`."""

    def __init__(self, clock: Callable[[], float], sweep_seconds: Callable[[], float]) -> None:
        """*clock* returns monotonic seconds, *sweep_seconds* for how long the last sweep worked."""
        self.paths: dict[PathKey, PathTotal] = {}
        self.caps: dict[CapKey, CapTotal] = {}
        self.clients: Counter[bytes] = Counter()
        """How many connections each client has."""
        self._client_of: dict[int, bytes] = {}
        """By token."""
        self.capped = 0
        """Subflows with a cap, as decided; one with caps on both directions once."""
        self._classes = CapClasses()
        self._subflows: dict[FourTuple, _Carried] = {}
        self._closed: dict[End, tuple[_Carried, float]] = {}
        """Subflows without a verdict that the meter may still report, and since when; the oldest first."""
        self._reported: dict[End, tuple[int, int, int, float]] = {}
        """What the meter reported of those that still have a verdict: cookie, bytes sent and received, and when."""
        self.counted = clock()
        """When all sockets that there are were last counted, monotonic seconds."""
        self._begun = False
        self._due = 0.0
        self._clock = clock
        self._sweep_seconds = sweep_seconds

    def rates(self, four_tuple: FourTuple) -> Rates:
        known = self._subflows.get(four_tuple)
        return _UNKNOWN if known is None else Rates(known.sent_rate, known.received_rate)

    def carried(self, four_tuple: FourTuple) -> tuple[int, int]:
        """Return how many bytes the subflow's last sample had sent and received."""
        known = self._subflows.get(four_tuple)
        return (0, 0) if known is None else (known.acked, known.received)

    def since(self, four_tuple: FourTuple, direction: Direction) -> float | None:
        """Return since when the subflow has had the cap that it has, at its rate, or none, or has been named by a dry
        run as one that would have it; None for one that is not known."""
        known = self._subflows.get(four_tuple)
        return None if known is None else known.standing(direction).since

    def standing(self, four_tuple: FourTuple, direction: Direction) -> tuple[int, str | None, str | None] | None:
        """Return the token, the path, and the rule whose cap it has, of a subflow; None for one that is not known."""
        known = self._subflows.get(four_tuple)
        if known is None:
            return None
        cap = known.standing(direction).cap
        return known.token, known.place.key.path, None if cap is None else cap.key.rule

    def under(self, rule: str) -> int:
        """Return how many subflows have a cap of *rule*, those with one in each direction twice."""
        return sum(cap.subflows for key, cap in self.caps.items() if key.rule == rule)

    def begin(self, sockets: Mapping[FourTuple, KernelSubflow]) -> None:
        """Count from now on: what *sockets* carried, they carried before the daemon's start."""
        for four_tuple, subflow in self._subflows.items():
            socket = sockets.get(four_tuple)
            if socket is not None:
                subflow.cookie, subflow.sampled = socket.cookie, socket.read
                subflow.acked, subflow.received = socket.bytes_acked, socket.bytes_received
        self._begun = True

    def decided(self, decision: Decision) -> None:
        """Take what was decided for a connection: its subflows count for what they now have."""
        token, connection, now, known = decision.token, decision.connection, decision.now, self._subflows
        there = () if connection is None else connection.subflows
        interfaces = {each.four_tuple: each.interface for each in there}
        self._count_client(token, None if connection is None else connection.client)
        for verdict in decision.after:
            four_tuple = verdict.four_tuple
            subflow = known.get(four_tuple)
            key = PathKey(verdict.path, interfaces.get(four_tuple))
            if subflow is None or subflow.token != token:
                if subflow is not None:
                    self._close(four_tuple, subflow)
                subflow = known[four_tuple] = _Carried(token, self._place(key), now)
            elif subflow.place.key != key:
                subflow.move(self._place(key))
            self._stand(subflow, verdict, now)
        if len(decision.before) == len(decision.after) and all(
            one.four_tuple is other.four_tuple for one, other in zip(decision.before, decision.after, strict=True)
        ):
            return
        for four_tuple in {each.four_tuple for each in decision.before} - {each.four_tuple for each in decision.after}:
            subflow = known.get(four_tuple)
            if subflow is not None and subflow.token == token:
                del known[four_tuple]
                self._close(four_tuple, subflow)
        # Under a policy that says nothing of uploads any more, there is no verdict that would take their cap.
        for verdict in decision.ended:
            subflow = known.get(verdict.four_tuple)
            if subflow is not None and subflow.token == token:
                self._set(subflow, verdict.direction, _Standing(now))

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count what a socket has carried in its life, bytes."""
        found = self._closed.get(end)
        if found is not None and found[0].cookie in (None, cookie):
            del self._closed[end]
            found[0].count(acked, received)
        else:
            # Of plain TCP, perhaps, which nobody else asks about.
            now = self._clock()
            self._forget_old(now)
            self._reported.pop(end, None)  # the order is that of time
            self._reported[end] = cookie, acked, received, now

    def closed_told(self) -> None:
        """All that closed until now was reported: where nothing is open, nobody sweeps, and this is all there is."""
        if not self._subflows:
            self.counted = self._clock()

    # A consumer of samples

    def watches_any(self) -> bool:
        """A sweep is due: it is not asked for more often than it may cost."""
        return self._begun and bool(self._subflows) and self._clock() >= self._due

    def watched(self) -> Collection[FourTuple]:
        return self._subflows.keys() if self.watches_any() else ()

    def observe(self, samples: Samples) -> Iterator[None]:
        """Count what the sockets have more than before."""
        now, sockets, complete, _ = samples
        if not complete:
            return
        self._due = now + max(PERIOD_SECONDS, self._sweep_seconds() / SWEEP_SHARE)
        self._forget_old(now)
        for number, (four_tuple, subflow) in enumerate(list(self._subflows.items()), 1):
            if not number % SLICE:
                yield
            socket = sockets.get(four_tuple)
            # A socket that had its four-tuple when the sweep read it may be of a connection before it.
            if socket is not None and socket.token == subflow.token:
                self._sample(subflow, socket)
        self.counted = now
        yield

    # Within

    @staticmethod
    def _sample(subflow: _Carried, socket: KernelSubflow) -> None:
        acked, received = socket.bytes_acked, socket.bytes_received
        if subflow.cookie != socket.cookie:
            subflow.cookie, subflow.sampled = socket.cookie, socket.read
            subflow.acked = subflow.received = 0
            subflow.count(acked, received)
            subflow.sent_rate = subflow.received_rate = None
            return
        span = socket.read - subflow.sampled
        if span > 0:
            subflow.sent_rate = int(8 * max(0, acked - subflow.acked) / span)
            subflow.received_rate = int(8 * max(0, received - subflow.received) / span)
        subflow.sampled = socket.read
        subflow.count(acked, received)

    def _count_client(self, token: int, client: bytes | None) -> None:
        """The connection *token* is that of *client*, or with None has ended."""
        before = self._client_of.get(token)
        if client == before:
            return
        if before is not None:
            self.clients[before] -= 1
            if not self.clients[before]:
                del self.clients[before]
            del self._client_of[token]
        if client is not None:
            self._client_of[token] = client
            self.clients[client] += 1

    def _stand(self, subflow: _Carried, verdict: Verdict, now: float) -> None:
        """Have *subflow* stand as *verdict* says."""
        cap = of_class = limits = None
        if verdict.scope is not None and verdict.rule is not None and verdict.throttle is not None:
            cap = self._cap(CapKey(verdict.rule.name, verdict.path, verdict.direction))
            of_class = self._classes.of(verdict.scope, verdict.throttle)
            limits = None if verdict.scope.balances else of_class.limits
        before = subflow.standing(verdict.direction)
        if cap is not before.cap or of_class is not before.of_class or limits != before.limits:
            self._set(subflow, verdict.direction, _Standing(now, cap, of_class, limits))

    def _set(self, subflow: _Carried, direction: Direction, standing: _Standing) -> None:
        before, was_capped = subflow.standing(direction), subflow.is_capped
        if standing.cap is not None and standing.of_class is not None:
            self._classes.enter(standing.cap, standing.of_class)
        if before.cap is not None and before.of_class is not None:
            self._classes.leave(before.cap, before.of_class)
        subflow.stand(direction, standing)
        self.capped += subflow.is_capped - was_capped

    def _close(self, four_tuple: FourTuple, subflow: _Carried) -> None:
        """It is no subflow any more; what it carried last may still come."""
        subflow.place.subflows -= 1
        self.capped -= subflow.is_capped
        for direction in Direction:
            since, cap, of_class, _ = subflow.standing(direction)
            if cap is not None and of_class is not None:
                self._classes.leave(cap, of_class)
                subflow.stand(direction, _Standing(since, cap))
        end = four_tuple.remote, four_tuple.remote_port, four_tuple.local_port
        report = self._reported.get(end)
        if report is not None and subflow.cookie in (None, report[0]):
            del self._reported[end]
            subflow.count(report[1], report[2])
        else:
            self._closed.pop(end, None)
            self._closed[end] = subflow, self._clock()
            if len(self._closed) > MAX_CLOSED:
                del self._closed[next(iter(self._closed))]

    def _forget_old(self, now: float) -> None:
        _drop_older(self._closed, now - CLOSED_SECONDS)
        _drop_older(self._reported, now - REPORTED_SECONDS)

    def _place(self, key: PathKey) -> PathTotal:
        total = self.paths.get(key)
        if total is None:
            total = self.paths[key] = PathTotal(key)
        return total

    def _cap(self, key: CapKey) -> CapTotal:
        total = self.caps.get(key)
        if total is None:
            if len(self.caps) >= MAX_CAPS:
                # Of the policy that was in force the longest ago, and of those first that nobody has any more.
                unused = (each.key for each in self.caps.values() if not each.subflows)
                del self.caps[next(unused, next(iter(self.caps)))]
            total = self.caps[key] = CapTotal(key)
        return total


def _drop_older(table: dict[End, Any], time: float) -> None:
    """Drop what is older than *time*; values end with theirs, and the oldest comes first."""
    while table and next(iter(table.values()))[-1] < time:
        del table[next(iter(table))]
