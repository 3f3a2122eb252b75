"""How many bytes went over each path and under each cap since the daemon's start, and at what rate each subflow goes.

How many subflows are on each path and under each cap is kept with every decision: a summary of ten thousand connections
goes through none of them.

A subflow's counters are read when the sampler sweeps, and what they have more than before is added to the totals of its
path and of the cap that it has then. So totals only grow, whatever closes; nothing is counted per packet. What a
subflow carried after its last sample, or in a life shorter than the time between two, the meter of closed sockets says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from mptcp_throttler.mptcp.model import Connection, End, FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Verdict
from mptcp_throttler.telemetry.cap_totals import CapClass, CapClasses, CapKey, CapTotal, Limits

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


class _Carried:
    """One subflow."""

    __slots__ = (
        "acked",
        "cookie",
        "down",
        "down_class",
        "down_limits",
        "down_since",
        "place",
        "received",
        "received_rate",
        "sampled",
        "sent_rate",
        "token",
        "up",
        "up_class",
        "up_limits",
        "up_since",
    )

    def __init__(self, token: int, place: PathTotal, now: float) -> None:
        self.token = token
        self.place = place
        place.subflows += 1
        self.down: CapTotal | None = None
        """The cap that it has, if any, on what is sent,"""
        self.up: CapTotal | None = None
        """and on what is received."""
        self.down_class: CapClass | None = None
        """The class in which it has it; None once it is no subflow any more. So with these:"""
        self.up_class: CapClass | None = None
        self.down_since = self.up_since = now
        """When it came to that cap, or lost one, or the cap got another rate, or began or ceased to be that of a dry
        run; seconds since the epoch."""
        self.down_limits: Limits | None = None
        """Those of the cap then; None of one that balances loads, which change all the time."""
        self.up_limits: Limits | None = None
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
        if self.down is not None:
            self.down.bytes += sent
        if self.up is not None:
            self.up.bytes += got

    def move(self, place: PathTotal) -> None:
        """It is on another path now."""
        self.place.subflows -= 1
        self.place = place
        place.subflows += 1

    @property
    def is_capped(self) -> bool:
        return self.down_class is not None or self.up_class is not None

    def leave(self, classes: CapClasses) -> None:
        """It is no subflow any more; what it carried last may still come."""
        self.place.subflows -= 1
        for cap, cap_class in ((self.down, self.down_class), (self.up, self.up_class)):
            if cap is not None and cap_class is not None:
                classes.leave(cap, cap_class)
        self.down_class = self.up_class = None


_UNKNOWN = Rates(None, None)


class Traffic:
    """Of one daemon. A consumer of samples."""

    by_request = False
    interval = float("inf")
    period = 0.1
    """Of nothing while no sweep is due: see :meth:`watches_any`."""
    urgent_share = 0.0

    def __init__(
        self, clock: Callable[[], float], sweep_seconds: Callable[[], float], is_dry: Callable[[], bool]
    ) -> None:
        """*clock* returns monotonic seconds, *sweep_seconds* for how long the last sweep worked, *is_dry* whether
        nothing decided is to come into effect."""
        self.paths: dict[PathKey, PathTotal] = {}
        self.caps: dict[CapKey, CapTotal] = {}
        self.capped = 0
        """Subflows with a cap, as decided; one with caps on both directions once."""
        self._classes = CapClasses()
        self._subflows: dict[FourTuple, _Carried] = {}
        self._closed: dict[int | End, tuple[_Carried, float]] = {}
        """Subflows without a verdict that the meter may still report, by cookie or, never sampled, by end; and when
        that was."""
        self._reported: dict[int | End, tuple[int, int, float]] = {}
        """What the meter reported of those that still have a verdict."""
        self.counted = clock()
        """When all sockets that there are were last counted, monotonic seconds."""
        self._begun = False
        self._due = 0.0
        self._clock = clock
        self._sweep_seconds = sweep_seconds
        self._is_dry = is_dry
        self._dry: set[int] = set()
        """Tokens of connections that were last decided in a dry run."""

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
        if known is None:
            return None
        return known.down_since if direction is Direction.DOWN else known.up_since

    def standing(self, four_tuple: FourTuple, direction: Direction) -> tuple[int, str | None, str | None] | None:
        """Return the token, the path, and the rule whose cap it has, of a subflow; None for one that is not known."""
        known = self._subflows.get(four_tuple)
        if known is None:
            return None
        cap = known.down if direction is Direction.DOWN else known.up
        return known.token, known.place.key.path, None if cap is None else cap.key.rule

    def begin(self, sockets: Mapping[FourTuple, KernelSubflow]) -> None:
        """Count from now on: what *sockets* carried, they carried before the daemon's start."""
        now = self._clock()
        for four_tuple, subflow in self._subflows.items():
            socket = sockets.get(four_tuple)
            if socket is not None:
                subflow.cookie, subflow.sampled = socket.cookie, now
                subflow.acked, subflow.received = socket.bytes_acked, socket.bytes_received
        self._begun = True

    def decided(
        self,
        token: int,
        connection: Connection | None,
        before: tuple[Verdict, ...],
        after: tuple[Verdict, ...],
        now: float,
    ) -> None:
        """Take what was decided for a connection, and what was before: its subflows count for what they now have.
        *now* is seconds since the epoch."""
        is_dry = self._is_dry()
        turned = is_dry != (token in self._dry)
        if is_dry and after:
            self._dry.add(token)
        else:
            self._dry.discard(token)
        known = self._subflows
        there = () if connection is None else connection.subflows
        interfaces = {each.four_tuple: each.interface for each in there}
        for verdict in after:
            four_tuple = verdict.four_tuple
            subflow = known.get(four_tuple)
            if subflow is None or subflow.token != token:
                if subflow is not None:
                    self._close(four_tuple, subflow)
                place = self._place(verdict.path, interfaces.get(four_tuple))
                subflow = known[four_tuple] = _Carried(token, place, now)
            else:
                path, interface = subflow.place.key
                if verdict.path != path or interfaces.get(four_tuple) != interface:
                    subflow.move(self._place(verdict.path, interfaces.get(four_tuple)))
            cap = cap_class = limits = None
            if verdict.scope is not None and verdict.rule is not None and verdict.throttle is not None:
                cap = self._cap(CapKey(verdict.rule.name, verdict.path, verdict.direction))
                cap_class = self._classes.of(verdict.scope, verdict.throttle)
                if not isinstance(verdict.scope.member, tuple):
                    limits = cap_class.limits
            down = verdict.direction is Direction.DOWN
            before_it, class_before = (subflow.down, subflow.down_class) if down else (subflow.up, subflow.up_class)
            limits_before = subflow.down_limits if down else subflow.up_limits
            is_as_before = cap is before_it and cap_class is class_before and limits == limits_before
            # A cap that a dry run named begins when that ends, and the other way round.
            if is_as_before and not (turned and cap is not None):
                continue
            was_capped = subflow.is_capped
            if cap is not None and cap_class is not None:
                self._classes.enter(cap, cap_class)
            if before_it is not None and class_before is not None:
                self._classes.leave(before_it, class_before)
            if down:
                subflow.down, subflow.down_class, subflow.down_limits, subflow.down_since = cap, cap_class, limits, now
            else:
                subflow.up, subflow.up_class, subflow.up_limits, subflow.up_since = cap, cap_class, limits, now
            self.capped += subflow.is_capped - was_capped
        if len(before) == len(after) and all(
            one.four_tuple is other.four_tuple for one, other in zip(before, after, strict=True)
        ):
            return
        for four_tuple in {each.four_tuple for each in before} - {each.four_tuple for each in after}:
            subflow = known.get(four_tuple)
            if subflow is not None and subflow.token == token:
                del known[four_tuple]
                self._close(four_tuple, subflow)
        # Under a policy that says nothing of uploads any more, there is no verdict that would take their cap.
        up = [{each.four_tuple for each in some if each.direction is Direction.UP} for some in (before, after)]
        for four_tuple in up[0] - up[1]:
            subflow = known.get(four_tuple)
            if subflow is None or subflow.token != token or subflow.up is None or subflow.up_class is None:
                continue
            self._classes.leave(subflow.up, subflow.up_class)
            subflow.up, subflow.up_class, subflow.up_limits, subflow.up_since = None, None, None, now
            self.capped -= not subflow.is_capped

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count what a socket has carried in its life, bytes."""
        found = self._closed.pop(cookie, None) or self._closed.pop(end, None)
        if found is not None:
            found[0].count(acked, received)
        else:
            # Of plain TCP, perhaps, which nobody else asks about.
            now = self._clock()
            self._forget_old(now)
            report = acked, received, now
            for key in (cookie, end):
                self._reported.pop(key, None)  # the order is that of time
                self._reported[key] = report

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

    def urgent(self) -> Collection[FourTuple]:
        return ()

    def observe(
        self, asked: Collection[FourTuple], sockets: Mapping[FourTuple, KernelSubflow], now: float, complete: bool
    ) -> Iterator[None]:
        """Count what *sockets* have more than before."""
        del asked
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
                self._sample(subflow, socket, now)
        self.counted = now
        yield

    def failed(self, now: float) -> None:
        """What was not sampled now is counted later."""

    # Within

    def _sample(self, subflow: _Carried, socket: KernelSubflow, now: float) -> None:
        acked, received = socket.bytes_acked, socket.bytes_received
        if subflow.cookie != socket.cookie:
            subflow.cookie, subflow.sampled = socket.cookie, now
            subflow.acked = subflow.received = 0
            subflow.count(acked, received)
            subflow.sent_rate = subflow.received_rate = None
            return
        span = now - subflow.sampled
        if span > 0:
            subflow.sent_rate = int(8 * max(0, acked - subflow.acked) / span)
            subflow.received_rate = int(8 * max(0, received - subflow.received) / span)
        subflow.sampled = now
        subflow.count(acked, received)

    def _close(self, four_tuple: FourTuple, subflow: _Carried) -> None:
        self.capped -= subflow.is_capped
        subflow.leave(self._classes)
        end = four_tuple.remote, four_tuple.remote_port, four_tuple.local_port
        key: int | End = end if subflow.cookie is None else subflow.cookie
        report = self._reported.pop(key, None)
        if report is None:
            self._closed.pop(key, None)
            self._closed[key] = subflow, self._clock()
            if len(self._closed) > MAX_CLOSED:
                del self._closed[next(iter(self._closed))]
        else:
            if self._reported.get(end) is report:
                del self._reported[end]  # it is not that of another socket that has this end soon
            subflow.count(report[0], report[1])

    def _forget_old(self, now: float) -> None:
        tables: tuple[tuple[dict[int | End, Any], float], ...] = (
            (self._closed, CLOSED_SECONDS),
            (self._reported, REPORTED_SECONDS),
        )
        for table, seconds in tables:
            while table and now - next(iter(table.values()))[-1] > seconds:
                del table[next(iter(table))]

    def _place(self, path: str | None, interface: str | None) -> PathTotal:
        key = PathKey(path, interface)
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
