# SPDX-License-Identifier: GPL-2.0-or-later
"""The onset of soft caps on downloads: the limits of each socket, computed from samples. Pure.

A subflow whose cap begins, changes or ends goes through these states (:class:`State`):

1. *pending*: it got a cap, or its cap changed. Its socket must be sampled;
2. *transition*: it sends more than its cap, and slows down in phases (``rate_transition``). When the last phase begins,
   the planner creates its entry. A subflow that sends little skips this state. So does a subflow that began under its
   cap: it already has its entry, and for some time only little unsent data may wait on it;
3. *settled*: its pacing rate stays at the cap, or, if the cap is shared, at the level of all users (``share``);
4. *releasing*: it left the cap, and its limits are lifted. A socket with nothing in flight applies this only when it
   sends its next data, so it is checked at growing intervals until it has applied the change.

The transitions of one cap share an allowance (``rate_transition``). The cookie identifies a socket: if a client reuses
a port, the new socket has the same four-tuple, but a new state.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, Sockets
from mptcp_throttler.shaping.cap import Level, LiveCap
from mptcp_throttler.shaping.initial_options import unsent_bound
from mptcp_throttler.shaping.model import MTU, NO_LIMIT, SocketLimit
from mptcp_throttler.shaping.onset.rate_transition import (
    RateTransition,
    begin_allowance,
    needs_transition,
    spend_allowance,
)
from mptcp_throttler.shaping.onset.share import Demand, SendBuffers, is_outdated, max_min_level
from mptcp_throttler.shaping.plan import MAX_CHANGED, Planner

STEP_SECONDS = 0.02  # seconds between two samples of a subflow in transition
MIN_LEVEL_CHANGE = 0.05  # relative change of the level below which the pacing rate is not updated
MAX_UNSAMPLED_SECONDS = 3.0  # if a subflow has no sample for this long, its cap begins without a transition
SMALL_BOUND_SECONDS = 3.0
"""Time in which almost no unsent data may wait on a subflow that began under its cap. Later more must wait: otherwise a
path with a longer RTT may run out of data, because the scheduler ignores it while this path would be free sooner."""
FIRST_CHECK_SECONDS, LATER_CHECK_SECONDS = 0.5, 30.0  # times until the first and each later check of a released socket
SLICE = 128  # sockets processed at a time: less than 1 ms


@dataclass(slots=True)
class SocketChanges:
    """Limits to set on sockets, by cookie."""

    limits: dict[int, SocketLimit] = field(default_factory=dict)
    dropped: list[int] = field(default_factory=list)  # sockets that no longer need a limit
    plan_changed: bool = False  # whether the plan changed
    is_urgent: bool = False  # whether some limits must be in force at once, because sockets begin or end a rest


class State(enum.Enum):
    PENDING = "pending"
    TRANSITION = "transition"
    SETTLED = "settled"
    RELEASING = "releasing"


@dataclass(slots=True)
class _Socket:
    state: State
    since: float
    cookie: int = 0  # cookie of the socket; 0 until the first sample
    limit: SocketLimit = NO_LIMIT
    rests: bool = False  # whether the pacing rate is 0 instead of the rate in ``limit``
    had_limit: bool = False  # whether a sample showed a limit; otherwise only acknowledged bytes prove its end
    transition: RateTransition | None = None
    sent: int = 0  # bytes sent at the last transition step; while releasing: acked at the first check, -1 before
    demand: Demand = field(default_factory=Demand)


def _sent_bytes(sample: KernelSubflow) -> int:
    return sample.bytes_acked + sample.tcp.unacked * sample.tcp.mss


def _due_subflows(times: Mapping[FourTuple, float], now: float) -> list[FourTuple]:
    """Return the first subflows of *times*, at most ``MAX_CHANGED``, whose time is at or before *now*."""
    return [each for each, _ in takewhile(lambda item: item[1] <= now, islice(times.items(), MAX_CHANGED))]


def _resting_limit(limit: SocketLimit) -> SocketLimit:
    """Return *limit* for a resting socket; until the scheduler's average is 0, it still assigns single segments."""
    return replace(limit, rate=0, not_sent=1)


