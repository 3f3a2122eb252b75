"""The sockets of one planner's soft caps: which limits each is to have, from samples of them. Pure.

Follows the planner: a subflow that comes to a cap is first sampled, then capped at once where it sends little, or
after a rate transition; one that began under its cap has its entry already, and little may wait on it for a while.
What passes by the class is charged to the cap (``debt``), and transitions share an ``allowance``. The pacing rate of
the users of a shared cap is held at its max-min level, computed once per cap and sample from what all of them demand.
What is set on a socket is lifted when its subflow leaves the cap; a socket with nothing in flight takes that with its
next data (``releases``).

A socket is known by its cookie: a client that uses a port again has another socket under the same four-tuple, which
begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.shaping import debt
from mptcp_throttler.shaping.allowance import Allowances
from mptcp_throttler.shaping.birth import held
from mptcp_throttler.shaping.cap import Cap
from mptcp_throttler.shaping.debt import Debts
from mptcp_throttler.shaping.model import MTU, NO_LIMIT, SocketLimit
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.shaping.rate_transition import Phase, RateTransition, needs_transition
from mptcp_throttler.shaping.releases import Limits, Releases
from mptcp_throttler.shaping.send_buffers import SendBuffers
from mptcp_throttler.shaping.share import Demand, Level, is_due, max_min_level, turn_seconds

STEP_SECONDS = 0.02
"""Between two samples of a subflow in transition."""
IGNORED_SECONDS = 0.25
"""A socket that shows no limit so long after one was set, with data on the way, cannot be limited."""
SETTLED = 0.05
"""A new level that differs by a smaller share is not set."""
MAX_UNSAMPLED_SECONDS = 3.0
"""A subflow whose socket could not be sampled for so long is capped as it is."""
SHORT_SECONDS = 3.0
"""For how long next to nothing may wait on a subflow that began under its cap. A longer download is better off as after
a transition: the scheduler leaves the other paths alone while this one would be free sooner, so that with little here
little waits there, too, and a path with a longer RTT may run dry."""
OVERHEAD_BYTES = 400
"""Of a subflow that begins and ends: the IP packets of handshakes and ends, which carry no data and pass no class."""
SLICE = 128
"""Sockets looked through at a time: less than a millisecond."""
MAX_MOVED = 1024
"""Moves of the planner followed at a time."""


@dataclass(slots=True)
class _Socket:
    cookie: int
    limit: SocketLimit = NO_LIMIT
    rests: bool = False
    """It has 0 in place of that rate."""
    limited: bool = False
    """It was seen with a limit."""
    transition: RateTransition | None = None
    sent: int = 0
    """Bytes, at the last step of its transition."""
    charged: bool = False
    """What it sends in its transition is charged to the cap, which held for others before."""
    demand: Demand = field(default_factory=Demand)


def _sent(sample: KernelSubflow) -> int:
    """Return how many bytes have left, retransmissions aside."""
    assert sample.tcp is not None
    return sample.bytes_acked + sample.tcp.unacked * sample.tcp.mss


def _at_rest(limit: SocketLimit) -> SocketLimit:
    """Return *limit* for a subflow that rests. Until the scheduler's average has come to 0 it assigns some more: a
    segment at a time."""
    return replace(limit, rate=0, not_sent=1)


class Transitions:
    """One planner's. Times are monotonic seconds."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._sockets: dict[FourTuple, _Socket] = {}
        self._unsampled: dict[FourTuple, float] = {}
        """Subflows that came to a cap and were not sampled since, and when they came."""
        self._under_way: set[FourTuple] = set()
        self._short: dict[FourTuple, float] = {}
        """Subflows that began under their caps, and until when they are taken for short; the oldest first."""
        self._buffers = SendBuffers()
        self._released = Releases(self._buffers)
        self._debts = Debts()
        self._allowances = Allowances()
        self._levels: dict[int, Level] = {}
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
        self._end_of_short(now, result)
        for minor, owing in self._debts.changed(now).items():
            self._levels.pop(minor, None)
            result.planned |= self._planner.lower(minor, debt.SHARE if owing else None)
        for four_tuple in self._planner.take_moved(MAX_MOVED):
            if self._planner.lingers(four_tuple):
                # It is held to the end of what was assigned to it.
                self._unsampled.pop(four_tuple, None)
                self._under_way.discard(four_tuple)
            elif self._planner.soft_cap(four_tuple) is not None:
                self._unsampled.setdefault(four_tuple, now)
                self._rest(four_tuple, result)
            elif self._planner.rests(four_tuple):
                self._unsampled.setdefault(four_tuple, now)
            else:
                self._release(four_tuple, now, result)
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
        self._released.hurry(now, STEP_SECONDS)
        return result

    def watched(self) -> Collection[FourTuple]:
        """Return the subflows whose demand counts."""
        return [four_tuple for cap in self._planner.shared_soft_caps() for four_tuple in cap.users]

    def watches_any(self) -> bool:
        """Tell whether :meth:`watched` has any, without making the list."""
        return next(self._planner.shared_soft_caps(), None) is not None

    def urgent(self) -> Collection[FourTuple]:
        """Return the subflows to sample every ``STEP_SECONDS``."""
        due = self._released.due(self._now)
        return [*self._unsampled, *self._under_way, *due, *self._planner.overdue(SLICE)]

    def missed(self, now: float) -> Limits:
        """Go on without samples: no subflow stays uncapped because its socket cannot be sampled."""
        result = Limits({}, [])
        for four_tuple in self._planner.overdue(SLICE):
            result.planned |= self._planner.settle_overdue(four_tuple, busy=False)
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
        fresh = {minor: cap for minor, cap in caps.items() if is_due(self._levels.get(minor), len(cap.users), now)}
        for minor, cap in fresh.items():
            users, demands, waiting = list(cap.users), list[int | None](), 0
            for number, four_tuple in enumerate(users, 1):
                known = self._sockets.get(four_tuple)
                demands.append(known.demand.rate if known else 0)
                waiting += known is not None and known.demand.waits
                if not number % SLICE:
                    yield result
                    result = Limits({}, [])
            rate = max_min_level(cap.ceil, demands) if len(users) > 1 else cap.ceil
            self._levels[minor] = Level(now, len(users), rate, turn_seconds(cap.ceil, waiting, MTU))
        # What changes a cap between two slices forgets its level.
        levels = {minor: level.rate for minor in caps if (level := self._levels.get(minor)) is not None}
        for number, four_tuple in enumerate(unsampled, 1):
            self._begin(four_tuple, sockets[four_tuple], levels, result, now)
            if not number % SLICE:
                yield result
                result = Limits({}, [])
        for minor, cap in fresh.items():
            for number, four_tuple in enumerate(list(cap.users) if len(cap.users) > 1 and minor in levels else (), 1):
                self._share(four_tuple, cap, levels[minor], result)
                if not number % SLICE:
                    yield result
                    result = Limits({}, [])
        yield result

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
            self._released.check(four_tuple, sample, now, result, capped=self._cap(four_tuple) is not None)
        if self._planner.lingers(four_tuple):
            tcp = None if sample is None else sample.tcp
            busy = tcp is not None and tcp.not_sent + tcp.unacked > 0
            result.planned |= self._planner.settle_overdue(four_tuple, busy=busy)
            return
        known = self._sockets.get(four_tuple)
        cap = self._cap(four_tuple)
        if cap is not None and sample is not None and sample.read < self._unsampled.get(four_tuple, 0.0):
            return  # it came to the cap since then, and is looked up soon
        if cap is None:
            came = self._unsampled.pop(four_tuple, None)
            if came is not None and sample is not None and not self._stopped and self._planner.rests(four_tuple):
                self._sockets[four_tuple] = _Socket(sample.cookie, rests=True)
                result.wanted[sample.cookie] = _at_rest(NO_LIMIT)
                result.at_once = True
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
        level = self._levels.get(cap.minor)
        known.limited |= sample.tcp.max_pacing_rate is not None
        known.demand.count(sample, sample.read, 0.0 if level is None else level.turn)
        if four_tuple in self._unsampled:
            unsampled.append(four_tuple)
            caps[cap.minor] = cap
        elif known.transition is not None:
            self._go_on(four_tuple, known, known.transition, sample, result, now)
        elif len(cap.users) > 1:
            caps[cap.minor] = cap

    def _begin(
        self, four_tuple: FourTuple, sample: KernelSubflow, levels: Mapping[int, int], result: Limits, now: float
    ) -> None:
        cap, known = self._planner.soft_cap(four_tuple), self._sockets.get(four_tuple)
        if cap is None or sample.tcp is None or known is None or known.cookie != sample.cookie:
            return  # it changed between two slices
        came = self._unsampled.pop(four_tuple, None)
        if came is None:
            return
        target = levels.get(cap.minor, cap.ceil)
        # A daemon that was killed left it at rest.
        result.at_once |= sample.tcp.max_pacing_rate == 0
        abrupt = four_tuple in cap.pending and needs_transition(sample.tcp, target)
        if abrupt:
            transition = RateTransition.of(sample.tcp, target, now, known.limit.rate)
            abrupt = self._allowances.begin(cap.minor, transition.start, target, now)
        if four_tuple in cap.young:
            cap.young.discard(four_tuple)
            self._short[four_tuple] = now + SHORT_SECONDS
            # What it sent before its entry was there; since then the class let some of it pass.
            escaped = max(0.0, _sent(sample) - cap.ceil / 8 * max(0.0, sample.read - came))
            if self._planner.began_in_class(four_tuple):
                escaped = 0.0
            self._debts.charge(cap.minor, cap.wanted.ceil, escaped + OVERHEAD_BYTES, now)
        self._buffers.grant(known.cookie, cap.usual(target), backlogged=abrupt or known.demand.rate is None)
        if abrupt:
            known.transition, known.sent = transition, _sent(sample)
            known.charged = len(cap.pending) < len(cap.users)
            self._under_way.add(four_tuple)
            self._go_on(four_tuple, known, known.transition, sample, result, now)
            return
        known.transition = None
        self._limit(known, self._held(four_tuple, target), result)
        self._rest(four_tuple, result)
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
        if not transition.capped and not self._pay(four_tuple, known, sample, now):
            self._limit(known, SocketLimit(transition.target), result)
            self._complete(four_tuple, result)
            return
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
            self._rest(four_tuple, result)

    def _pay(self, four_tuple: FourTuple, known: _Socket, sample: KernelSubflow, now: float) -> bool:
        """Take from the allowance what a subflow sent in its transition; return whether anything is left of it."""
        cap = self._planner.soft_cap(four_tuple)
        if cap is None:
            return True
        sent = _sent(sample)
        octets, known.sent = max(0, sent - known.sent), sent
        if known.charged:
            self._debts.charge(cap.minor, cap.wanted.ceil, octets, now)
        return self._allowances.spend(cap.minor, octets, now)

    def _held(self, four_tuple: FourTuple, rate: int) -> SocketLimit:
        """Return the limits of a subflow under its cap."""
        return held(rate) if four_tuple in self._short else SocketLimit(rate)

    def _end_of_short(self, now: float, result: Limits) -> None:
        due = list(takewhile(lambda each: self._short[each] <= now, islice(self._short, MAX_MOVED)))
        for four_tuple in due:
            del self._short[four_tuple]
            known = self._sockets.get(four_tuple)
            if known is not None and known.transition is None and known.limit.rate is not None:
                self._limit(known, SocketLimit(known.limit.rate), result)

    def _complete(self, four_tuple: FourTuple, result: Limits) -> None:
        if (cap := self._planner.soft_cap(four_tuple)) is not None:
            cap.young.discard(four_tuple)
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
        self._allowances.forget()
        for minor in self._debts.forgive():
            self._planner.lower(minor, None)

    def _share(self, four_tuple: FourTuple, cap: Cap, level: int, result: Limits) -> None:
        known = self._sockets.get(four_tuple)
        if known is None or known.transition is not None or four_tuple in self._unsampled:
            return
        has_one = self._buffers.of(known.cookie) is not None
        given = (known.demand.rate is None or has_one) and self._buffers.grant(
            known.cookie, cap.usual(level), backlogged=True
        )
        before = known.limit.rate
        if given or before is None or abs(level - before) > SETTLED * before:
            self._limit(known, self._held(four_tuple, level), result)

    def _limit(self, known: _Socket, limit: SocketLimit, result: Limits) -> None:
        limit = replace(limit, send_buffer=self._buffers.of(known.cookie))
        if known.limit != limit:
            known.limit = limit
            result.wanted[known.cookie] = _at_rest(limit) if known.rests else limit

    def _rest(self, four_tuple: FourTuple, result: Limits) -> None:
        """Have a socket rest, or come back, as the planner says."""
        known, rests = self._sockets.get(four_tuple), self._planner.rests(four_tuple)
        if known is None or known.rests is rests or known.limit.rate is None:
            return
        known.rests = rests
        result.wanted[known.cookie] = _at_rest(known.limit) if rests else known.limit
        result.at_once = True

    def _forget(self, cookie: int, result: Limits) -> None:
        """A socket is gone."""
        self._buffers.gone(cookie)
        result.forgotten.append(cookie)

    def _release(self, four_tuple: FourTuple, now: float, result: Limits) -> None:
        unsampled = self._unsampled.pop(four_tuple, None) is not None
        self._under_way.discard(four_tuple)
        self._short.pop(four_tuple, None)
        known = self._sockets.pop(four_tuple, None)
        if known is not None:
            result.at_once |= known.rests
            self._released.begin(four_tuple, known.cookie, known.limited, now, result)
        elif (unsampled or self._planner.births_rest) and not self._stopped:
            self._released.await_sample(four_tuple, now)
