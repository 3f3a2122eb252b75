"""Lets a subflow rest that would cost the other paths more than it carries. Pure.

The scheduler gives a subflow pieces of up to 64 KB, and the data that the other subflows send meanwhile wait for them
at the head of the line: at 128 kbit/s for four seconds, in which a path of 50 Mbit/s has filled the connection's
buffers and stops. So a capped subflow rests while the others of its connection carry ``ratio`` times of what its cap
leaves it: no more than that share of the rate is lost. It comes back when they have gone, when it may have more than
before, or when they have data to send and carry too little. docs/soft-start.md has the measurements.

Where the policy says so (``rest_slow_paths``) a subflow without a cap rests, too, if by what it carries it is as slow,
or if all of them together carry less than the others did in their best moments, between which they wait for it. If the
others then carry no more than all did before, it comes back. How fast its path is now nobody knows while it rests: it
is tried again after a while, ever more seldom.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mptcp_common.units import format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Onset, Policy
from mptcp_throttler.policy.verdict import ScopeKey, Verdict, joined
from mptcp_throttler.shaping.birth import REST_AT_ONCE
from mptcp_throttler.stages.stage import SLICE, Outcome, Sampled, Samples, Stage

RATIO: Final = 32
"""Of the rate of the other subflows to what the cap leaves it: from there on it rests. Below half of that no longer."""
RATIO_WITHOUT_BUFFERS: Final = 12
"""Where the kernel allows capped sockets no larger send buffers (``shaping.onset.share``)."""
HIGHEST_CAP: Final = 5_000_000
"""Bits/s. From here on one piece leaves within 0.1 s, which the connection's buffers bridge."""
WAKE_WINDOWS: Final = 2
"""Windows in which the others carried too little, though they had data to send."""
WINDOW: Final = 0.35
"""Seconds over which rates are taken, at least: two samples."""
FLOWING: Final = 100_000
"""Bits/s, of a connection that uses its cap."""
SLOW_RATIO: Final = 12
"""As ``RATIO``, of the rate of the others to that of a subflow without a cap."""
HELD_UP: Final = 1.4
"""Times of what the connection carries the others could deliver, and they wait for a path that has less than a quarter
of that."""
RECOVERY: Final = 6.0
"""Seconds from its rest on in which what was sent on a slow path may still be on its way."""
NEW: Final = 0.4
"""The share of the last window in the mean of all."""
FADING: Final = 0.95
"""What is left of the best window's rate with each further one."""
SLOW_AFTER: Final = 3
"""Windows in which it was so: a slow start takes some round trips."""
FIRST_REST, LONGEST_REST = 30.0, 600.0
"""Seconds after which a slow path is tried again: twice as long each time."""


@dataclass(slots=True)
class _Slow:
    """A subflow without a cap that may be too slow."""

    windows: int = 0
    """In how many it was, one after the other."""
    waited: bool = True
    """It had data to send at every sample of the window."""
    rate: float = 0.0
    """Bits/s, when it came to rest."""
    total: float = 0.0
    """Of all subflows, then."""
    rested: float = 0.0
    """When that was."""
    until: float | None = None
    """When it is tried again; None while it does not rest."""
    rest: float = FIRST_REST


@dataclass(slots=True)
class _Resting:
    """A connection of which a subflow may rest."""

    capped: dict[FourTuple, tuple[ScopeKey, int]] = field(default_factory=dict)
    """Scope and rate, bits/s, of each low cap."""
    others: tuple[FourTuple, ...] = ()
    slow_ones: dict[FourTuple, _Slow] = field(default_factory=dict)
    """Of these, those that may rest."""
    resting: dict[FourTuple, int] = field(default_factory=dict)
    """And the rate of the cap under which each came to rest."""
    read: float | None = None
    """When the window began; None before the first sample."""
    delivered: dict[FourTuple, int] = field(default_factory=dict)
    """Bytes of the others, then."""
    able: dict[FourTuple, float] = field(default_factory=dict)
    """Bits/s, what each of the others carried in its best one of the last windows."""
    total: float = 0.0
    """Bits/s of all, the mean of the last windows."""
    flows: bool = False
    waited: bool = True
    """The others had data to send at every sample of the window."""
    slow: int = 0
    """Windows in which they had, and carried too little."""

    def subflows(self) -> tuple[FourTuple, ...]:
        return (*self.others, *self.capped)