class DownloadOnsets:
    """The download onsets of one planner. Times are monotonic seconds."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._sockets: dict[FourTuple, _Socket] = {}
        self._urgent: dict[FourTuple, None] = {}  # subflows that are pending or in transition
        self._first_checks: dict[FourTuple, float] = {}  # releasing subflows, and when to check them; earliest first
        self._later_checks: dict[FourTuple, float] = {}  # subflows that were checked before, and the next check
        self._small_bound_until: dict[FourTuple, float] = {}  # end of ``SMALL_BOUND_SECONDS`` of subflows that need it
        self._buffers = SendBuffers()
        self._changes = SocketChanges()
        self._now = 0.0
        planner.soft_caps = True

    def process_plan_changes(self, now: float) -> SocketChanges:
        """Process some of the subflows that the planner changed; return the changes to sockets."""
        self._now = now
        self._end_small_bounds()
        for four_tuple in self._planner.take_changed_subflows():
            if four_tuple in self._planner.draining:
                self._settle(four_tuple)  # the limit stays until the data assigned to the subflow is sent
            elif self._planner.soft_cap(four_tuple) is not None or self._planner.rests(four_tuple):
                self._await_sample(four_tuple)
                self._update_rest(four_tuple)
            else:
                self._release(four_tuple)
        return self._take_changes()

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows to sample every ``STEP_SECONDS``."""
        checks = _due_subflows(self._first_checks, self._now) + _due_subflows(self._later_checks, self._now)
        return [*self._urgent, *self._planner.overdue(SLICE), *checks]

    def handle_failed_sampling(self, now: float) -> SocketChanges:
        """Proceed without samples, so that no subflow stays uncapped because its socket cannot be sampled."""
        for four_tuple in self._planner.overdue(SLICE):
            self._changes.plan_changed |= self._planner.settle_overdue(four_tuple, busy=False)
        for four_tuple in list(self._urgent):
            if now - self._sockets[four_tuple].since > MAX_UNSAMPLED_SECONDS:
                self._complete(four_tuple)
        return self._take_changes()

    def handle_refusal(self) -> None:
        """Begin the caps of pending subflows without a transition, because the kernel refused the limits."""
        for four_tuple in [*self._urgent, *self._planner.pending()]:
            self._complete(four_tuple)
        self._take_changes()

    def observe(self, queried: Collection[FourTuple], sockets: Sockets, now: float) -> Iterator[SocketChanges]:
        """Process samples of the *queried* subflows; those missing from *sockets* have no socket. Yield the
        changes in slices, so that the caller can do other work in between."""
        self._now = now
        for number, _ in enumerate(self._steps(queried, sockets, now), 1):
            if not number % SLICE:
                yield self._take_changes()
        yield self._take_changes()

    def _steps(self, queried: Collection[FourTuple], sockets: Sockets, now: float) -> Generator[None]:
        """Process the samples; yield after each subflow. A cap that changes between two slices loses its level."""
        caps, pending = dict[int, LiveCap](), list[FourTuple]()
        for four_tuple in queried:
            cap = self._process_sample(four_tuple, sockets.get(four_tuple), now)
            if cap is not None:
                caps[cap.minor] = cap
                if self._sockets[four_tuple].state is State.PENDING:
                    pending.append(four_tuple)
            yield
        outdated = [cap for cap in caps.values() if is_outdated(cap.level, len(cap.users), now)]
        for cap in outdated:
            demands, waiting = list[int | None](), 0
            for four_tuple in list(cap.users):
                socket = self._sockets.get(four_tuple)
                demands.append(socket.demand.rate if socket else 0)
                waiting += socket is not None and socket.demand.has_outstanding
                yield
            rate = max_min_level(cap.ceil, demands) if len(demands) > 1 else cap.ceil
            cap.level = Level(now, len(demands), rate, round_seconds=8 * MTU * waiting / cap.ceil)
        for four_tuple in pending:
            self._begin_onset(four_tuple, sockets[four_tuple], now)
            yield
        for cap in outdated:
            for four_tuple in list(cap.users) if len(cap.users) > 1 else ():
                self._update_share(four_tuple, cap)
                yield

    def _process_sample(self, four_tuple: FourTuple, sample: KernelSubflow | None, now: float) -> LiveCap | None:
        """Note the demand of a subflow and continue its transition; return its cap if the cap's level matters."""
        socket, cap = self._sockets.get(four_tuple), self._planner.soft_cap(four_tuple)
        if sample is not None and sample.is_tunnel_path:
            sample = None  # a tunnel's path has no socket: its cap begins at once
        if four_tuple in self._planner.draining:
            busy = sample is not None and sample.tcp.not_sent + sample.tcp.unacked > 0
            self._changes.plan_changed |= self._planner.settle_overdue(four_tuple, busy=busy)
            return None
        if cap is None:
            if socket is not None:
                self._process_uncapped(four_tuple, socket, sample)
            return None
        if sample is None:
            self._complete(four_tuple)
            if socket is not None:
                self._drop(four_tuple, socket)
            return None
        if socket is not None and socket.state is State.PENDING and sample.read < socket.since:
            return None  # the sample is older than the cap; the next sample follows soon
        if socket is None or socket.cookie not in (0, sample.cookie):
            if socket is not None:
                self._drop(four_tuple, socket)
            socket = self._await_sample(four_tuple)
        socket.cookie = sample.cookie
        socket.had_limit |= sample.tcp.max_pacing_rate is not None
        socket.demand.count(sample, sample.read, 0.0 if cap.level is None else cap.level.round_seconds)
        if socket.state is State.TRANSITION:
            self._advance(four_tuple, socket, cap, sample, now)
            return None
        return cap if socket.state is State.PENDING or len(cap.users) > 1 else None

    def _process_uncapped(self, four_tuple: FourTuple, socket: _Socket, sample: KernelSubflow | None) -> None:
        """Continue a subflow without a cap: let it rest, release it, or forget it."""
        if socket.state not in (State.PENDING, State.RELEASING):
            return
        if sample is None or socket.cookie not in (0, sample.cookie):
            self._drop(four_tuple, socket)
        elif socket.state is State.PENDING:
            socket.cookie = sample.cookie
            socket.limit, socket.rests = NO_LIMIT, self._planner.rests(four_tuple)
            if socket.rests:
                self._settle(four_tuple)
                self._changes.limits[socket.cookie] = _resting_limit(NO_LIMIT)
            else:
                self._release(four_tuple)
                socket.sent = sample.bytes_acked
            self._changes.is_urgent |= socket.rests or sample.tcp.max_pacing_rate == 0
        else:
            socket.sent = sample.bytes_acked if socket.sent < 0 else socket.sent
            is_applied = socket.had_limit or sample.bytes_acked > socket.sent
            if is_applied and sample.tcp.max_pacing_rate is None and socket.cookie not in self._buffers:
                self._drop(four_tuple, socket)
            else:
                self._first_checks.pop(four_tuple, None)
                self._later_checks.pop(four_tuple, None)
                self._later_checks[four_tuple] = self._now + LATER_CHECK_SECONDS

    def _begin_onset(self, four_tuple: FourTuple, sample: KernelSubflow, now: float) -> None:
        member, socket = self._planner.members.get(four_tuple), self._sockets.get(four_tuple)
        cap = self._planner.soft_cap(four_tuple)
        if member is None or cap is None or socket is None:
            return  # the subflow changed between two slices
        if socket.cookie != sample.cookie or socket.state is not State.PENDING:
            return
        target = cap.ceil if cap.level is None else cap.level.rate
        # Rate 0 means that a killed daemon left the socket at rest: wake it.
        self._changes.is_urgent |= sample.tcp.max_pacing_rate == 0
        socket.transition = None
        if four_tuple in cap.pending and needs_transition(sample.tcp, target):
            transition = RateTransition.begin(sample.tcp, target, now, socket.limit.rate)
            if begin_allowance(cap, transition.start, target, now):
                socket.transition = transition
        if member.is_new:
            member.is_new = False
            self._small_bound_until[four_tuple] = now + SMALL_BOUND_SECONDS
        backlogged = socket.transition is not None or socket.demand.rate is None
        self._buffers.grant(socket.cookie, target, backlogged=backlogged)
        if socket.transition is not None:
            socket.state, socket.since, socket.sent = State.TRANSITION, now, _sent_bytes(sample)
            self._advance(four_tuple, socket, cap, sample, now)
            return
        self._set_limit(socket, self._limit_for(four_tuple, target))
        self._update_rest(four_tuple)
        self._complete(four_tuple)

    def _advance(self, four_tuple: FourTuple, socket: _Socket, cap: LiveCap, sample: KernelSubflow, now: float) -> None:
        transition = socket.transition
        assert transition is not None
        if not transition.is_capped:
            sent = _sent_bytes(sample)
            octets, socket.sent = max(0, sent - socket.sent), sent
            if not spend_allowance(cap, octets, now):
                self._set_limit(socket, SocketLimit(transition.target))
                self._complete(four_tuple)
                return
        self._set_limit(socket, transition.step(now, sample.tcp.not_sent))
        if transition.is_capped:
            self._changes.plan_changed |= self._planner.complete(four_tuple)
        if transition.is_done:
            self._settle(four_tuple)
            self._update_rest(four_tuple)

    def _update_share(self, four_tuple: FourTuple, cap: LiveCap) -> None:
        socket = self._sockets.get(four_tuple)
        if socket is None or socket.state is not State.SETTLED or cap.level is None:
            return
        level, previous = cap.level.rate, socket.limit.rate
        has_grown = False
        if socket.demand.rate is None or socket.cookie in self._buffers:
            has_grown = self._buffers.grant(socket.cookie, level, backlogged=True)
        if has_grown or previous is None or abs(level - previous) > MIN_LEVEL_CHANGE * previous:
            self._set_limit(socket, self._limit_for(four_tuple, level))

    def _await_sample(self, four_tuple: FourTuple) -> _Socket:
        socket = self._sockets.get(four_tuple)
        if socket is None:
            socket = self._sockets[four_tuple] = _Socket(State.PENDING, self._now)
        elif socket.state is not State.PENDING:
            socket.state, socket.since = State.PENDING, self._now
            self._first_checks.pop(four_tuple, None)
            self._later_checks.pop(four_tuple, None)
        self._urgent[four_tuple] = None
        return socket

    def _settle(self, four_tuple: FourTuple) -> None:
        """Keep the limits of the subflow's socket as they are. Forget a subflow that was never sampled."""
        self._urgent.pop(four_tuple, None)
        socket = self._sockets.get(four_tuple)
        if socket is not None and socket.state in (State.PENDING, State.TRANSITION):
            socket.state, socket.transition = State.SETTLED, None
            if not socket.cookie:
                del self._sockets[four_tuple]

    def _complete(self, four_tuple: FourTuple) -> None:
        if (member := self._planner.members.get(four_tuple)) is not None:
            member.is_new = False
        self._settle(four_tuple)
        self._changes.plan_changed |= self._planner.complete(four_tuple)

    def _release(self, four_tuple: FourTuple) -> None:
        """Lift the limits of the subflow's socket. A socket that may only have initial options is sampled first."""
        socket = self._sockets.get(four_tuple)
        self._small_bound_until.pop(four_tuple, None)
        if socket is not None and socket.cookie:
            if socket.state is State.RELEASING:
                return
            self._urgent.pop(four_tuple, None)
            self._changes.is_urgent |= socket.rests
            self._changes.limits[socket.cookie] = SocketLimit(send_buffer=self._buffers.final_size(socket.cookie))
            socket.state, socket.since, socket.transition = State.RELEASING, self._now, None
            socket.limit, socket.rests, socket.sent = NO_LIMIT, False, -1
            self._first_checks[four_tuple] = self._now + FIRST_CHECK_SECONDS
        elif socket is not None or self._planner.joins_rest:
            self._await_sample(four_tuple)

    def _drop(self, four_tuple: FourTuple, socket: _Socket) -> None:
        for table in (self._sockets, self._urgent, self._first_checks, self._later_checks):
            table.pop(four_tuple, None)
        if socket.cookie:
            self._buffers.pop(socket.cookie, None)
            self._changes.dropped.append(socket.cookie)

    def _take_changes(self) -> SocketChanges:
        changes, self._changes = self._changes, SocketChanges()
        return changes

    def _limit_for(self, four_tuple: FourTuple, rate: int) -> SocketLimit:
        return SocketLimit(rate, unsent_bound(rate) if four_tuple in self._small_bound_until else None)

    def _end_small_bounds(self) -> None:
        for four_tuple in _due_subflows(self._small_bound_until, self._now):
            del self._small_bound_until[four_tuple]
            socket = self._sockets.get(four_tuple)
            if socket is not None and socket.state is not State.TRANSITION and socket.limit.rate is not None:
                self._set_limit(socket, SocketLimit(socket.limit.rate))

    def _set_limit(self, socket: _Socket, limit: SocketLimit) -> None:
        limit = replace(limit, send_buffer=self._buffers.get(socket.cookie))
        if socket.limit != limit:
            socket.limit = limit
            self._changes.limits[socket.cookie] = _resting_limit(limit) if socket.rests else limit

    def _update_rest(self, four_tuple: FourTuple) -> None:
        socket, rests = self._sockets.get(four_tuple), self._planner.rests(four_tuple)
        if socket is None or socket.rests is rests or socket.limit.rate is None:
            return
        socket.rests = rests
        self._changes.limits[socket.cookie] = _resting_limit(socket.limit) if rests else socket.limit
        self._changes.is_urgent = True
