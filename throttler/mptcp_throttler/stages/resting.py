# SPDX-License-Identifier: GPL-2.0-or-later
"""Lets a slow subflow rest if it would cost the other paths more rate than it carries itself. Pure.

The data of the other subflows wait for a chunk of up to 64 KB that the scheduler assigned to a slow subflow
(head-of-line blocking). So a capped subflow rests while the other subflows of its connection carry at least ``ratio``
times the rate that its cap leaves it. The connection then loses at most the share 1/``ratio`` of its rate. The subflow
wakes when the other subflows have ended, when its cap rises, or when the others have data to send and are too slow.

With ``rest_slow_paths``, an uncapped subflow also rests in two cases: its own rate is that low, or it holds up the
others, so that their best recent rates together exceed the connection's mean rate. It wakes early if the others do not
become faster without it. The speed of a resting path is unknown, so the path is tried again at growing intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mptcp_common.units import format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Sockets
from mptcp_throttler.policy.model import Direction, Onset, Policy
from mptcp_throttler.policy.verdict import ScopeKey, Verdict, add_sentence
from mptcp_throttler.shaping.initial_options import MAX_REST_RATE
from mptcp_throttler.stages.stage import SLICE, Outcome, Sampled, Samples, Stage

RATIO: Final = 32  # a subflow rests from this (rate of the others) / (rate left by its cap), and wakes below half of it
RATIO_WITHOUT_BUFFERS: Final = 12  # ``RATIO`` if capped sockets cannot get larger send buffers
HIGHEST_CAP: Final = 5_000_000  # bits/s; above it a chunk leaves within 0.1 s, and the others send from their buffers
WAKE_WINDOWS: Final = 2  # consecutive windows with waiting data and slow others after which a resting subflow wakes
WINDOW: Final = 0.35  # minimum seconds over which rates are computed: two samples
FLOWING: Final = 100_000  # Bits/s. A connection with a higher rate counts as active under its caps.
SLOW_RATIO: Final = 12  # like ``RATIO``, but for an uncapped subflow: the divisor is its own rate
HELD_UP: Final = 1.4
"""A path holds up the others if their best rates add up to this multiple of the mean rate, and to 4 times its own."""
RECOVERY: Final = 6.0  # seconds after a slow path began to rest during which its data may still be in flight
NEW: Final = 0.4  # weight of the latest window in the mean rate
FADING: Final = 0.95  # factor by which the best rate decays in each window
SLOW_AFTER: Final = 3  # number of slow windows after which a path rests: TCP slow start takes some round trips
FIRST_REST, LONGEST_REST = 30.0, 600.0  # seconds until a slow path is tried again; doubled for each further rest


@dataclass(slots=True)
class _Slow:
    """An uncapped subflow that may be too slow."""

    windows: int = 0  # slow windows less fast ones; while it rests, consecutive windows without a gain for the others
    waited: bool = True  # whether the subflow had data to send at every sample of the window
    rested: float = 0.0  # when the subflow began to rest
    rate: float = 0.0  # the subflow's own rate when it began to rest, bits/s
    total: float = 0.0  # mean rate of all subflows when it began to rest, bits/s
    until: float | None = None  # when the subflow is tried again; None unless it rests
    rest: float = FIRST_REST  # seconds that its next rest lasts


@dataclass(slots=True)
class _Resting:
    """A connection with subflows that may rest."""

    capped: dict[FourTuple, tuple[ScopeKey, int]] = field(default_factory=dict)
    """Subflows with a low cap: the scope and rate (bits/s) of each cap."""
    others: tuple[FourTuple, ...] = ()
    slow_ones: dict[FourTuple, _Slow] = field(default_factory=dict)  # the members of ``others`` that may rest
    resting: dict[FourTuple, int] = field(default_factory=dict)
    """Capped subflows that rest, with the rate of the cap when they began to rest."""
    read: float | None = None  # when the window began; None before the first sample
    delivered: dict[FourTuple, int] = field(default_factory=dict)  # delivered bytes of ``others`` as the window began
    able: dict[FourTuple, float] = field(default_factory=dict)  # best recent rate of each of ``others``, bits/s
    total: float = 0.0  # mean rate of ``others`` together over the recent windows, bits/s
    flows: bool = False  # whether the connection counts as active under its caps
    waited: bool = True  # whether ``others`` had data to send at every sample of the window
    slow: int = 0  # number of consecutive windows in which the others had data to send and carried too little

    def subflows(self) -> tuple[FourTuple, ...]:
        return (*self.others, *self.capped)

    def slow_that_rest(self) -> set[FourTuple]:
        return {each for each, slow in self.slow_ones.items() if slow.until is not None}

    def at_rest(self) -> set[FourTuple]:
        return self.slow_that_rest() | self.resting.keys()

    def begin_window(self, there: Sockets, read: float) -> None:
        self.read, self.delivered = read, {each: sample.delivered for each, sample in there.items()}
        self.waited = True
        for slow in self.slow_ones.values():
            slow.waited = True


class RestStage(Stage):
    interval = period = 0.2

    def __init__(self) -> None:
        self.possible = False  # whether the kernel can let sockets rest and wake them
        self.ratio = RATIO
        self._connections: dict[int, _Resting] = {}
        self._sampled = Sampled()
        self._flowing: Counter[ScopeKey] = Counter()  # number of connections that use each low cap
        self._urgent: set[int] = set()  # tokens of connections that are new or carry data
        self._rest_slow_paths = False

    def set_policy(self, policy: Policy) -> None:
        self._rest_slow_paths = policy.rest_slow_paths

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        token = connection.token
        possible = self.possible and self.acts
        # Return early: in most connections, no subflow may rest.
        if not possible or not (self._rest_slow_paths or any(each.throttle is not None for each in verdicts)):
            self.forget(token)
            return verdicts
        # Omit backup subflows: the scheduler uses none of them while a regular subflow exists, even a resting one.
        backup = {each.four_tuple for each in connection.subflows if each.backup}
        down = [each for each in verdicts if each.direction is Direction.DOWN and each.four_tuple not in backup]
        capped = {each.four_tuple: low for each in down if (low := _low_cap(each)) is not None}
        others = tuple([each.four_tuple for each in down if each.four_tuple not in capped])
        uncapped = [each.four_tuple for each in down if each.throttle is None and each.steer is None]
        free = uncapped if self._rest_slow_paths else []
        if not others or not (capped or (free and len(others) > 1)):
            self.forget(token)
            return verdicts
        known = self._connections.get(token)
        if known is None:
            known = self._connections[token] = _Resting()
        if known.others != others or known.capped != capped:
            self._stop_sampling(token, known)
            for each, (_, ceil) in capped.items():
                if each not in known.capped and ceil <= MAX_REST_RATE:
                    known.resting[each] = ceil
            known.others, known.capped, known.read = others, capped, None
            self._sampled |= dict.fromkeys(known.subflows(), token)
            self._urgent.add(token)
        known.resting = {
            each: rate for each, rate in known.resting.items() if each in capped and capped[each][1] <= rate
        }
        known.slow_ones = {each: known.slow_ones.get(each) or _Slow() for each in free}
        if known.slow_that_rest().issuperset(others):
            # If all of these rested, no subflow would carry the data.
            known.slow_ones = {}
        resting = known.at_rest()
        return tuple([_resting(each) if each.four_tuple in resting else each for each in verdicts])

    def forget(self, token: int) -> None:
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
            self._flowing[scope] += 1 if flows else -1
            if not self._flowing[scope]:
                del self._flowing[scope]

    def watched(self) -> Collection[FourTuple]:
        return self._sampled.keys()

    def urgent(self) -> Collection[FourTuple]:
        return [each for token in self._urgent for each in self._connections[token].subflows()]

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        changed: list[int] = []
        for number, token in enumerate(self._sampled.tokens(samples, self._connections), 1):
            known = self._connections.get(token)
            if known is None:
                continue  # the connection ended between two slices
            if self._observe(known, samples.sockets):
                changed.append(token)
            if known.flows:
                self._urgent.add(token)
            elif known.read is not None:
                self._urgent.discard(token)
            if not number % SLICE:
                yield Outcome(changed)
                changed = []
        yield Outcome(changed)

    def _observe(self, known: _Resting, sockets: Sockets) -> bool:
        there = {each: sockets[each] for each in known.others if each in sockets}
        if not there:
            return False
        read = max(each.read for each in there.values())
        if known.read is None:
            known.begin_window(there, read)
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
        before = known.at_rest()
        self._judge_capped(known, total, sockets)
        _judge_slow(known, rates, read)
        known.begin_window(there, read)
        return before != known.at_rest()

    def _judge_capped(self, known: _Resting, rate: float, sockets: Sockets) -> None:
        """Let capped subflows rest or wake, depending on the total *rate* of the others, bits/s."""
        # Assume that all connections that use a cap share it equally.
        left = {each: ceil / max(1, self._flowing[scope]) for each, (scope, ceil) in known.capped.items()}
        least = min(left.values(), default=0.0)
        known.slow = known.slow + 1 if known.waited and rate < self.ratio / 2 * least else 0
        for each, (_, ceil) in known.capped.items():
            if each not in known.resting:
                if rate >= self.ratio * left[each]:
                    known.resting[each] = ceil
            elif known.slow >= WAKE_WINDOWS and not _waits(sockets.get(each)):
                # Wake the subflow only if its socket has no waiting data: such data would hold up the others.
                del known.resting[each]


def _judge_slow(known: _Resting, rates: Mapping[FourTuple, float], now: float) -> None:
    """Let uncapped subflows rest or wake, depending on the *rates* of all subflows without a low cap, bits/s."""
    total = sum(rates.values())
    # Use mean rates and best rates, because head-of-line blocking stops the subflows alternately.
    known.total += (total - known.total) * (NEW if known.able else 1.0)
    known.able = {each: max(rate, FADING * known.able.get(each, 0.0)) for each, rate in rates.items()}
    for each, slow in known.slow_ones.items():
        rate = rates.get(each, 0.0)
        if slow.until is not None:
            missed = total < SLOW_RATIO / 2 * slow.rate and now >= slow.rested + RECOVERY and total <= slow.total
            slow.windows = slow.windows + 1 if known.waited and missed else 0
            if now >= slow.until or slow.windows >= WAKE_WINDOWS:
                slow.until, slow.windows = None, 0
                known.able = {}
            continue
        out = {each, *known.slow_that_rest()}
        others = sum(able for other, able in known.able.items() if other not in out)
        holds_up = others >= max(HELD_UP * known.total, 4 * rate)
        # A subflow that carries nothing does not count as slow.
        is_slow = slow.waited and rate > 0 and (holds_up or total - rate >= SLOW_RATIO * rate)
        slow.windows = max(0, slow.windows + (1 if is_slow else -1))
        if slow.windows >= SLOW_AFTER:
            slow.until, slow.rate, slow.total, slow.rested, slow.windows = now + slow.rest, rate, known.total, now, 0
            slow.rest = min(LONGEST_REST, 2 * slow.rest)


def _waits(subflow: KernelSubflow | None) -> bool:
    return subflow is not None and subflow.tcp.not_sent + subflow.tcp.unacked > 0


def _low_cap(verdict: Verdict) -> tuple[ScopeKey, int] | None:
    """Return scope and rate of a low soft cap, for which its subflow may rest: soft caps set the pacing of sockets."""
    throttle, scope = verdict.throttle, verdict.scope
    # A steered path never rests: as a reserve or for the overflow, it may carry little.
    if throttle is None or scope is None or verdict.steer is not None:
        return None
    return (scope, throttle.ceil) if throttle.landing is Onset.SOFT and throttle.ceil < HIGHEST_CAP else None


def _resting(verdict: Verdict) -> Verdict:
    if verdict.direction is not Direction.DOWN:
        return verdict
    what = "it" if verdict.throttle is None else format_rate(verdict.throttle.ceil)
    sentence = f"rests: {what} would cost the other paths more than it carries"
    return verdict._replace(rests=True, reason=add_sentence(verdict.reason, sentence))
