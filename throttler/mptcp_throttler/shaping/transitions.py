"""The sockets of one planner's soft caps: which limits each is to have, from samples of them. Pure.

Follows the planner: a subflow that comes to a cap is first sampled, then capped at once where it sends little, or
after a rate transition. The pacing rate of the users of a shared cap is held at its max-min level, computed once per
cap and sample from what all of them demand. What is set on a socket is lifted when its subflow leaves the cap; a
socket with nothing in flight takes that with its next data, so that it is sampled ever more seldom until it has.

A socket is known by its cookie: a client that uses a port again has another socket under the same four-tuple, which
begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.shaping.model import NO_LIMIT, SocketLimit
from mptcp_throttler.shaping.plan import Cap, Planner
from mptcp_throttler.shaping.rate_transition import Phase, RateTransition, needs_transition
from mptcp_throttler.shaping.send_buffers import SendBuffers
from mptcp_throttler.shaping.share import max_min_level

STEP_SECONDS = 0.02
"""Between two samples of a subflow in transition."""
SHARE_SECONDS = 0.5
"""Between two samples of those that share a cap."""
IGNORED_SECONDS = 0.25
"""A socket that shows no limit so long after one was set, with data on the way, cannot be limited."""
SETTLED = 0.05
"""A new level that differs by a smaller share is not set."""
MAX_UNSAMPLED_SECONDS = 3.0
"""A subflow whose socket could not be sampled for so long is capped as it is."""
FIRST_RECHECK_SECONDS, MAX_RECHECK_SECONDS = 0.5, 64.0
"""Until a released socket is sampled again: twice as long each time."""
SLICE = 128
"""Sockets looked through at a time: less than a millisecond."""
MAX_MOVED = 1024
"""Moves of the planner followed at a time."""


@dataclass(slots=True)
class _Socket:
    cookie: int
    limit: SocketLimit = NO_LIMIT
    transition: RateTransition | None = None
    acked: int = 0
    """Bytes, when last counted."""
    counted: float = 0.0
    demand: int | None = 0
    """Bits/s that it takes while nothing waits; None while something does."""


@dataclass(slots=True)
class _Release:
    cookie: int
    due: float
    pause: float = FIRST_RECHECK_SECONDS


class _Level(NamedTuple):
    computed: float
    users: int
    rate: int
    """Bits/s of each user."""


@dataclass(slots=True)
class Limits:
    """What is to be done to sockets, by cookie."""

    wanted: dict[int, SocketLimit]
    forgotten: list[int]
    """Sockets on which nothing is to be set any more."""
    planned: bool = False
    """The plan changed."""


class Transitions:
    """One planner's. Times are monotonic seconds."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._sockets: dict[FourTuple, _Socket] = {}
        self._unsampled: dict[FourTuple, float] = {}
        """Subflows that came to a cap and were not sampled since, and when they came."""
        self._under_way: set[FourTuple] = set()
        self._released: dict[FourTuple, _Release] = {}
        self._buffers = SendBuffers()
        self._levels: dict[int, _Level] = {}
        """By the minor number of the cap's class."""
        self._now = 0.0
        self._stopped = False
        planner.soft_caps = True

    @property
    def releasing(self) -> int:
        """How many sockets have not taken their limit back."""
        return len(self._released)

    def follow(self, now: float) -> Limits:
        """Take some of the planner's moves; return the limits that are lifted."""
        self._now = now
        result = Limits({}, [])
        for four_tuple in self._planner.take_moved(MAX_MOVED):
            if self._planner.soft_cap(four_tuple) is None:
                self._release(four_tuple, now, result)
            else:
                self._unsampled.setdefault(four_tuple, now)
        return result

    def adopt(self, subflows: Iterable[KernelSubflow], now: float) -> Limits:
        """Take over limits that a killed daemon left on sockets: those that no cap explains are lifted."""
        result = Limits({}, [])
        for subflow in subflows:
            if subflow.tcp is None or subflow.tcp.max_pacing_rate is None:
                continue
            self._sockets[subflow.four_tuple] = _Socket(subflow.cookie)
            if self._planner.soft_cap(subflow.four_tuple) is None:
                self._release(subflow.four_tuple, now, result)
            else:
                self._unsampled.setdefault(subflow.four_tuple, now)
        return result

    def release_all(self, now: float) -> Limits:
        """Lift every limit, at a stop."""
        self._planner.soft_caps = False
        self._now, self._stopped = now, True
        result = Limits({}, [])
        self._unsampled.clear()
        for four_tuple in list(self._sockets):
            self._release(four_tuple, now, result)
        for release in self._released.values():
            release.due, release.pause = now, STEP_SECONDS
        return result

    def watched(self) -> Collection[FourTuple]:
        """Return the subflows whose demand counts."""
        return [four_tuple for cap in self._planner.shared_soft_caps() for four_tuple in cap.users]

    def watches_any(self) -> bool:
        """Tell whether :meth:`watched` has any, without making the list."""
        return next(self._planner.shared_soft_caps(), None) is not None

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows to sample every ``STEP_SECONDS``."""
        due = [each for each, release in self._released.items() if release.due <= self._now]
        return [*self._unsampled, *self._under_way, *due]

    def missed(self, now: float) -> Limits:
        """Go on without samples: no subflow stays uncapped because its socket cannot be sampled."""
        result = Limits({}, [])
        for four_tuple, since in list(self._unsampled.items()):
            if now - since > MAX_UNSAMPLED_SECONDS:
                self._complete(four_tuple, result)
        for four_tuple in list(self._under_way):
            transition = self._sockets[four_tuple].transition
            if transition is not None and now - transition.began > MAX_UNSAMPLED_SECONDS:
                self._complete(four_tuple, result)
        return result

    def refused(self) -> Limits:
        """The kernel took no limits: what waits for a transition is capped as it is."""
        result = Limits({}, [])
        for four_tuple in [*self._unsampled, *self._under_way, *self._planner.pending()]:
            self._complete(four_tuple, result)
        return result

    def observe(
        self, asked: Collection[FourTuple], sockets: Mapping[FourTuple, KernelSubflow], now: float
    ) -> Iterator[Limits]:
        """Take the samples of those *asked* for, of which those without a socket are missing from *sockets*.

        Yields what is to be done in slices, so that the caller can do something else in between.
        """
        self._now = now
        result, caps, unsampled = Limits({}, []), dict[int, Cap](), list[FourTuple]()
        for number, four_tuple in enumerate(asked, 1):
            self._take(four_tuple, sockets.get(four_tuple), unsampled, caps, result, now)
            if not number % SLICE:
                yield result
                result = Limits({}, [])
        fresh = {minor: cap for minor, cap in caps.items() if self._is_due(cap, now)}
        for minor, cap in fresh.items():
            users, demands = list(cap.users), list[int | None]()
            for number, four_tuple in enumerate(users, 1):
                demands.append(known.demand if (known := self._sockets.get(four_tuple)) else 0)
                if not number % SLICE:
                    yield result
                    result = Limits({}, [])
            rate = max_min_level(cap.ceil, demands) if len(users) > 1 else cap.ceil
            self._levels[minor] = _Level(now, len(users), rate)
        levels = {minor: self._levels[minor].rate for minor in caps}
        for number, four_tuple in enumerate(unsampled, 1):
            self._begin(four_tuple, sockets[four_tuple], levels, result, now)
            if not number % SLICE:
                yield result
                result = Limits({}, [])
        for minor, cap in fresh.items():
            for number, four_tuple in enumerate(list(cap.users) if len(cap.users) > 1 else (), 1):
                self._share(four_tuple, levels[minor], result)
                if not number % SLICE:
                    yield result
                    result = Limits({}, [])
        yield result

    def _is_due(self, cap: Cap, now: float) -> bool:
        """Tell whether the level of *cap* is to be computed anew: with many users that is not for every new one."""
        last, users = self._levels.get(cap.minor), len(cap.users)
        return last is None or now - last.computed >= SHARE_SECONDS / 2 or abs(users - last.users) * 10 > last.users

    def _take(
        self,
        four_tuple: FourTuple,
        sample: KernelSubflow | None,
        unsampled: list[FourTuple],
        caps: dict[int, Cap],
        result: Limits,
        now: float,
    ) -> None:
        """Note the demand of a subflow, find its cap, and go on with its transition."""
        if four_tuple in self._released:
            self._check_release(four_tuple, sample, result, now)
        known = self._sockets.get(four_tuple)
        cap = self._cap(four_tuple)
        if cap is None:
            self._unsampled.pop(four_tuple, None)
            return
        if sample is None or sample.tcp is None:
            if known is not None:
                del self._sockets[four_tuple]
                self._forget(known.cookie, result)
            self._complete(four_tuple, result)
            return
        if known is None or known.cookie != sample.cookie:
            if known is not None:
                self._forget(known.cookie, result)
            known = self._sockets[four_tuple] = _Socket(sample.cookie)
            self._under_way.discard(four_tuple)
            self._unsampled.setdefault(four_tuple, now)
        self._count(known, sample, now)
        if four_tuple in self._unsampled:
            unsampled.append(four_tuple)
            caps[cap.minor] = cap
        elif known.transition is not None:
            self._go_on(four_tuple, known, known.transition, sample, result, now)
        elif len(cap.users) > 1:
            caps[cap.minor] = cap

    @staticmethod
    def _count(known: _Socket, sample: KernelSubflow, now: float) -> None:
        assert sample.tcp is not None
        span = now - known.counted
        if known.counted and span >= SHARE_SECONDS / 2:
            rate = round(8 * max(0, sample.bytes_acked - known.acked) / span)
            known.demand = rate
        if not known.counted or span >= SHARE_SECONDS / 2:
            known.acked, known.counted = sample.bytes_acked, now
        if sample.tcp.not_sent:
            known.demand = None
        elif known.demand is None:
            known.demand = 0

    def _begin(
        self, four_tuple: FourTuple, sample: KernelSubflow, levels: Mapping[int, int], result: Limits, now: float
    ) -> None:
        cap, known = self._planner.soft_cap(four_tuple), self._sockets.get(four_tuple)
        if cap is None or sample.tcp is None or known is None or known.cookie != sample.cookie:
            return  # it changed between two slices
        if self._unsampled.pop(four_tuple, None) is None:
            return
        target = levels.get(cap.minor, cap.ceil)
        abrupt = four_tuple in cap.pending and needs_transition(sample.tcp, target)
        self._buffers.grant(known.cookie, target, backlogged=abrupt or known.demand is None)
        if abrupt:
            known.transition = RateTransition.of(sample.tcp, target, now, known.limit.rate)
            self._under_way.add(four_tuple)
            self._go_on(four_tuple, known, known.transition, sample, result, now)
            return
        known.transition = None
        self._limit(known, SocketLimit(target), result)
        self._complete(four_tuple, result)

    def _go_on(
        self,
        four_tuple: FourTuple,
        known: _Socket,
        transition: RateTransition,
        sample: KernelSubflow,
        result: Limits,
        now: float,
    ) -> None:
        assert sample.tcp is not None
        self._limit(known, transition.step(now, sample.tcp.not_sent), result)
        ignored = (
            transition.phase is Phase.RAMP
            and sample.tcp.max_pacing_rate is None
            and now - transition.ramp_began > IGNORED_SECONDS + 2e-6 * sample.tcp.rtt
        )
        if ignored:
            # If it was only slow to take one, this is the one that it shall have.
            self._limit(known, SocketLimit(transition.target), result)
        if ignored or transition.capped:
            result.planned |= self._planner.complete(four_tuple)
        if ignored or transition.phase is Phase.DONE:
            known.transition = None
            self._under_way.discard(four_tuple)

    def _complete(self, four_tuple: FourTuple, result: Limits) -> None:
        self._unsampled.pop(four_tuple, None)
        self._under_way.discard(four_tuple)
        known = self._sockets.get(four_tuple)
        if known is not None:
            known.transition = None
        result.planned |= self._planner.complete(four_tuple)

    def _cap(self, four_tuple: FourTuple) -> Cap | None:
        return None if self._stopped else self._planner.soft_cap(four_tuple)

    def forget_levels(self) -> None:
        """A policy came into force: minor numbers may be of other caps."""
        self._levels.clear()

    def _share(self, four_tuple: FourTuple, level: int, result: Limits) -> None:
        known = self._sockets.get(four_tuple)
        if known is None or known.transition is not None or four_tuple in self._unsampled:
            return
        has_one = self._buffers.of(known.cookie) is not None
        given = (known.demand is None or has_one) and self._buffers.grant(known.cookie, level, backlogged=True)
        before = known.limit.rate
        if given or before is None or abs(level - before) > SETTLED * before:
            self._limit(known, SocketLimit(level), result)

    def _limit(self, known: _Socket, limit: SocketLimit, result: Limits) -> None:
        limit = replace(limit, send_buffer=self._buffers.of(known.cookie))
        if known.limit != limit:
            known.limit = limit
            result.wanted[known.cookie] = limit

    def _forget(self, cookie: int, result: Limits) -> None:
        """A socket is gone."""
        self._buffers.gone(cookie)
        result.forgotten.append(cookie)

    def _release(self, four_tuple: FourTuple, now: float, result: Limits) -> None:
        self._unsampled.pop(four_tuple, None)
        self._under_way.discard(four_tuple)
        known = self._sockets.pop(four_tuple, None)
        if known is not None:
            result.wanted[known.cookie] = replace(NO_LIMIT, send_buffer=self._buffers.uncapped(known.cookie))
            self._released[four_tuple] = _Release(known.cookie, now + FIRST_RECHECK_SECONDS)

    def _check_release(self, four_tuple: FourTuple, sample: KernelSubflow | None, result: Limits, now: float) -> None:
        """Forget a socket that has taken its limit back, is gone, or is capped again."""
        release = self._released[four_tuple]
        if sample is None or sample.tcp is None or sample.cookie != release.cookie:
            del self._released[four_tuple]
            self._forget(release.cookie, result)
        elif self._cap(four_tuple) is not None:
            del self._released[four_tuple]
        elif sample.tcp.max_pacing_rate is None and (self._stopped or self._buffers.of(release.cookie) is None):
            del self._released[four_tuple]
            result.forgotten.append(release.cookie)
        elif release.due <= now:
            release.pause = min(MAX_RECHECK_SECONDS, 2 * release.pause)
            release.due = now + release.pause