class RestStage(Stage):
    """The rests of one daemon."""

    interval = period = 0.2
    """Seconds."""

    def __init__(self) -> None:
        self.possible = False
        """The sockets can be made to rest, and to come back."""
        self.ratio = RATIO
        self._connections: dict[int, _Resting] = {}
        self._sampled = Sampled()
        self._flowing: dict[ScopeKey, int] = {}
        """How many connections use each low cap."""
        self._urgent: set[int] = set()
        """Tokens of connections on which data flow or that are new."""
        self._dry_run = self._rest_slow_paths = False

    def set_policy(self, policy: Policy) -> None:
        """Take *policy* as the one in force."""
        self._dry_run, self._rest_slow_paths = policy.dry_run, policy.rest_slow_paths

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        """Return *verdicts* with those marked whose subflows rest."""
        del now
        token = connection.token
        if not self._looks_at(verdicts):
            self.forget(token)
            return verdicts
        # While there is a regular subflow the scheduler takes no backup one, though the regular one rests.
        backup = {each.four_tuple for each in connection.subflows if each.backup}
        down = [each for each in verdicts if _is_down(each) and each.four_tuple not in backup]
        capped = {each.four_tuple: low for each in down if (low := _low_cap(each)) is not None}
        others = tuple([each.four_tuple for each in down if each.four_tuple not in capped])
        free = [each.four_tuple for each in down if self._rest_slow_paths and _is_free(each)]
        if not others or not (capped or (free and len(others) > 1)):
            self.forget(token)
            return verdicts
        known = self._connections.get(token)
        if known is None:
            known = self._connections[token] = _Resting()
        if known.others != others or known.capped != capped:
            self._stop_sampling(token, known)
            for each, (_, ceil) in capped.items():
                if each not in known.capped and ceil <= REST_AT_ONCE:
                    known.resting[each] = ceil
            known.others, known.capped, known.read = others, capped, None
            self._sampled.add(token, known.subflows())
            self._urgent.add(token)
        known.resting = {
            each: rate for each, rate in known.resting.items() if each in capped and capped[each][1] <= rate
        }
        known.slow_ones = {each: known.slow_ones.get(each) or _Slow() for each in free}
        slow = {each for each, one in known.slow_ones.items() if one.until is not None}
        if slow.issuperset(others):
            # Nothing else would carry what they do not.
            known.slow_ones, slow = {}, set()
        resting = slow | known.resting.keys()
        return tuple([_resting(each) if each.four_tuple in resting else each for each in verdicts])

    def _looks_at(self, verdicts: tuple[Verdict, ...]) -> bool:
        """Tell whether any of *verdicts* may be of a subflow that rests: of most connections none is."""
        if not self.possible or self._dry_run:
            return False
        return self._rest_slow_paths or any(each.throttle is not None for each in verdicts)

    def forget(self, token: int) -> None:
        """Connection *token* has ended, or has nothing that could rest."""
        known = self._connections.pop(token, None)
        if known is not None:
            self._urgent.discard(token)
            self._stop_sampling(token, known)

    def _stop_sampling(self, token: int, known: _Resting) -> None:
        self._set_flows(known, flows=False)
        self._sampled.remove(token, known.subflows())

    def _set_flows(self, known: _Resting, *, flows: bool) -> None:
        if known.flows is flows:
            return
        known.flows = flows
        for scope in {scope for scope, _ in known.capped.values()}:
            count = self._flowing.get(scope, 0) + (1 if flows else -1)
            if count:
                self._flowing[scope] = count
            else:
                del self._flowing[scope]

    def watched(self) -> Collection[FourTuple]:
        return self._sampled.four_tuples

    def urgent(self) -> Collection[FourTuple]:
        return [each for token in self._urgent for each in self._connections[token].subflows()]

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        """Take *samples*; yield the connections of which a subflow comes to rest, or back."""
        changed: list[int] = []
        for number, token in enumerate(self._sampled.tokens(samples, self._connections), 1):
            known = self._connections.get(token)
            if known is None:
                continue  # it ended between two slices
            if self._observe(known, samples.sockets):
                changed.append(token)
            if known.read is not None and not known.flows:
                self._urgent.discard(token)
            elif known.flows:
                self._urgent.add(token)
            if not number % SLICE:
                yield Outcome(changed)
                changed = []
        yield Outcome(changed)

    def _observe(self, known: _Resting, sockets: Mapping[FourTuple, KernelSubflow]) -> bool:
        """Take the samples of one connection; return whether a subflow is to rest that did not, or no longer."""
        there = {each: sockets[each] for each in known.others if each in sockets}
        if not there:
            return False
        read = max(each.read for each in there.values())
        if known.read is None:
            self._begin_window(known, there, read)
            return False
        known.waited &= any(map(_waits, there.values()))
        for each, slow in known.slow_ones.items():
            slow.waited &= _waits(there.get(each))
        span = read - known.read
        if span < WINDOW:
            return False
        rates = {
            each: 8 * max(0, sample.delivered - known.delivered.get(each, sample.delivered)) / span
            for each, sample in there.items()
        }
        total = sum(rates.values())
        self._set_flows(known, flows=total > FLOWING or known.waited)
        changed = self._judge_capped(known, total, sockets)
        changed |= _judge_slow(known, rates, read)
        self._begin_window(known, there, read)
        return changed

    def _begin_window(self, known: _Resting, there: Mapping[FourTuple, KernelSubflow], read: float) -> None:
        known.read, known.delivered = read, {each: sample.delivered for each, sample in there.items()}
        known.waited = True
        for slow in known.slow_ones.values():
            slow.waited = True

    def _judge_capped(self, known: _Resting, rate: float, sockets: Mapping[FourTuple, KernelSubflow]) -> bool:
        """Take what the others carry, bits/s; return whether a capped subflow comes to rest, or back."""
        # As much as it has when each connection that uses the cap has the same.
        left = {each: ceil / max(1, self._flowing.get(scope, 0)) for each, (scope, ceil) in known.capped.items()}
        least = min(left.values(), default=0.0)
        known.slow = known.slow + 1 if known.waited and rate < self.ratio / 2 * least else 0
        changed = False
        for each, (_, ceil) in known.capped.items():
            if each not in known.resting:
                if rate >= self.ratio * left[each]:
                    known.resting[each] = ceil
                    changed = True
            elif known.slow >= WAKE_WINDOWS and not _waits(sockets.get(each)):
                # While it sends what it was given before, that is what holds up the others.
                del known.resting[each]
                changed = True
        return changed


