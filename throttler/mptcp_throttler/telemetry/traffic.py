# SPDX-License-Identifier: GPL-2.0-or-later
"""Counts the bytes over each path and under each cap since the daemon's start; computes the rate of each subflow.

Every decision updates the number of subflows per path, cap and class, so a summary visits none of ten thousand
connections. A rule's cap on one path may have many classes, and a class may have subflows on several paths.

Each sweep adds the growth of a subflow's counters to the totals of its path and its current cap. The meter of closed
sockets reports the bytes after a subflow's last sample, or all bytes if the subflow existed only between two samples.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mptcp_throttler.mptcp.connection_table import TimedTable
from mptcp_throttler.mptcp.model import End, FourTuple, KernelSubflow, Sockets, compute_rate
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.stages.stage import Consumer, Samples
from mptcp_throttler.telemetry.decision import Decision

PERIOD_SECONDS = 1.0  # minimum interval of sweeps for the totals
SWEEP_SHARE = 0.02  # share of a processor for sweeps that only the totals need
CLOSED_SECONDS = 120.0  # how long to wait for the meter: a socket that lost its path tries to send for this long
MAX_CLOSED = 16_384  # maximum number of closed subflows that wait for the meter: 5 MB. Without a meter, all wait.
REPORTED_SECONDS = 10.0  # how long a report waits for the end of its subflow; most reports are of plain TCP
SLICE = 256  # subflows counted at a time: about 0.2 ms
MAX_CAPS = 4096  # maximum number of cap totals, including those of former policies


class PathKey(NamedTuple):
    path: str | None
    interface: str | None


@dataclass(slots=True, eq=False)
class PathTotal:
    key: PathKey
    sent: int = 0
    received: int = 0
    subflows: int = 0


class CapKey(NamedTuple):
    rule: str
    path: str | None
    direction: Direction


@dataclass(slots=True, eq=False)
class CapTotal:
    key: CapKey
    bytes: int = 0
    subflows: int = 0


@dataclass(slots=True, eq=False)
class CapClass:
    """One HTB class, as decided, which the subflows of one scope share."""

    limits: tuple[int, int]  # rate and ceil, bits/s
    members: Counter[CapKey] = field(default_factory=Counter)  # number of subflows of each cap


class Rates(NamedTuple):
    """Rates of one subflow between its last two samples, bits/s; None without two samples."""

    sent: int | None
    received: int | None


NO_RATES: Final = Rates(None, None)


class _CapState(NamedTuple):
    """The cap that a subflow has in one direction, if any."""

    since: float  # when the subflow got or lost the cap, or the cap's rate changed; monotonic seconds
    cap: CapTotal | None = None
    scope: ScopeKey | None = None  # None after the subflow closed
    limits: tuple[int, int] | None = None  # of the class; None if the cap balances loads: such limits keep changing


@dataclass(slots=True, eq=False)
class _SubflowTotal:
    token: int
    path_total: PathTotal
    down: _CapState
    up: _CapState
    cookie: int | None = None  # None before its first sample
    acked: int = 0
    received: int = 0
    sample_time: float = 0.0
    rates: Rates = NO_RATES

    def count(self, acked: int, received: int) -> None:
        sent, new_received = max(0, acked - self.acked), max(0, received - self.received)
        self.acked += sent
        self.received += new_received
        self.path_total.sent += sent
        self.path_total.received += new_received
        if self.down.cap is not None:
            self.down.cap.bytes += sent
        if self.up.cap is not None:
            self.up.cap.bytes += new_received

    def cap_state(self, direction: Direction) -> _CapState:
        return self.up if direction is Direction.UP else self.down

    @property
    def is_capped(self) -> bool:
        return self.down.scope is not None or self.up.scope is not None


class Traffic(Consumer):
    interval = float("inf")
    period = 0.1  # costs nothing while no sweep is due: see watches_any

    def __init__(self, clock: Callable[[], float], sweep_seconds: Callable[[], float]) -> None:
        """*clock* returns monotonic seconds, *sweep_seconds* the working time of the last sweep."""
        self.paths: dict[PathKey, PathTotal] = {}
        self.caps: dict[CapKey, CapTotal] = {}
        self.clients: dict[int, bytes] = {}  # by token of the connection
        self.capped_count = 0  # subflows with a cap, as decided; counted once if both directions have one
        self.classes: dict[ScopeKey, CapClass] = {}
        self._subflows: dict[FourTuple, _SubflowTotal] = {}
        self._closed: TimedTable[End, _SubflowTotal] = TimedTable(MAX_CLOSED)  # the meter may still report these
        self._reported: TimedTable[End, tuple[int, int, int]] = TimedTable()
        """Cookie, sent and received bytes of closed sockets whose subflow, if any, has not ended yet."""
        self.counted_at = clock()  # when all sockets were last counted, monotonic seconds
        self._next_sweep = float("inf")  # not before :meth:`begin`
        self._clock = clock
        self._sweep_seconds = sweep_seconds

    def rates(self, four_tuple: FourTuple) -> Rates:
        subflow = self._subflows.get(four_tuple)
        return NO_RATES if subflow is None else subflow.rates

    def byte_counts(self, four_tuple: FourTuple) -> tuple[int, int]:
        """Return the bytes sent and received as of the subflow's last sample."""
        subflow = self._subflows.get(four_tuple)
        return (0, 0) if subflow is None else (subflow.acked, subflow.received)

    def cap_since(self, four_tuple: FourTuple, direction: Direction) -> float | None:
        """Return since when a subflow has its present cap and rate (applied or dry), or no cap; None if unknown."""
        subflow = self._subflows.get(four_tuple)
        return None if subflow is None else subflow.cap_state(direction).since

    def find(self, four_tuple: FourTuple, direction: Direction) -> tuple[int, str | None, str | None] | None:
        """Return a subflow's token, path and the rule of its cap; None if unknown."""
        subflow = self._subflows.get(four_tuple)
        if subflow is None:
            return None
        cap = subflow.cap_state(direction).cap
        return subflow.token, subflow.path_total.key.path, None if cap is None else cap.key.rule

    def count_capped(self, rule: str) -> int:
        """Return how many subflows have a cap of *rule*, counted once per direction."""
        return sum(cap.subflows for key, cap in self.caps.items() if key.rule == rule)

    def begin(self, sockets: Sockets) -> None:
        """Count from now on; the bytes in *sockets* are from before the daemon's start."""
        for four_tuple, subflow in self._subflows.items():
            socket = sockets.get(four_tuple)
            if socket is not None:
                subflow.cookie, subflow.sample_time = socket.cookie, socket.read
                subflow.acked, subflow.received = socket.bytes_acked, socket.bytes_received
        self._next_sweep = 0.0

    def record_decision(self, decision: Decision) -> None:
        """Assign the subflows of a connection to the paths and caps of *decision*."""
        token, connection, now, subflows = decision.token, decision.connection, decision.now, self._subflows
        if connection is None:
            self.clients.pop(token, None)
        else:
            self.clients[token] = connection.client
        tracked = () if connection is None else connection.subflows
        interfaces = {each.four_tuple: each.interface for each in tracked}
        for verdict in decision.after:
            four_tuple = verdict.four_tuple
            subflow = subflows.get(four_tuple)
            key = PathKey(verdict.path, interfaces.get(four_tuple))
            if subflow is None or subflow.token != token:
                if subflow is not None:
                    self._close(four_tuple, subflow)
                total, uncapped = self._path_total(key), _CapState(now)
                total.subflows += 1
                subflow = subflows[four_tuple] = _SubflowTotal(token, total, uncapped, uncapped)
            elif subflow.path_total.key != key:
                subflow.path_total.subflows -= 1
                subflow.path_total = self._path_total(key)
                subflow.path_total.subflows += 1
            self._update_cap(subflow, verdict, decision)
        for four_tuple in {each.four_tuple for each in decision.before} - {each.four_tuple for each in decision.after}:
            subflow = subflows.get(four_tuple)
            if subflow is not None and subflow.token == token:
                del subflows[four_tuple]
                self._close(four_tuple, subflow)
        # A policy that no longer covers uploads yields no verdict that would remove their cap.
        for verdict in decision.ended:
            subflow = subflows.get(verdict.four_tuple)
            if subflow is not None and subflow.token == token:
                self._set_cap(subflow, verdict.direction, _CapState(now))

    def socket_closed(self, cookie: int, end: End, acked: int, received: int) -> None:
        """Count the lifetime bytes of a socket."""
        subflow = self._closed.get(end)
        if subflow is not None and subflow.cookie in (None, cookie):
            self._closed.pop(end)
            subflow.count(acked, received)
        else:
            # The socket may be plain TCP, which belongs to no subflow.
            now = self._clock()
            self._forget_old(now)
            self._reported.put(end, (cookie, acked, received), now)

    def note_all_reported(self) -> None:
        """Note that all closed sockets were reported. If no subflow is open, no sweep runs: the totals are complete."""
        if not self._subflows:
            self.counted_at = self._clock()

    def watches_any(self) -> bool:
        """Return whether a sweep is due; ``SWEEP_SHARE`` bounds how often."""
        return bool(self._subflows) and self._clock() >= self._next_sweep

    def watched(self) -> Collection[FourTuple]:
        return self._subflows.keys() if self.watches_any() else ()

    def observe(self, samples: Samples) -> Iterator[None]:
        now, sockets, complete, _ = samples
        if not complete:
            return
        self._next_sweep = now + max(PERIOD_SECONDS, self._sweep_seconds() / SWEEP_SHARE)
        self._forget_old(now)
        for number, (four_tuple, subflow) in enumerate(list(self._subflows.items()), 1):
            if not number % SLICE:
                yield
            socket = sockets.get(four_tuple)
            # An earlier connection may have had the four-tuple when the sweep read the socket.
            if socket is not None and socket.token == subflow.token:
                self._sample(subflow, socket)
        self.counted_at = now
        yield

    @staticmethod
    def _sample(subflow: _SubflowTotal, socket: KernelSubflow) -> None:
        acked, received = socket.bytes_acked, socket.bytes_received
        if subflow.cookie != socket.cookie:
            subflow.cookie = socket.cookie
            subflow.acked = subflow.received = 0
            subflow.rates = NO_RATES
        elif (span := socket.read - subflow.sample_time) > 0:
            pairs = (subflow.acked, acked), (subflow.received, received)
            subflow.rates = Rates(*(int(compute_rate(before, after, span)) for before, after in pairs))
        subflow.sample_time = socket.read
        subflow.count(acked, received)

    def _update_cap(self, subflow: _SubflowTotal, verdict: Verdict, decision: Decision) -> None:
        cap = scope = limits = None
        if verdict.scope is not None and verdict.rule is not None and verdict.throttle is not None:
            cap, scope = self._cap_total(CapKey(verdict.rule.name, verdict.path, verdict.direction)), verdict.scope
            class_limits = verdict.throttle.rate, verdict.throttle.ceil
            self.classes.setdefault(scope, CapClass(class_limits)).limits = class_limits
            limits = None if scope.balances else class_limits
        before = subflow.cap_state(verdict.direction)
        is_changed = decision.is_dry_run_change and cap is not None
        if is_changed or cap is not before.cap or scope != before.scope or limits != before.limits:
            self._set_cap(subflow, verdict.direction, _CapState(decision.now, cap, scope, limits))

    def _set_cap(self, subflow: _SubflowTotal, direction: Direction, state: _CapState) -> None:
        before, was_capped = subflow.cap_state(direction), subflow.is_capped
        self._count(state, 1)
        self._count(before, -1)
        if direction is Direction.UP:
            subflow.up = state
        else:
            subflow.down = state
        self.capped_count += subflow.is_capped - was_capped

    def _count(self, state: _CapState, number: int) -> None:
        """Add a *number* of subflows to the cap and class of *state*, if it has them."""
        cap, scope = state.cap, state.scope
        if cap is None or scope is None:
            return
        cap.subflows += number
        members = self.classes[scope].members
        members[cap.key] += number
        if not members[cap.key]:
            del members[cap.key]
        if not members:
            del self.classes[scope]

    def _close(self, four_tuple: FourTuple, subflow: _SubflowTotal) -> None:
        """End a subflow; the meter may still report its last bytes."""
        subflow.path_total.subflows -= 1
        for direction in Direction:
            self._set_cap(subflow, direction, subflow.cap_state(direction)._replace(scope=None))
        end = four_tuple.remote, four_tuple.remote_port, four_tuple.local_port
        report = self._reported.get(end)
        if report is not None and subflow.cookie in (None, report[0]):
            self._reported.pop(end)
            subflow.count(report[1], report[2])
        else:
            self._closed.put(end, subflow, self._clock())

    def _forget_old(self, now: float) -> None:
        self._closed.drop_until(now - CLOSED_SECONDS)
        self._reported.drop_until(now - REPORTED_SECONDS)

    def _path_total(self, key: PathKey) -> PathTotal:
        return self.paths.get(key) or self.paths.setdefault(key, PathTotal(key))

    def _cap_total(self, key: CapKey) -> CapTotal:
        total = self.caps.get(key)
        if total is None:
            if len(self.caps) >= MAX_CAPS:
                # Drop the oldest unused total or, if all are in use, the oldest.
                unused = (each.key for each in self.caps.values() if not each.subflows)
                del self.caps[next(unused, next(iter(self.caps)))]
            total = self.caps[key] = CapTotal(key)
        return total
