# SPDX-License-Identifier: GPL-2.0-or-later
"""Detects capped connections whose rate is too low because their uncapped paths have degraded. Pure.

A capped connection should get at least as much as a TCP session over one path: the rate that the best of its uncapped
paths once had, its baseline (``stages.baseline``). A connection is degraded while three conditions hold. It wants more
than it gets. Its own subflows together get less than ``MAX_TOTAL_SHARE`` of the baseline. All connections of the client
over that path get at most ``DEGRADED_SHARE`` of the baseline; if they get more, the path has only been shared.

Senders need time to use freed capacity. So after a subflow joins or leaves the path, or the connection begins to want
more, the path counts as degraded only if it was healthy in the meantime, or after ``GRACE_SECONDS``. There is no grace
if the path was healthy just before the backlog appeared: on a fast path, little data waits until the path becomes slow.

After ``Guard.after`` seconds of degradation the caps are relaxed: the capped subflows may carry the rate that the
uncapped subflows lack of the baseline. At first that is the whole baseline, because measured rates lag; then it is
corrected at most once per window. The caps are restored when the path is healthy again. After ``Guard.retry`` seconds,
they are restored as a trial unless the path is evidently still degraded; this pause doubles each time.

If the samples span more than the window, the state counts as having lasted longer, by the difference. Nearly all
connections want no more than they get; each of them costs one comparison per uncapped subflow. The others are
candidates, and all subflows of candidates are sampled. Times are monotonic seconds, rates bits/s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Guard
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES
from mptcp_throttler.shaping.onset.uploads import bytes_ahead
from mptcp_throttler.stages.baseline import (
    HEALTHY_SHARE,
    MIN_RATE,
    MIN_SPAN_SECONDS,
    SLACK_SECONDS,
    WINDOW_SECONDS,
    Flow,
    History,
    Path,
    Paths,
    Sample,
)
from mptcp_throttler.stages.stage import SLICE, SampledSubflows, Samples

MAX_TOTAL_SHARE = 0.8  # a connection whose subflows together get at least this share of the baseline is not degraded
GRACE_SECONDS = 2.5  # time that senders get to use freed capacity; see above
MIN_LACKING_RATIO, MAX_LACKING_RATIO = 0.7, 1.1  # (lacking rate now) / ``Relaxation.lacking``; outside, it is updated
TRIAL_SECONDS = 5.0  # if a degradation begins this soon after the caps were restored, the next pause doubles
MAX_IDLE_SAMPLES = 3  # a connection stops being a candidate after this many samples in a row without demand

FULL_SHARE = 0.85  # a cap counts as full if the payload takes this part: headers add up to 8 % with small packets
FAIR_SHARE = 0.5  # under a full shared cap, a subflow has demand if its rate is at least this part of an equal share
MIN_OVERDUE_SECONDS = 0.05  # missing bytes count as overdue if the best path needs this time for them at its baseline
MAX_READ_SECONDS = MIN_OVERDUE_SECONDS / 2  # maximum time between reads that are compared: only look-ups are that fast
MIN_OVERDUE_BYTES = 2 * ASSIGNMENT_BYTES
"""A minimum in bytes, which also applies. The known data sequence number of a subflow is imprecise: it is the start of
a chunk of up to 64 KB."""
OVERDUE_DEMAND_SECONDS, OVERDUE_PROOF_SECONDS = 1.0, 5.0
"""How long overdue data count as demand, and as proof. While such data fill its send buffer, a client sends little."""
LAPSE_SECONDS = 0.3  # a cap that is not full for at most this long still counts as full: the demand has not ended
SILENT_SECONDS, SILENT_CHUNKS = 2.0, 3
"""A degradation is proven if, while a cap is full, nothing arrives over the uncapped paths for these seconds plus the
time in which the cap sends this many chunks of the scheduler. A healthy path may be unused for almost as long."""


@dataclass(slots=True)
class GuardCounters:
    """Counters since the start of the daemon."""

    relaxations: int = 0
    resumptions: int = 0
    lacking_bytes: float = 0.0  # bytes that the uncapped paths lacked against their baseline while caps were relaxed
    relaxed_bytes: float = 0.0  # bytes that the capped subflows carried in that time


class Relaxation(NamedTuple):
    """State of one connection whose caps are relaxed."""

    next_trial: float  # latest time of the next trial of the caps
    path: bytes  # the client's address on the path that has degraded
    rate: int  # rate that the connection got
    baseline: int  # rate that this path once had
    lacking: int  # rate that the uncapped paths lack against the baseline: the rate that the capped paths may carry
    measured_at: float  # when ``lacking`` was last measured


class Cap(NamedTuple):
    scope: ScopeKey
    ceil: int


@dataclass(slots=True)
class Candidate:
    """The state of a connection that wants more than it gets."""

    histories: dict[FourTuple, History] = field(default_factory=dict)
    idle_samples: int = 0
    backlogged_since: float | None = None
    degraded_since: float | None = None
    suspected: Path | None = None  # the path that seems degraded: its subflows must all be sampled first
    suspected_since: float = 0.0
    relaxation: Relaxation | None = None
    counted_until: float = 0.0  # time up to which the relaxation of this connection is included in ``GuardCounters``
    healthy_since: float | None = None
    pause: float = 0.0  # seconds until the next trial of the caps
    last_restored: float = -inf

    def lengthen_pause(self, guard: Guard) -> None:
        self.pause = min(guard.longest_retry, 2 * self.pause) if self.pause else guard.retry


@dataclass(slots=True, eq=False)
class GuardedConnection:
    """One connection with guarded caps. Its download wants more if it has a backlog: each uncapped subflow has unsent
    data that take some time at its present rate, or gets no acknowledgements for the data that it sent. An idle or slow
    application has no data waiting; a slow client limits its subflow by its receive window."""

    samples_all: ClassVar[bool] = False  # whether all subflows are sampled in every sweep, not only the uncapped ones

    token: int
    cap_loads: dict[ScopeKey, Path]  # the load under each cap, for uploads only
    uncapped: Sequence[FourTuple] = ()
    capped: Mapping[FourTuple, Cap] = field(default_factory=dict)
    flows: tuple[Flow, ...] = ()  # the uncapped subflows
    candidate: Candidate | None = None
    rules: tuple[str, ...] = ()  # names of the rules of the connection's guarded caps
    is_reported: bool = False  # whether it was reported that the caps are relaxed

    @property
    def histories(self) -> list[History]:
        histories = {} if self.candidate is None else self.candidate.histories
        return [histories[each] for each in self.uncapped if each in histories]

    def known_until(self, now: float) -> float:
        """Return the time up to which all uncapped subflows were sampled; durations are counted up to it."""
        return min((each.last_time for each in self.histories), default=now)

    @property
    def span(self) -> float:
        """Seconds over which the rates of all uncapped subflows are known."""
        return min((each.span for each in self.histories), default=0.0)

    def compute_lacking(self, baseline: float) -> float:
        """Return the shortfall of the uncapped subflows against *baseline*, bits/s."""
        return baseline - sum(each.rate for each in self.histories)

    def update_caps(self) -> None:
        """Update the state of the caps when subflows or caps have changed."""

    def record(self, flow: Flow, sample: KernelSubflow) -> bool:
        """Record the sample of an uncapped subflow; return whether data wait on it."""
        return bool((not flow.record(sample.read, sample.delivered) and sample.tcp.unacked) or sample.tcp.not_sent)

    def update_demand(self, samples: Samples, present: int, waiting: int) -> bool:
        """Return whether the connection wants more than it gets: data wait on *waiting* of *present* subflows."""
        return waiting >= present > 0

    def sample_of(self, socket: KernelSubflow) -> Sample:
        tcp = socket.tcp
        return Sample(socket.read, socket.delivered, tcp.not_sent, tcp.unacked, tcp.receive_window_limited)

    def is_backlogged(self, now: float) -> bool:
        uncapped = self.histories
        return bool(uncapped) and all(each.span >= MIN_SPAN_SECONDS and each.is_backlogged for each in uncapped)

    def demand_delay(self) -> float:
        """Return the maximum seconds from a degradation until the demand shows, as a backlog."""
        return max(WINDOW_SECONDS, 2 * self.span) + SLACK_SECONDS

    def is_proven(self, now: float) -> bool:
        """Return whether a path with a low rate certainly cannot carry more."""
        return True


@dataclass(slots=True, eq=False)
class GuardedUpload(GuardedConnection):
    """One connection with guarded caps. Its upload has *demand* if a capped path is at its cap; under a shared cap, the
    subflow must also have about its share. A degradation is *proven* if data are overdue on a path that carries little,
    or if it carries nothing while the cap is full. Data are overdue on a path if bytes sent over it are missing. The
    missing bytes are the advance of the data sequence (RFC 8684, 3.3) minus the bytes received. Data that the client
    sends again over another path arrive twice and lower this number, so its lowest value so far counts as zero."""

    samples_all = True

    caps: list[tuple[Flow, Cap]] = field(default_factory=list)
    demand_since: float | None = None
    last_demand: float = -inf
    last_overdue: float = -inf  # when data were last overdue on an uncapped path
    last_progress: float = -inf  # when data last arrived over an uncapped path, or no cap was full
    last_read: float = -inf  # when the first of the uncapped subflows was read for the last sample
    _compared_subflows: list[FourTuple] = field(default_factory=list)
    _first_sequence: int = 0  # data sequence number when ``_compared_subflows`` last changed
    _min_missing: int = 0  # lowest number of missing bytes since then

    def update_caps(self) -> None:
        before = {(flow.four_tuple, cap.scope): flow for flow, cap in self.caps}
        self.caps = []
        for four_tuple, cap in self.capped.items():
            flow = before.pop((four_tuple, cap.scope), None)
            if flow is None:
                flow = Flow(four_tuple, self.cap_loads.setdefault(cap.scope, Path(four_tuple.remote)))
            self.caps.append((flow, cap))
        for (_, scope), flow in before.items():
            flow.leave()
            if not flow.path.flows:
                self.cap_loads.pop(scope, None)

    def record(self, flow: Flow, sample: KernelSubflow) -> bool:
        if flow.record(sample.read, sample.bytes_received):
            self.last_progress = max(self.last_progress, sample.read)
        return False

    def update_demand(self, samples: Samples, present: int, waiting: int) -> bool:
        now, candidate = samples.time, self.candidate
        relaxed = candidate is not None and candidate.relaxation is not None
        full = False
        for flow, cap in self.caps:
            sample = samples.sockets.get(flow.four_tuple)
            history = None if candidate is None else candidate.histories.get(flow.four_tuple)
            if sample is None or sample.backup or relaxed:
                if samples.complete or sample is not None:
                    flow.pause()
                full |= relaxed and history is not None and history.rate >= FULL_SHARE * cap.ceil
                continue
            flow.record(sample.read, sample.bytes_received)
            flow.set_rate_from(history)
        times = [socket.read for each in self.uncapped if (socket := samples.sockets.get(each)) is not None]
        self.last_read = min(times, default=self.last_read)
        full = full or any(_is_full(flow, cap) for flow, cap in self.caps)
        if full or candidate is not None:
            self._update_overdue(samples)
        if not full:
            self.last_progress = now
            if now - self.last_overdue > OVERDUE_DEMAND_SECONDS:
                if now - self.last_demand > LAPSE_SECONDS:
                    self.demand_since = None
                return False
        self.last_demand = now
        if self.demand_since is None:
            self.demand_since = now
        return present > 0

    def _update_overdue(self, samples: Samples) -> None:
        """Set ``last_overdue`` if data are overdue on the uncapped path with the best baseline."""
        sampled = [samples.sockets.get(each) for each in (*self.uncapped, *self.capped)]
        present = [each for each in sampled if each is not None and each.data_sequence]
        paths = [flow.path for flow in self.flows if flow.present]
        if len(present) < 2 or not paths:
            return
        times = [each.read for each in present]
        if max(times) - min(times) > MAX_READ_SECONDS:
            return  # bytes that arrived between the reads are not missing
        first = present[0].data_sequence
        highest = max((each.data_sequence for each in present), key=lambda sequence: bytes_ahead(sequence, first))
        best = max(paths, key=lambda path: path.baseline)
        over_best = [each.data_sequence for each in present if each.four_tuple.remote == best.address]
        lag = min((bytes_ahead(highest, each) for each in over_best), default=0)
        min_overdue = max(MIN_OVERDUE_BYTES, MIN_OVERDUE_SECONDS * best.baseline / 8)
        compared, received = [each.four_tuple for each in present], sum([each.bytes_received for each in present])
        if compared != self._compared_subflows:
            # Start again, because the bytes received on a subflow that has ended are no longer in the sum.
            self._compared_subflows, self._first_sequence, self._min_missing = compared, highest, -received
        missing = bytes_ahead(highest, self._first_sequence) - received
        self._min_missing = min(self._min_missing, missing)
        if missing - self._min_missing >= min_overdue and lag >= min_overdue:
            self.last_overdue = samples.time

    def sample_of(self, socket: KernelSubflow) -> Sample:
        return Sample(socket.read, socket.bytes_received)

    def is_backlogged(self, now: float) -> bool:
        has_lasted = self.demand_since is not None and now - self.demand_since >= MIN_SPAN_SECONDS
        return has_lasted and any(each.span >= MIN_SPAN_SECONDS for each in self.histories)

    def demand_delay(self) -> float:
        return 0.0  # the demand of an upload is itself detected only after some time

    def is_proven(self, now: float) -> bool:
        chunk_seconds = [8 * SILENT_CHUNKS * ASSIGNMENT_BYTES / cap.ceil for _, cap in self.caps]
        silence = SILENT_SECONDS + min(chunk_seconds, default=0.0)
        return now - self.last_overdue <= OVERDUE_PROOF_SECONDS or self.last_read - self.last_progress >= silence


def _is_full(flow: Flow, cap: Cap) -> bool:
    """Return whether *cap* is full and the subflow *flow* has its share of it."""
    path = flow.path
    share = FULL_SHARE if path.present_count == 1 else FAIR_SHARE / max(1, path.present_count)
    return flow.present and path.rate >= FULL_SHARE * cap.ceil and flow.rate >= share * cap.ceil


class DegradationDetector:
    """Observes connections with guarded caps in one direction."""

    def __init__(self, guard: Guard, counters: GuardCounters, direction: Direction) -> None:
        self.guard = guard
        self._counters = counters
        self._connection_class = GuardedUpload if direction is Direction.UP else GuardedConnection
        self.connections: dict[int, GuardedConnection] = {}
        self.cap_loads: dict[ScopeKey, Path] = {}
        self._candidates: dict[int, Candidate] = {}
        self._sampled = SampledSubflows()
        self._paths = Paths()

    def watch(self, token: int, uncapped: Sequence[FourTuple], capped: Mapping[FourTuple, Cap]) -> GuardedConnection:
        """Observe connection *token*. *capped*: the subflows that the policy caps, relaxed or not."""
        connection = self.connections.get(token)
        if connection is None:
            connection = self.connections[token] = self._connection_class(token, self.cap_loads)
        elif connection.uncapped == uncapped and connection.capped == capped:
            return connection
        self._sampled.remove(token, (*connection.uncapped, *connection.capped))
        before = {flow.four_tuple: flow for flow in connection.flows}
        connection.flows = tuple(before.pop(each) if each in before else self._paths.join(each) for each in uncapped)
        for flow in before.values():
            self._paths.leave(flow)
        connection.uncapped, connection.capped = uncapped, capped
        connection.update_caps()
        sample_all = self._connection_class.samples_all or connection.candidate is not None
        self._sampled |= dict.fromkeys((*uncapped, *capped) if sample_all else uncapped, token)
        if connection.candidate is not None:
            for ended in connection.candidate.histories.keys() - {*uncapped, *capped}:
                del connection.candidate.histories[ended]
        return connection

    def forget(self, token: int) -> None:
        """Drop connection *token*, which has ended or has no guarded caps."""
        if token in self.connections:
            self.watch(token, [], {})
            del self.connections[token]
            self._candidates.pop(token, None)

    def relaxation(self, token: int) -> Relaxation | None:
        """Return why the caps of connection *token* are relaxed; None while they are not."""
        candidate = self._candidates.get(token)
        return None if candidate is None else candidate.relaxation

    def relaxed_tokens(self) -> Set[int]:
        return {token for token, each in self._candidates.items() if each.relaxation is not None}

    def watched(self) -> Set[FourTuple]:
        return self._sampled.keys()

    def urgent(self) -> Set[FourTuple]:
        """Return all subflows of candidates, adjacent so that look-ups read them together, and of suspected paths."""
        subflows: dict[FourTuple, None] = {}
        for token in self._candidates:
            connection = self.connections[token]
            subflows |= dict.fromkeys((*connection.uncapped, *connection.capped))
        for path in dict.fromkeys([each.suspected for each in self._candidates.values()]):
            subflows |= dict.fromkeys(() if path is None else path.flows)
        return subflows.keys()

    def observe(self, samples: Samples) -> Iterator[Collection[int]]:
        """Process *samples*, a slice at a time; yield the connections whose relaxation began, changed or ended."""
        if not self.connections:
            return
        now = samples.time
        self._paths.begin_samples(now)
        sampled: dict[Path, None] = {}
        candidates: list[tuple[GuardedConnection, Candidate]] = []
        for number, token in enumerate(self._sampled.tokens(samples, self.connections), 1):
            if not number % SLICE:
                yield ()
            connection = self.connections.get(token)
            if connection is None:
                continue  # the connection ended between two slices
            present, waiting = self._record(connection, samples, sampled)
            has_demand = connection.update_demand(samples, present, waiting)
            candidate = connection.candidate
            if candidate is None:
                if not has_demand:
                    continue
                candidate = connection.candidate = self._candidates[token] = Candidate()
                self._sampled |= dict.fromkeys(connection.capped, token)
            candidate.idle_samples = 0 if has_demand else candidate.idle_samples + 1
            self._add_to_histories(connection, candidate, samples)
            candidates.append((connection, candidate))
        for number, path in enumerate(sampled, 1):
            if not number % SLICE:
                yield ()
            path.update_baseline(now)
        changed: set[int] = set()
        for number, (connection, candidate) in enumerate(candidates, 1):
            if not number % SLICE:
                yield changed
                changed = set()
            if self.connections.get(connection.token) is not connection:
                continue
            before = candidate.relaxation
            self._update(connection, candidate, now)
            after = candidate.relaxation
            if before is not after and (before is None or after is None or before.lacking != after.lacking):
                changed.add(connection.token)
            is_idle = candidate.idle_samples >= MAX_IDLE_SAMPLES
            if is_idle and after is None and now - candidate.last_restored > TRIAL_SECONDS:
                connection.candidate = None
                del self._candidates[connection.token]
                if not self._connection_class.samples_all:
                    self._sampled.remove(connection.token, connection.capped)
        yield changed

    def _record(self, connection: GuardedConnection, samples: Samples, sampled: dict[Path, None]) -> tuple[int, int]:
        """Return the numbers of uncapped subflows with a socket and with data waiting; add their paths to *sampled*."""
        now, sockets, complete, _ = samples
        present = waiting = 0
        for flow in connection.flows:
            sample = sockets.get(flow.four_tuple)
            if sample is not None and sample.token != connection.token:
                present += flow.present
                continue  # the sweep read the socket of an earlier connection with the same four-tuple
            if sample is None or sample.backup:
                if flow.present and (complete or sample is not None):
                    flow.pause()
                    flow.path.last_change = now
                present += flow.present
                continue
            path = flow.path
            if path.last_sampled != now:
                path.last_sampled, sampled[path] = now, None
                path.read_times.clear()
            present += 1
            path.read_times.append(sample.read)
            waiting += connection.record(flow, sample)
        return present, waiting

    def _add_to_histories(self, connection: GuardedConnection, candidate: Candidate, samples: Samples) -> None:
        histories = candidate.histories
        for four_tuple in (*connection.uncapped, *connection.capped):
            socket = samples.sockets.get(four_tuple)
            if socket is not None and not socket.backup:
                histories.setdefault(four_tuple, History()).add(connection.sample_of(socket))
            elif socket is not None or samples.complete:
                histories.pop(four_tuple, None)
        for flow in connection.flows:
            flow.set_rate_from(histories.get(flow.four_tuple))

    def _update(self, connection: GuardedConnection, candidate: Candidate, now: float) -> None:
        if candidate.relaxation is not None:
            self._update_relaxed(connection, candidate, candidate.relaxation, now)
            return
        if now - candidate.last_restored > TRIAL_SECONDS:
            candidate.pause = 0.0
        slow_path = self._slow_path(connection, candidate, now)
        if slow_path is None or not connection.is_proven(now):
            candidate.degraded_since = candidate.suspected = None
            return
        path, rate = slow_path
        known_until = connection.known_until(now)
        if candidate.degraded_since is None or candidate.suspected is not path:
            candidate.degraded_since = known_until - max(0.0, connection.span - WINDOW_SECONDS)
            candidate.suspected, candidate.suspected_since = path, now
        if known_until - candidate.degraded_since < self.guard.after or path.last_complete < candidate.suspected_since:
            return
        candidate.lengthen_pause(self.guard)
        baseline = round(path.baseline)
        candidate.relaxation = Relaxation(now + candidate.pause, path.address, round(rate), baseline, baseline, now)
        candidate.degraded_since = candidate.suspected = None
        candidate.healthy_since, candidate.counted_until = None, known_until

    def _update_relaxed(
        self, connection: GuardedConnection, candidate: Candidate, relaxation: Relaxation, now: float
    ) -> None:
        known_until = connection.known_until(now)
        seconds, candidate.counted_until = max(0.0, known_until - candidate.counted_until), known_until
        capped = [candidate.histories[each].rate for each in connection.capped if each in candidate.histories]
        self._counters.lacking_bytes += max(0.0, connection.compute_lacking(relaxation.baseline)) / 8 * seconds
        self._counters.relaxed_bytes += sum(capped) / 8 * seconds
        path = self._paths.used.get(relaxation.path)
        path = path if path is not None and path.last_sampled == now else None
        if path is None or path.rate < HEALTHY_SHARE * relaxation.baseline:
            candidate.healthy_since = None
        elif candidate.healthy_since is None:
            candidate.healthy_since = known_until - max(0.0, connection.span - WINDOW_SECONDS)
        is_healthy = candidate.healthy_since is not None and known_until - candidate.healthy_since >= self.guard.after
        if not is_healthy and now < relaxation.next_trial:
            lacking = round(max(MIN_RATE, connection.compute_lacking(relaxation.baseline)))
            differs = not MIN_LACKING_RATIO * relaxation.lacking <= lacking <= MAX_LACKING_RATIO * relaxation.lacking
            if differs and not 0 <= now - relaxation.measured_at < WINDOW_SECONDS:
                candidate.relaxation = relaxation._replace(lacking=lacking, measured_at=now)
        elif not is_healthy and path is not None and path.is_degraded and connection.is_backlogged(now):
            candidate.lengthen_pause(self.guard)
            candidate.relaxation = relaxation._replace(next_trial=now + candidate.pause)
        else:
            candidate.relaxation, candidate.last_restored = None, now
            if is_healthy:
                candidate.pause = 0.0

    def _slow_path(self, connection: GuardedConnection, candidate: Candidate, now: float) -> tuple[Path, float] | None:
        """Return the path with the best baseline and the connection's rate; None if the connection is not degraded."""
        capped = any(each in candidate.histories for each in connection.capped)
        if not capped or not connection.is_backlogged(now):
            candidate.backlogged_since = None
            return None
        if candidate.backlogged_since is None:
            candidate.backlogged_since = now
        present = [flow.path for flow in connection.flows if flow.present]
        if not present:
            return None  # the subflows changed between two slices
        best = max(present, key=lambda path: path.baseline)
        last_change = max(best.last_change, candidate.backlogged_since)
        was_healthy = best.last_healthy >= max(best.last_change, candidate.backlogged_since - connection.demand_delay())
        grace_end = last_change + GRACE_SECONDS - WINDOW_SECONDS
        if not was_healthy and now - max(connection.span, WINDOW_SECONDS) < grace_end:
            return None
        total = sum(each.rate for each in candidate.histories.values())
        has_enough = best.baseline < MIN_RATE or not best.is_degraded or total >= MAX_TOTAL_SHARE * best.baseline
        return None if has_enough else (best, total)