def _judge_slow(known: _Resting, rates: Mapping[FourTuple, float], now: float) -> bool:
    """Take what each of the others carries, bits/s; return whether one comes to rest, or back."""
    changed = False
    total = sum(rates.values())
    # At the head of the line all stop by turns: windows differ.
    known.total += (total - known.total) * (NEW if known.able else 1.0)
    known.able = {each: max(rate, FADING * known.able.get(each, 0.0)) for each, rate in rates.items()}
    for each, slow in known.slow_ones.items():
        rate = rates.get(each, 0.0)
        if slow.until is not None:
            slow.windows = slow.windows + 1 if known.waited and _is_missed(slow, total, now) else 0
            if now >= slow.until or slow.windows >= WAKE_WINDOWS:
                slow.until, slow.windows = None, 0
                known.able = {}
                changed = True
            continue
        others = sum(able for other, able in known.able.items() if other != each and not _rests(known, other))
        holds_up = others >= max(HELD_UP * known.total, 4 * rate)
        # One that carries nothing is silent, and not slow.
        is_slow = slow.waited and rate > 0 and (holds_up or total - rate >= SLOW_RATIO * rate)
        slow.windows = max(0, slow.windows + (1 if is_slow else -1))
        if slow.windows >= SLOW_AFTER:
            slow.until, slow.rate, slow.total, slow.rested, slow.windows = now + slow.rest, rate, known.total, now, 0
            slow.rest = min(LONGEST_REST, 2 * slow.rest)
            changed = True
    return changed


def _rests(known: _Resting, four_tuple: FourTuple) -> bool:
    slow = known.slow_ones.get(four_tuple)
    return slow is not None and slow.until is not None


def _is_missed(slow: _Slow, total: float, now: float) -> bool:
    """Say whether the others, which have data to send, carry too little without it: *total*, bits/s."""
    return total < SLOW_RATIO / 2 * slow.rate and (now >= slow.rested + RECOVERY) and total <= slow.total


def _is_down(verdict: Verdict) -> bool:
    return verdict.direction is Direction.DOWN


def _waits(subflow: KernelSubflow | None) -> bool:
    return subflow is not None and subflow.tcp.not_sent + subflow.tcp.unacked > 0


def _low_cap(verdict: Verdict) -> tuple[ScopeKey, int] | None:
    """Return scope and rate of a cap that may make its subflow rest: one of a download that sets sockets' pacing."""
    throttle, scope = verdict.throttle, verdict.scope
    # What is steered by order may be in reserve, or have the overflow, however little that is.
    if throttle is None or scope is None or verdict.steer is not None:
        return None
    return (scope, throttle.ceil) if throttle.onset is Onset.SOFT and throttle.ceil < HIGHEST_CAP else None


def _is_free(verdict: Verdict) -> bool:
    return verdict.throttle is None and verdict.steer is None


def _resting(verdict: Verdict) -> Verdict:
    if not _is_down(verdict):
        return verdict
    what = "it" if verdict.throttle is None else format_rate(verdict.throttle.ceil)
    sentence = f"rests: {what} would cost the other paths more than it carries"
    return replace(verdict, rests=True, reason=joined(verdict.reason, sentence))
