# SPDX-License-Identifier: GPL-2.0-or-later
"""Lets a slow subflow rest if it would cost the other paths more rate than it carries itself. Pure.

The data of the other subflows wait for a chunk of up to 64 KB that the scheduler assigned to a slow subflow
(head-of-line blocking). So a capped subflow rests while the other subflows of its connection carry at least ``ratio``
times the rate that its cap allows it. The connection then loses at most the share 1/``ratio`` of its rate. The subflow
wakes when the other subflows have ended, when its cap rises, or when the others have data to send and are too slow.

With ``rest_slow_paths``, an uncapped subflow also rests in two cases: its own rate is similarly low, or it holds up the
others, so that their best recent rates together exceed the connection's mean rate. It wakes early if the others do not
become faster without it. The speed of a resting path is unknown, so the path is tried again at growing intervals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mptcp_common.units import format_rate
from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow, Sockets, compute_rate
from mptcp_throttler.policy.model import Direction, Onset, Policy
from mptcp_throttler.policy.verdict import ScopeKey, Verdict, add_sentence
from mptcp_throttler.shaping.initial_options import MAX_REST_RATE
from mptcp_throttler.stages.stage import SLICE, Outcome, SampledSubflows, Samples, Stage

RATIO: Final = 32  # a subflow rests from this (rate of others) / (rate that its cap leaves it), and wakes below half
RATIO_WITHOUT_BUFFERS: Final = 12  # ``RATIO`` if capped sockets cannot get larger send buffers
MAX_CAP_RATE: Final = 5_000_000  # bits/s; under a higher cap a chunk takes 0.1 s or less: send buffers bridge this
WAKE_WINDOWS: Final = 2  # number of consecutive windows with waiting data and slow others until a subflow wakes
MIN_WINDOW_SECONDS: Final = 0.35  # minimum seconds over which rates are computed: two samples
ACTIVE_RATE: Final = 100_000  # Bits/s. A connection with a higher rate counts as active under its caps.
SLOW_RATIO: Final = 12  # like ``RATIO``, but for an uncapped subflow: the divisor is its own rate
HELD_UP_RATIO: Final = 1.4
"""A path holds up the others if their best rates add up to this multiple of the mean rate, and to 4 times its own."""
RECOVERY_SECONDS: Final = 6.0  # how long data of a slow path may stay in flight after the path began to rest
MEAN_WEIGHT: Final = 0.4  # weight of the latest window in the mean rate
BEST_RATE_DECAY: Final = 0.95  # factor by which the best rate decays in each window
MIN_SLOW_WINDOWS: Final = 3  # number of slow windows after which a path rests: TCP slow start takes some round trips
FIRST_REST_SECONDS, MAX_REST_SECONDS = 30.0, 600.0  # time until a slow path is tried again; doubles with each rest


@dataclass(slots=True)
class _SlowCandidate:
    """An uncapped subflow that may be too slow."""

    slow_windows: int = 0  # slow windows minus fast ones, since it last rested
    windows_without_gain: int = 0  # while it rests: consecutive windows in which the others gained nothing
    always_had_data: bool = True  # whether the subflow had data to send at every sample of the window
    rest_began: float = 0.0
    own_rate: float = 0.0  # the subflow's rate when it began to rest, bits/s
    mean_rate: float = 0.0  # mean rate of all subflows when it began to rest, bits/s
    next_trial: float | None = None  # when the subflow is used again; None unless it rests
    rest_seconds: float = FIRST_REST_SECONDS  # duration of its next rest


@dataclass(slots=True)
class _RestState:
    """State of one connection with subflows that may rest."""

    capped: dict[FourTuple, tuple[ScopeKey, int]] = field(default_factory=dict)
    """Subflows with a low cap: the scope and rate (bits/s) of each cap."""
    others: tuple[FourTuple, ...] = ()  # subflows without a low cap
    slow_candidates: dict[FourTuple, _SlowCandidate] = field(default_factory=dict)  # those of ``others`` that may rest
    resting_capped: dict[FourTuple, int] = field(default_factory=dict)
    """Capped subflows that rest, with the rate of the cap when they began to rest."""
    window_start: float | None = None  # None before the first sample
    delivered: dict[FourTuple, int] = field(default_factory=dict)  # delivered bytes of ``others`` at the window's start
    best_rates: dict[FourTuple, float] = field(default_factory=dict)  # best recent rate of each of ``others``, bits/s
    mean_rate: float = 0.0  # mean rate of ``others`` together over the recent windows, bits/s
    is_active: bool = False  # whether the connection counts as active under its caps
    always_had_data: bool = True  # whether one of ``others`` had data to send at every sample of the window
    poor_windows: int = 0  # number of consecutive windows in which the others had data to send and carried too little

    def subflows(self) -> tuple[FourTuple, ...]:
        return (*self.others, *self.capped)

    def resting_slow(self) -> set[FourTuple]:
        return {each for each, slow in self.slow_candidates.items() if slow.next_trial is not None}

    def all_resting(self) -> set[FourTuple]:
        return self.resting_slow() | self.resting_capped.keys()

    def begin_window(self, sockets: Sockets, now: float) -> None:
        self.window_start, self.delivered = now, {each: socket.delivered for each, socket in sockets.items()}
        self.always_had_data = True
        for slow in self.slow_candidates.values():
            slow.always_had_data = True


class RestStage(Stage):
    interval = period = 0.2

    def __init__(self) -> None:
        self.can_rest = False  # whether the kernel can let sockets rest and wake them
        self.ratio = RATIO
        self._connections: dict[int, _RestState] = {}
        self._sampled = SampledSubflows()
        self._active: Counter[ScopeKey] = Counter()  # number of active connections under each low cap
        self._urgent: set[int] = set()  # tokens of connections that are new or carry data
        self._rest_slow_paths = False

    def set_policy(self, policy: Policy) -> None:
        self._rest_slow_paths = policy.rest_slow_paths

    def apply(self, connection: Connection, verdicts: tuple[Verdict, ...], now: float) -> tuple[Verdict, ...]:
        token = connection.token
        can_rest = self.can_rest and self.is_applied
        # Return early: in most connections, no subflow may rest.
        if not can_rest or not (self._rest_slow_paths or any(each.throttle is not None for each in verdicts)):
            self.forget(token)
            return verdicts
        # Omit backup subflows: the scheduler uses none of them while a regular subflow exists, even a resting one.
        backup = {each.four_tuple for each in connection.subflows if each.backup}
        down = [each for each in verdicts if each.direction is Direction.DOWN and each.four_tuple not in backup]
        capped = {each.four_tuple: low for each in down if (low := _low_cap(each)) is not None}
        others = tuple([each.four_tuple for each in down if each.four_tuple not in capped])
        uncapped = [each.four_tuple for each in down if each.throttle is None and each.steer is None]
        may_rest = uncapped if self._rest_slow_paths else []
        if not others or not (capped or (may_rest and len(others) > 1)):
            self.forget(token)
            return verdicts
        state = self._connections.get(token)
        if state is None:
            state = self._connections[token] = _RestState()
        if state.others != others or state.capped != capped:
            self._stop_sampling(token, state)
            for each, (_, ceil) in capped.items():
                if each not in state.capped and ceil <= MAX_REST_RATE:
                    state.resting_capped[each] = ceil
            state.others, state.capped, state.window_start = others, capped, None
            self._sampled |= dict.fromkeys(state.subflows(), token)
            self._urgent.add(token)
        state.resting_capped = {
            each: rate for each, rate in state.resting_capped.items() if each in capped and capped[each][1] <= rate
        }
        state.slow_candidates = {each: state.slow_candidates.get(each) or _SlowCandidate() for each in may_rest}
        if state.resting_slow().issuperset(others):
            # If all of *others* rested, no subflow would carry the data.
            state.slow_candidates = {}
        resting = state.all_resting()
        return tuple([_add_rest(each) if each.four_tuple in resting else each for each in verdicts])

    def forget(self, token: int) -> None:
        state = self._connections.pop(token, None)
        if state is not None:
            self._urgent.discard(token)
            self._stop_sampling(token, state)

    def _stop_sampling(self, token: int, state: _RestState) -> None:
        self._set_active(state, is_active=False)
        self._sampled.remove(token, state.subflows())

    def _set_active(self, state: _RestState, *, is_active: bool) -> None:
        if state.is_active is is_active:
            return
        state.is_active = is_active
        for scope in {scope for scope, _ in state.capped.values()}:
            self._active[scope] += 1 if is_active else -1
            if not self._active[scope]:
                del self._active[scope]

    def watched(self) -> Collection[FourTuple]:
        return self._sampled.keys()

    def urgent(self) -> Collection[FourTuple]:
        return [each for token in self._urgent for each in self._connections[token].subflows()]

    def observe(self, samples: Samples) -> Iterator[Outcome]:
        changed: list[int] = []
        for number, token in enumerate(self._sampled.tokens(samples, self._connections), 1):
            state = self._connections.get(token)
            if state is None:
                continue  # the connection ended between two slices
            if self._observe(state, samples.sockets):
                changed.append(token)
            if state.is_active:
                self._urgent.add(token)
            elif state.window_start is not None:
                self._urgent.discard(token)
            if not number % SLICE:
                yield Outcome(changed)
                changed = []
        yield Outcome(changed)

    def _observe(self, state: _RestState, sockets: Sockets) -> bool:
        others = {each: sockets[each] for each in state.others if each in sockets}
        if not others:
            return False
        now = max(each.read for each in others.values())
        if state.window_start is None:
            state.begin_window(others, now)
            return False
        state.always_had_data &= any(map(_has_data, others.values()))
        for each, slow in state.slow_candidates.items():
            slow.always_had_data &= _has_data(others.get(each))
        span = now - state.window_start
        if span < MIN_WINDOW_SECONDS:
            return False
        delivered = {each: socket.delivered for each, socket in others.items()}
        rates = {each: compute_rate(state.delivered.get(each, new), new, span) for each, new in delivered.items()}
        total = sum(rates.values())
        self._set_active(state, is_active=total > ACTIVE_RATE or state.always_had_data)
        before = state.all_resting()
        self._update_capped(state, total, sockets)
        _update_slow(state, rates, now)
        state.begin_window(others, now)
        return before != state.all_resting()

    def _update_capped(self, state: _RestState, rate: float, sockets: Sockets) -> None:
        """Let capped subflows rest or wake, depending on the total *rate* of the others, bits/s."""
        # Assume that all active connections under a cap share it equally.
        rate_left = {each: ceil / max(1, self._active[scope]) for each, (scope, ceil) in state.capped.items()}
        lowest = min(rate_left.values(), default=0.0)
        state.poor_windows = state.poor_windows + 1 if state.always_had_data and rate < self.ratio / 2 * lowest else 0
        for each, (_, ceil) in state.capped.items():
            if each not in state.resting_capped:
                if rate >= self.ratio * rate_left[each]:
                    state.resting_capped[each] = ceil
            elif state.poor_windows >= WAKE_WINDOWS and not _has_data(sockets.get(each)):
                # Wake the subflow only if its socket has no waiting data: such data would hold up the others.
                del state.resting_capped[each]


def _update_slow(state: _RestState, rates: Mapping[FourTuple, float], now: float) -> None:
    """Let uncapped subflows rest or wake, depending on the *rates* of all subflows without a low cap, bits/s."""
    total = sum(rates.values())
    # Use mean rates and best rates, because head-of-line blocking stops the subflows alternately.
    best_rates = state.best_rates
    state.mean_rate += (total - state.mean_rate) * (MEAN_WEIGHT if best_rates else 1.0)
    state.best_rates = {each: max(rate, BEST_RATE_DECAY * best_rates.get(each, 0.0)) for each, rate in rates.items()}
    for each, slow in state.slow_candidates.items():
        rate = rates.get(each, 0.0)
        if slow.next_trial is not None:
            has_recovered = now >= slow.rest_began + RECOVERY_SECONDS
            no_gain = has_recovered and total < SLOW_RATIO / 2 * slow.own_rate and total <= slow.mean_rate
            slow.windows_without_gain = slow.windows_without_gain + 1 if state.always_had_data and no_gain else 0
            if now >= slow.next_trial or slow.windows_without_gain >= WAKE_WINDOWS:
                slow.next_trial, slow.windows_without_gain = None, 0
                state.best_rates = {}
            continue
        excluded = {each, *state.resting_slow()}
        others = sum(best for other, best in state.best_rates.items() if other not in excluded)
        holds_up = others >= max(HELD_UP_RATIO * state.mean_rate, 4 * rate)
        # A subflow that carries nothing does not count as slow.
        is_slow = slow.always_had_data and rate > 0 and (holds_up or total - rate >= SLOW_RATIO * rate)
        slow.slow_windows = max(0, slow.slow_windows + (1 if is_slow else -1))
        if slow.slow_windows >= MIN_SLOW_WINDOWS:
            slow.rest_began, slow.own_rate, slow.mean_rate = now, rate, state.mean_rate
            slow.next_trial, slow.slow_windows = now + slow.rest_seconds, 0
            slow.rest_seconds = min(MAX_REST_SECONDS, 2 * slow.rest_seconds)


def _has_data(subflow: KernelSubflow | None) -> bool:
    return subflow is not None and subflow.tcp.not_sent + subflow.tcp.unacked > 0


def _low_cap(verdict: Verdict) -> tuple[ScopeKey, int] | None:
    """Return scope and rate of a low soft cap, under which subflows may rest; only soft caps set a socket's pacing."""
    throttle, scope = verdict.throttle, verdict.scope
    # A steered path never rests: as a reserve or for the overflow, it may carry little.
    if throttle is None or scope is None or verdict.steer is not None:
        return None
    return (scope, throttle.ceil) if throttle.landing is Onset.SOFT and throttle.ceil < MAX_CAP_RATE else None


def _add_rest(verdict: Verdict) -> Verdict:
    if verdict.direction is not Direction.DOWN:
        return verdict
    rate = "the subflow" if verdict.throttle is None else format_rate(verdict.throttle.ceil)
    sentence = f"rests: {rate} would cost the other paths more than it carries"
    return verdict._replace(rests=True, reason=add_sentence(verdict.reason, sentence))
