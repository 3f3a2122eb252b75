# SPDX-License-Identifier: GPL-2.0-or-later
"""Detects capped connections whose rate is too low because their uncapped paths have degraded. Pure.

A capped connection should get at least what a TCP session over one path would get: the rate that the best of its
uncapped paths once had, its baseline (``stages.baseline``). A connection is degraded while it wants more than it gets,
all connections of the client over that path together get at most ``DEGRADED`` of the baseline (they get more if another
connection only takes its share), and all its own subflows together get less than ``MAX_TOTAL`` of the baseline.

Senders need time to use freed capacity. So after a subflow joins or leaves the path, or the connection begins to want
more, the path counts as degraded only if it was well in the meantime, or after ``GRACE`` seconds. No such grace applies
if the path was well just before the backlog appeared: on a fast path, little data waits until the path becomes slow.

After ``Guard.after`` seconds of degradation the caps are relaxed: the capped subflows may carry the rate that the
uncapped subflows lack of the baseline. At first that is the whole baseline, because measured rates are late; then it is
corrected at most once per window. The caps are restored when the path is well again. After ``Guard.retry`` seconds they
are restored as a trial, unless the path is evidently still degraded; this pause doubles each time.

If the span of the samples exceeds the window, the state counts as if it had already lasted for the difference. Nearly
all connections want no more than they get; each of them costs one comparison per uncapped subflow. The others are
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
    HEALTHY,
    MIN_RATE,
    MIN_SPAN,
    SLACK,
    WINDOW,
    Flow,
    History,
    Path,
    Paths,
    Sample,
)
from mptcp_throttler.stages.stage import SLICE, Sampled, Samples

MAX_TOTAL = 0.8  # share of the baseline; a connection whose subflows together get at least this is not degraded
GRACE = 2.5  # seconds that senders get to use freed capacity; see the module
LACKS_MORE, LACKS_LESS = 1.1, 0.7  # the allowance is updated if the lacking rate is beyond these multiples of it
TRIAL = 5.0  # Seconds. If a degradation begins this soon after the caps were restored, the next pause doubles.
MAX_IDLE_SAMPLES = 3  # a connection stops being a candidate after this many samples in a row without demand

FULL = 0.85  # a cap counts as full if the payload takes this fraction: headers add up to 8 % with small packets
FAIR = 0.5  # under a full shared cap, a subflow counts as wanting more if it has this fraction of an equal share
OWED_SECONDS = 0.05
COMPARABLE_SECONDS = OWED_SECONDS / 2  # received bytes are compared if all were read within this time, as in a look-up
OWED_BYTES = 2 * ASSIGNMENT_BYTES
"""Minimum number of missing bytes that count as owed. The known data sequence number of a subflow is imprecise: it is
the start of a chunk of up to 64 KB."""
LASTING_SECONDS, PROVEN_SECONDS = 1.0, 5.0
"""How long owed data count as demand, and as proof. While they fill its send buffer, a client sends little."""
LAPSE_SECONDS = 0.3  # a cap that is not full for at most this long still counts as full: the client does not want less
SILENT_SECONDS, SILENT_PIECES = 2.0, 3
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

    until: float  # latest time of the next trial of the caps
    path: bytes  # the client's address on the path that has degraded
    rate: int  # rate that the connection got
    baseline: int  # rate that this path once had
    lacking: int  # rate that the uncapped paths lack against the baseline: the allowance of the capped paths
    measured: float


class Capped(NamedTuple):
    scope: ScopeKey
    ceil: int


@dataclass(slots=True)
class Candidate:
    histories: dict[FourTuple, History] = field(default_factory=dict)
    idle_samples: int = 0
    backlogged_since: float | None = None
    degraded_since: float | None = None
    suspected: Path | None = None  # the path that seems degraded: its subflows must all be sampled first
    suspected_since: float = 0.0
    relaxation: Relaxation | None = None
    counted: float = 0.0  # time up to which the relaxation of this connection is included in ``GuardCounters``
    healthy_since: float | None = None
    pause: float = 0.0
    resumed: float = -inf

    def lengthen_pause(self, guard: Guard) -> None:
        self.pause = min(guard.longest_retry, 2 * self.pause) if self.pause else guard.retry


@dataclass(slots=True, eq=False)
class GuardedConnection:
    """One connection with guarded caps, and the evidence of its download: a backlog. Each uncapped subflow has waiting
    data that take some time to be sent at its present rate, or gets no acknowledgements for the data it sent. An idle
    or slow application has no data waiting; a slow client limits its subflow by its receive window."""

    samples_all: ClassVar[bool] = False  # whether all subflows are sampled in every sweep, not only the uncapped ones

    token: int
    shared: dict[ScopeKey, Path]  # the load under each cap, for uploads only
    uncapped: Sequence[FourTuple] = ()
    capped: Mapping[FourTuple, Capped] = field(default_factory=dict)
    flows: tuple[Flow, ...] = ()  # the uncapped subflows
    candidate: Candidate | None = None
    rules: tuple[str, ...] = ()  # names of the rules of the connection's guarded caps
    reported: bool = False  # whether it was reported that the caps are relaxed

    @property
    def histories(self) -> list[History]:
        found = {} if self.candidate is None else self.candidate.histories
        return [found[each] for each in self.uncapped if each in found]

    def read(self, now: float) -> float:
        """Return the time up to which all uncapped subflows are known; durations are counted up to it."""
        return min((each.last for each in self.histories), default=now)

    @property
    def span(self) -> float:
        """Seconds over which the rates of all uncapped subflows are known."""
        return min((each.span for each in self.histories), default=0.0)

    def lacking(self, baseline: float) -> float:
        """Return the shortfall of the uncapped subflows against *baseline*, bits/s."""
        return baseline - sum(each.rate for each in self.histories)

    def take_caps(self) -> None:
        """Update the state of the caps when subflows or caps have changed."""

    def take(self, flow: Flow, sample: KernelSubflow) -> bool:
        """Record the sample of an uncapped subflow; return whether data wait on it."""
        return bool((not flow.take(sample.read, sample.delivered) and sample.tcp.unacked) or sample.tcp.not_sent)

    def wants(self, samples: Samples, present: int, waiting: int) -> bool:
        """Return whether the connection wants more: data wait on *waiting* of *present* uncapped subflows."""
        return waiting >= present > 0

    def sample_of(self, there: KernelSubflow) -> Sample:
        tcp = there.tcp
        return Sample(there.read, there.delivered, tcp.not_sent, tcp.unacked, tcp.receive_window_limited)

    def is_backlogged(self, now: float) -> bool:
        uncapped = self.histories
        return bool(uncapped) and all(each.span >= MIN_SPAN and each.backlogged for each in uncapped)

    def onset(self) -> float:
        """Return how many seconds may pass from a degradation until it shows as a backlog."""
        return max(WINDOW, 2 * self.span) + SLACK

    def is_proven(self, now: float) -> bool:
        """Return whether a path with a low rate certainly cannot carry more."""
        return True


@dataclass(slots=True, eq=False)
class GuardedUpload(GuardedConnection):
    """One connection with guarded caps, and the evidence of its upload. *Demand*: the capped path is at its cap; under
    a shared cap the subflow must also have about its share. *Proof*: a path that carries little owes data, or carries
    nothing while the cap is full. A path owes data if bytes are missing that were sent over it. The missing bytes are
    the advance of the data sequence (RFC 8684, 3.3) less the bytes received. Data that the client sends again over
    another path arrive twice and lower this figure, so its lowest value so far counts as zero."""

    samples_all = True

    caps: list[tuple[Flow, Capped]] = field(default_factory=list)
    wanted_since: float | None = None
    wanted: float = -inf  # when the connection last wanted more than it got
    owed: float = -inf  # when an uncapped path last owed data
    progressed: float = -inf  # when data last arrived over an uncapped path, or no cap was full
    known: float = -inf  # when the first of the uncapped subflows was read for the last sample
    _seen: list[FourTuple] = field(default_factory=list)
    _first: int = 0
    _least: int = 0  # data sequence number when ``_seen`` last changed, and lowest number of missing bytes since

    def take_caps(self) -> None:
        before = {(flow.four_tuple, cap.scope): flow for flow, cap in self.caps}
        self.caps = []
        for four_tuple, cap in self.capped.items():
            flow = before.pop((four_tuple, cap.scope), None)
            if flow is None:
                flow = Flow(four_tuple, self.shared.setdefault(cap.scope, Path(four_tuple.remote)))
            self.caps.append((flow, cap))
        for (_, scope), flow in before.items():
            flow.leave()
            if not flow.path.flows:
                self.shared.pop(scope, None)

    def take(self, flow: Flow, sample: KernelSubflow) -> bool:
        if flow.take(sample.read, sample.bytes_received):
            self.progressed = max(self.progressed, sample.read)
        return False

    def wants(self, samples: Samples, present: int, waiting: int) -> bool:
        now, candidate = samples.time, self.candidate
        relaxed = candidate is not None and candidate.relaxation is not None
        full = False
        for flow, cap in self.caps:
            sample = samples.sockets.get(flow.four_tuple)
            history = None if candidate is None else candidate.histories.get(flow.four_tuple)
            if sample is None or sample.backup or relaxed:
                if samples.complete or sample is not None:
                    flow.pause()
                full |= relaxed and history is not None and history.rate >= FULL * cap.ceil
                continue
            flow.take(sample.read, sample.bytes_received)
            flow.take_rate(history)
        times = [there.read for each in self.uncapped if (there := samples.sockets.get(each)) is not None]
        self.known = min(times, default=self.known)
        full = full or any(_is_full(flow, cap) for flow, cap in self.caps)
        if full or candidate is not None:
            self._see_what_is_owed(samples)
        if not full:
            self.progressed = now
            if now - self.owed > LASTING_SECONDS:
                if now - self.wanted > LAPSE_SECONDS:
                    self.wanted_since = None
                return False
        self.wanted = now
        if self.wanted_since is None:
            self.wanted_since = now
        return present > 0

    def _see_what_is_owed(self, samples: Samples) -> None:
        found = [samples.sockets.get(each) for each in (*self.uncapped, *self.capped)]
        there = [each for each in found if each is not None and each.data_sequence]
        paths = [flow.path for flow in self.flows if flow.present]
        if len(there) < 2 or not paths:
            return
        times = [each.read for each in there]
        if max(times) - min(times) > COMPARABLE_SECONDS:
            return  # bytes that arrived between the reads are not missing
        top = max((each.data_sequence for each in there), key=lambda one: bytes_ahead(one, there[0].data_sequence))
        best = max(paths, key=lambda path: path.baseline)
        over_best = [each.data_sequence for each in there if each.four_tuple.remote == best.address]
        behind = min((bytes_ahead(top, each) for each in over_best), default=0)
        least = max(OWED_BYTES, OWED_SECONDS * best.baseline / 8)
        seen, received = [each.four_tuple for each in there], sum([each.bytes_received for each in there])
        if seen != self._seen:
            # Start again, because the bytes received on a subflow that has ended are no longer in the sum.
            self._seen, self._first, self._least = seen, top, -received
        missing = bytes_ahead(top, self._first) - received
        self._least = min(self._least, missing)
        if missing - self._least >= least and behind >= least:
            self.owed = samples.time

    def sample_of(self, there: KernelSubflow) -> Sample:
        return Sample(there.read, there.bytes_received)

    def is_backlogged(self, now: float) -> bool:
        lasts = self.wanted_since is not None and now - self.wanted_since >= MIN_SPAN
        return lasts and any(each.span >= MIN_SPAN for each in self.histories)

    def onset(self) -> float:
        return 0.0  # demand itself shows only after a while, so no further delay is added

    def is_proven(self, now: float) -> bool:
        pieces = [8 * SILENT_PIECES * ASSIGNMENT_BYTES / cap.ceil for _, cap in self.caps]
        silence = SILENT_SECONDS + min(pieces, default=0.0)
        return now - self.owed <= PROVEN_SECONDS or self.known - self.progressed >= silence


def _is_full(flow: Flow, cap: Capped) -> bool:
    """Return whether *cap* is full and the subflow *flow* has its share of it."""
    path = flow.path
    share = FULL if path.present == 1 else FAIR / max(1, path.present)
    return flow.present and path.rate >= FULL * cap.ceil and flow.rate >= share * cap.ceil


class DegradationDetector:
    """Observes connections with guarded caps in one direction."""

    def __init__(self, guard: Guard, counters: GuardCounters, direction: Direction) -> None:
        self.guard = guard
        self._counters = counters
        self._kind = GuardedUpload if direction is Direction.UP else GuardedConnection
        self.connections: dict[int, GuardedConnection] = {}
        self.shared: dict[ScopeKey, Path] = {}
        self._candidates: dict[int, Candidate] = {}
        self._sampled = Sampled()
        self._paths = Paths()

    def watch(self, token: int, uncapped: Sequence[FourTuple], capped: Mapping[FourTuple, Capped]) -> GuardedConnection:
        """Observe connection *token*. *capped*: the subflows that the policy caps, relaxed or not."""
        connection = self.connections.get(token)
        if connection is None:
            connection = self.connections[token] = self._kind(token, self.shared)
        elif connection.uncapped == uncapped and connection.capped == capped:
            return connection
        self._sampled.remove(token, (*connection.uncapped, *connection.capped))
        before = {flow.four_tuple: flow for flow in connection.flows}
        connection.flows = tuple(before.pop(each) if each in before else self._paths.join(each) for each in uncapped)
        for flow in before.values():
            self._paths.leave(flow)
        connection.uncapped, connection.capped = uncapped, capped
        connection.take_caps()
        everything = self._kind.samples_all or connection.candidate is not None
        self._sampled |= dict.fromkeys((*uncapped, *capped) if everything else uncapped, token)
        if connection.candidate is not None:
            for gone in connection.candidate.histories.keys() - {*uncapped, *capped}:
                del connection.candidate.histories[gone]
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

    def relaxed(self) -> Set[int]:
        return {token for token, each in self._candidates.items() if each.relaxation is not None}

    def watched(self) -> Set[FourTuple]:
        return self._sampled.keys()

    def urgent(self) -> Set[FourTuple]:
        """Return all subflows of candidates, adjacent so that look-ups read them together, and of suspected paths."""
        found: dict[FourTuple, None] = {}
        for token in self._candidates:
            connection = self.connections[token]
            found |= dict.fromkeys((*connection.uncapped, *connection.capped))
        for path in dict.fromkeys([each.suspected for each in self._candidates.values()]):
            found |= dict.fromkeys(() if path is None else path.flows)
        return found.keys()

    def observe(self, samples: Samples) -> Iterator[Collection[int]]:
        """Process *samples*, a slice at a time; yield the connections whose relaxation began, changed or ended."""
        if not self.connections:
            return
        now = samples.time
        self._paths.begin(now)
        sampled: dict[Path, None] = {}
        candidates: list[tuple[GuardedConnection, Candidate]] = []
        for number, token in enumerate(self._sampled.tokens(samples, self.connections), 1):
            if not number % SLICE:
                yield ()
            connection = self.connections.get(token)
            if connection is None:
                continue  # the connection ended between two slices
            present, waiting = self._take(connection, samples, sampled)
            wants = connection.wants(samples, present, waiting)
            candidate = connection.candidate
            if candidate is None:
                if not wants:
                    continue
                candidate = connection.candidate = self._candidates[token] = Candidate()
                self._sampled |= dict.fromkeys(connection.capped, token)
            candidate.idle_samples = 0 if wants else candidate.idle_samples + 1
            self._record(connection, candidate, samples)
            candidates.append((connection, candidate))
        for number, path in enumerate(sampled, 1):
            if not number % SLICE:
                yield ()
            path.conclude(now)
        changed: set[int] = set()
        for number, (connection, candidate) in enumerate(candidates, 1):
            if not number % SLICE:
                yield changed
                changed = set()
            if self.connections.get(connection.token) is not connection:
                continue
            before = candidate.relaxation
            self._judge(connection, candidate, now)
            after = candidate.relaxation
            if before is not after and (before is None or after is None or before.lacking != after.lacking):
                changed.add(connection.token)
            if candidate.idle_samples >= MAX_IDLE_SAMPLES and after is None and now - candidate.resumed > TRIAL:
                connection.candidate = None
                del self._candidates[connection.token]
                if not self._kind.samples_all:
                    self._sampled.remove(connection.token, connection.capped)
        yield changed

    def _take(self, connection: GuardedConnection, samples: Samples, sampled: dict[Path, None]) -> tuple[int, int]:
        """Return how many of the uncapped subflows have a socket and data waiting; add their paths to *sampled*."""
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
                    flow.path.disturbed = now
                present += flow.present
                continue
            path = flow.path
            if path.sampled != now:
                path.sampled, sampled[path] = now, None
                path.reads.clear()
            present += 1
            path.reads.append(sample.read)
            waiting += connection.take(flow, sample)
        return present, waiting

    def _record(self, known: GuardedConnection, candidate: Candidate, samples: Samples) -> None:
        histories = candidate.histories
        for four_tuple in (*known.uncapped, *known.capped):
            there = samples.sockets.get(four_tuple)
            if there is not None and not there.backup:
                histories.setdefault(four_tuple, History()).add(known.sample_of(there))
            elif there is not None or samples.complete:
                histories.pop(four_tuple, None)
        for flow in known.flows:
            flow.take_rate(histories.get(flow.four_tuple))

    def _judge(self, known: GuardedConnection, candidate: Candidate, now: float) -> None:
        if candidate.relaxation is not None:
            self._judge_relaxed(known, candidate, candidate.relaxation, now)
            return
        if now - candidate.resumed > TRIAL:
            candidate.pause = 0.0
        found = self._degradation(known, candidate, now)
        if found is None or not known.is_proven(now):
            candidate.degraded_since = candidate.suspected = None
            return
        path, rate = found
        read = known.read(now)
        if candidate.degraded_since is None or candidate.suspected is not path:
            candidate.degraded_since = read - max(0.0, known.span - WINDOW)
            candidate.suspected, candidate.suspected_since = path, now
        if read - candidate.degraded_since < self.guard.after or path.complete < candidate.suspected_since:
            return
        candidate.lengthen_pause(self.guard)
        baseline = round(path.baseline)
        candidate.relaxation = Relaxation(now + candidate.pause, path.address, round(rate), baseline, baseline, now)
        candidate.degraded_since = candidate.suspected = None
        candidate.healthy_since, candidate.counted = None, read

    def _judge_relaxed(
        self, known: GuardedConnection, candidate: Candidate, relaxation: Relaxation, now: float
    ) -> None:
        read = known.read(now)
        seconds, candidate.counted = max(0.0, read - candidate.counted), read
        capped = [candidate.histories[each].rate for each in known.capped if each in candidate.histories]
        self._counters.lacking_bytes += max(0.0, known.lacking(relaxation.baseline)) / 8 * seconds
        self._counters.relaxed_bytes += sum(capped) / 8 * seconds
        path = self._paths.used.get(relaxation.path)
        path = path if path is not None and path.sampled == now else None
        if path is None or path.rate < HEALTHY * relaxation.baseline:
            candidate.healthy_since = None
        elif candidate.healthy_since is None:
            candidate.healthy_since = read - max(0.0, known.span - WINDOW)
        seen_well = candidate.healthy_since is not None and read - candidate.healthy_since >= self.guard.after
        if not seen_well and now < relaxation.until:
            lacking = round(max(MIN_RATE, known.lacking(relaxation.baseline)))
            differs = not LACKS_LESS * relaxation.lacking <= lacking <= LACKS_MORE * relaxation.lacking
            if differs and not 0 <= now - relaxation.measured < WINDOW:
                candidate.relaxation = relaxation._replace(lacking=lacking, measured=now)
        elif not seen_well and path is not None and path.degraded and known.is_backlogged(now):
            candidate.lengthen_pause(self.guard)
            candidate.relaxation = relaxation._replace(until=now + candidate.pause)
        else:
            candidate.relaxation, candidate.resumed = None, now
            if seen_well:
                candidate.pause = 0.0

    def _degradation(self, known: GuardedConnection, candidate: Candidate, now: float) -> tuple[Path, float] | None:
        """Return the path with the best baseline and the connection's rate, bits/s; None if it is not degraded."""
        capped = any(each in candidate.histories for each in known.capped)
        if not capped or not known.is_backlogged(now):
            candidate.backlogged_since = None
            return None
        if candidate.backlogged_since is None:
            candidate.backlogged_since = now
        present = [flow.path for flow in known.flows if flow.present]
        if not present:
            return None  # the subflows changed between two slices
        best = max(present, key=lambda path: path.baseline)
        span = known.span
        disturbed = max(best.disturbed, candidate.backlogged_since)
        was_well = best.well >= max(best.disturbed, candidate.backlogged_since - known.onset())
        if not was_well and now - max(span, WINDOW) < disturbed + GRACE - WINDOW:
            return None
        total = sum(each.rate for each in candidate.histories.values())
        enough = best.baseline < MIN_RATE or not best.degraded or total >= MAX_TOTAL * best.baseline
        return None if enough else (best, total)
