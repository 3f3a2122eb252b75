"""Detects capped connections that get too little because their uncapped paths have degraded. Pure.

A capped connection should get no less than a TCP session over one path would. It relies on its uncapped paths, so the
baseline is what the best of them once gave (``stages.baseline``). A connection is degraded while

- it wants more than it gets;
- the path of its uncapped subflows has degraded: all connections of that client together get at most ``DEGRADED`` of
  the baseline. If another connection merely takes its share, they get more;
- all its subflows together get less than ``MAX_TOTAL`` of the baseline.

Senders need time to use freed capacity. After a subflow joins or leaves the path, or the connection begins to want
more, the path counts as degraded only if it was seen well since, or after ``GRACE`` seconds. A path that was well just
before the backlog showed needs no grace: on a fast path too little data waits to count until the path gets slow.

After ``Guard.after`` seconds of this the caps are relaxed: the capped subflows may carry what the uncapped ones lack
of the baseline. At first that is the whole baseline, because rates lag behind; then it is corrected at most once per
window. The caps come back when the path is seen well again, or as a trial after ``Guard.retry`` seconds unless the path
is evidently still degraded. The pause doubles each time.

Samples of one subflow may be 0.1 s or several seconds apart. If their span exceeds the window, the state counts as
having held for the difference already.

*Evidence of a download*: a backlog. Each uncapped subflow has data waiting that takes a while to send at its present
rate, or makes no progress with what it sent. Idle and slow applications have nothing waiting; a slow client's window
limits its subflow.

*Evidence of an upload*: the client's backlog is unknown. *Demand*: the capped path is at its cap. Linux's scheduler
gives the next data to the subflow that would finish first, so a client that sends less than its paths carry fills
neither; but a cap of 1 Mbit/s fills sooner. Under a shared cap the subflow also needs about its share. *Proof*: a path
that carries little could carry no more. Either it owes data: the other paths are ahead of it in the data sequence
(RFC 8684, 3.3), and at least what it once carried in ``OWED_SECONDS`` is missing. Or it carries nothing while the cap
is full, for longer than the scheduler leaves a healthy path unused. The missing bytes are the advance of the data
sequence less the bytes received. Retransmissions over another path arrive twice and lower this figure, so the least
ever seen counts as zero: the result is a lower bound.

Cost: a connection that wants no more than it gets, as nearly all do, costs one comparison per uncapped subflow. Only
the others are candidates, with samples of all their subflows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Guard
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES
from mptcp_throttler.shaping.onset.uploads import ahead
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

MAX_TOTAL = 0.8
"""Fraction of the baseline; a connection that gets this much in total is not degraded."""
GRACE = 2.5
"""Seconds."""
LACKS_MORE, LACKS_LESS = 1.1, 0.7
"""Factors of the allowance over the capped paths; outside them it is set anew."""
TRIAL = 5.0
"""Seconds. A degradation this soon after the caps came back doubles the next pause."""
MAX_IDLE_SAMPLES = 3
"""A connection stops being a candidate after this many samples in a row without demand."""

FULL = 0.85
"""Payload fraction of a full cap: the cap counts headers too, 8 % with small packets."""
FAIR = 0.5
"""Fraction of an equal share of a full cap that a subflow must have to count as wanting more."""
OWED_SECONDS = 0.05
COMPARABLE_SECONDS = OWED_SECONDS / 2
"""Longest time between the reads of subflows whose received bytes are compared; look-ups read them together."""
OWED_BYTES = 2 * ASSIGNMENT_BYTES
"""Minimum: the known data sequence of a subflow is the start of a piece of at most 64 KB."""
LASTING_SECONDS, PROVEN_SECONDS = 1.0, 5.0
"""How long owed data counts as demand, and as proof. A client sends little while owed data fills its send buffer."""
LAPSE_SECONDS = 0.3
"""A cap that is less full for up to this long does not mean that the client wants less."""
SILENT_SECONDS, SILENT_PIECES = 2.0, 3
"""Proof by silence on a path while a cap is full: seconds, plus the time the cap takes for this many pieces of the
scheduler. The scheduler may leave a healthy path unused for that long."""


@dataclass(slots=True)
class GuardCounters:
    """Counters since the start of the daemon."""

    relaxations: int = 0
    resumptions: int = 0
    lacking_bytes: float = 0.0
    """Shortfall of the uncapped paths against their baseline while caps were relaxed."""
    relaxed_bytes: float = 0.0
    """Bytes of the capped subflows in that time."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The caps of one connection are relaxed."""

    until: float
    """Latest time of the next trial of the caps."""
    path: bytes
    """The client's address on the path that has degraded."""
    rate: int
    """What the connection got, bits/s."""
    baseline: int
    """What that path by itself once gave, bits/s."""
    lacking: int
    """Shortfall of its uncapped paths against the baseline, bits/s: its allowance over the capped paths."""
    measured: float


class Capped(NamedTuple):
    """The cap of one subflow."""

    scope: ScopeKey
    ceil: int
    """Bits/s."""


@dataclass(slots=True)
class Candidate:
    """State of a connection that is or may be degraded."""

    histories: dict[FourTuple, History] = field(default_factory=dict)
    idle_samples: int = 0
    backlogged_since: float | None = None
    degraded_since: float | None = None
    suspected: Path | None = None
    """The path that seems to have degraded. All its subflows must be sampled before caps are relaxed."""
    suspected_since: float = 0.0
    relaxation: Relaxation | None = None
    counted: float = 0.0
    """Time up to which ``GuardCounters`` include this connection."""
    healthy_since: float | None = None
    pause: float = 0.0
    resumed: float = -inf

    def lengthen_pause(self, guard: Guard) -> None:
        self.pause = min(guard.longest_retry, 2 * self.pause) if self.pause else guard.retry

    def not_degraded(self) -> None:
        self.degraded_since = self.suspected = None

    def may_go(self, now: float) -> bool:
        """Return whether nothing about it must be remembered."""
        return self.idle_samples >= MAX_IDLE_SAMPLES and self.relaxation is None and now - self.resumed > TRIAL


class UploadDemand:
    """The demand of one upload."""

    __slots__ = ("_first", "_least", "_seen", "caps", "owed", "progressed", "read", "wanted", "wanted_since")

    def __init__(self) -> None:
        self.caps: list[tuple[Flow, Capped]] = []
        self.wanted_since: float | None = None
        self.wanted = -inf
        """When it last wanted more than it got."""
        self.owed = -inf
        """When an uncapped path last owed data."""
        self.progressed = -inf
        """When data last came over an uncapped path, or no cap was full."""
        self.read = -inf
        """Time up to which all uncapped subflows are known."""
        self._seen: list[FourTuple] = []
        self._first = self._least = 0
        """Data sequence when ``_seen`` last changed, and the least missing since."""

    def missing(self, there: list[KernelSubflow], top: int) -> int:
        """Return a lower bound of the bytes missing below *top*, the greatest data sequence."""
        seen = [each.four_tuple for each in there]
        received = sum([each.bytes_received for each in there])
        if seen != self._seen:
            # Bytes of a subflow that is gone no longer count.
            self._seen, self._first, self._least = seen, top, -received
        missing = ahead(top, self._first) - received
        self._least = min(self._least, missing)
        return missing - self._least

    @property
    def full(self) -> bool:
        """Whether a cap is full and this connection has its share of it."""
        return any(
            flow.present
            and flow.path.rate >= FULL * cap.ceil
            and flow.rate >= (FULL if flow.path.present == 1 else FAIR / flow.path.present) * cap.ceil
            for flow, cap in self.caps
        )

    def wants(self, now: float, full: bool) -> bool:
        """Record whether a cap is *full*; return whether the client wants more than it gets."""
        if not full:
            self.progressed = now
        if not full and now - self.owed > LASTING_SECONDS:
            if now - self.wanted > LAPSE_SECONDS:
                self.wanted_since = None
            return False
        self.wanted = now
        if self.wanted_since is None:
            self.wanted_since = now
        return True

    def proves(self, now: float) -> bool:
        """Return whether a path that gives little can give no more."""
        silence = SILENT_SECONDS + min(
            (8 * SILENT_PIECES * ASSIGNMENT_BYTES / cap.ceil for _, cap in self.caps), default=0.0
        )
        return now - self.owed <= PROVEN_SECONDS or self.read - self.progressed >= silence


class GuardedConnection:
    """One connection with guarded caps."""

    __slots__ = ("candidate", "capped", "demand", "flows", "token", "uncapped")
    demand: UploadDemand
    """Uploads only."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.uncapped: tuple[FourTuple, ...] = ()
        self.capped: Mapping[FourTuple, Capped] = {}
        self.flows: tuple[Flow, ...] = ()
        """The uncapped subflows."""
        self.candidate: Candidate | None = None

    @property
    def histories(self) -> list[History]:
        """Histories of the uncapped subflows."""
        found = {} if self.candidate is None else self.candidate.histories
        return [found[each] for each in self.uncapped if each in found]

    def read(self, now: float) -> float:
        """Return the time up to which all uncapped subflows are known; durations count up to it."""
        return min((each.last for each in self.histories), default=now)

    @property
    def span(self) -> float:
        """Seconds over which the rates of all uncapped subflows are known."""
        return min((each.span for each in self.histories), default=0.0)

    def lacking(self, baseline: float) -> float:
        """Return the shortfall of the uncapped subflows against *baseline*, bits/s."""
        return baseline - sum(each.rate for each in self.histories)


class DownloadEvidence:
    """The evidence of downloads."""

    samples_all = False
    """Whether every sweep has all subflows, not only the uncapped ones."""

    def begin(self, connection: GuardedConnection) -> None:
        """Begin to observe *connection*."""

    def watch(self, connection: GuardedConnection) -> None:
        """Take the new subflows or caps of *connection*."""

    def forget(self, connection: GuardedConnection) -> None:
        """Drop *connection*, which has ended."""

    def take(self, connection: GuardedConnection, flow: Flow, sample: KernelSubflow) -> bool:
        """Take the sample of an uncapped subflow; return whether data wait on it."""
        # Same as KernelSubflow.delivered, which costs more.
        tcp = sample.tcp
        delivered = sample.bytes_acked + tcp.sacked * tcp.mss if tcp.sacked else sample.bytes_acked
        return bool((not flow.take(sample.read, delivered) and tcp.unacked) or tcp.not_sent)

    def wanting(self, connection: GuardedConnection, samples: Samples, present: int, waiting: int) -> int:
        """Return on how many of the *present* uncapped subflows data seem to wait."""
        return waiting

    def sample_of(self, there: KernelSubflow) -> Sample:
        tcp = there.tcp
        return Sample(there.read, there.delivered, tcp.not_sent, tcp.unacked, tcp.receive_window_limited)

    def is_backlogged(self, connection: GuardedConnection, now: float) -> bool:
        uncapped = connection.histories
        return bool(uncapped) and all(each.span >= MIN_SPAN and each.backlogged for each in uncapped)

    def onset(self, span: float) -> float:
        """Return how many seconds a degradation may take to show as a backlog, if samples span *span* seconds."""
        return max(WINDOW, 2 * span) + SLACK

    def is_proven(self, connection: GuardedConnection, now: float) -> bool:
        """Return whether a path that gives little can give no more."""
        return True


class UploadEvidence(DownloadEvidence):
    """The evidence of uploads."""

    samples_all = True

    def __init__(self) -> None:
        self.shared: dict[ScopeKey, Path] = {}

    def begin(self, connection: GuardedConnection) -> None:
        connection.demand = UploadDemand()

    def watch(self, connection: GuardedConnection) -> None:
        demand = connection.demand
        before = {(flow.four_tuple, cap.scope): flow for flow, cap in demand.caps}
        caps = []
        for four_tuple, cap in connection.capped.items():
            flow = before.pop((four_tuple, cap.scope), None)
            if flow is None:
                flow = Flow(four_tuple, self.shared.setdefault(cap.scope, Path(four_tuple.remote)))
            caps.append((flow, cap))
        demand.caps = caps
        for (_, scope), flow in before.items():
            self._leave(flow, scope)

    def forget(self, connection: GuardedConnection) -> None:
        for flow, cap in connection.demand.caps:
            self._leave(flow, cap.scope)

    def _leave(self, flow: Flow, scope: ScopeKey) -> None:
        flow.leave()
        if not flow.path.flows:
            self.shared.pop(scope, None)

    def take(self, connection: GuardedConnection, flow: Flow, sample: KernelSubflow) -> bool:
        if flow.take(sample.read, sample.bytes_received):
            connection.demand.progressed = max(connection.demand.progressed, sample.read)
        return False

    def wanting(self, connection: GuardedConnection, samples: Samples, present: int, waiting: int) -> int:
        demand, candidate = connection.demand, connection.candidate
        relaxed = candidate is not None and candidate.relaxation is not None
        full = False
        for flow, cap in demand.caps:
            sample = samples.sockets.get(flow.four_tuple)
            history = None if candidate is None else candidate.histories.get(flow.four_tuple)
            if sample is None or sample.backup or relaxed:
                if samples.complete or sample is not None:
                    flow.pause()
                full |= relaxed and history is not None and history.rate >= FULL * cap.ceil
                continue
            flow.take(sample.read, sample.bytes_received)
            flow.take_rate(history)
        times = [there.read for each in connection.uncapped if (there := samples.sockets.get(each)) is not None]
        demand.read = min(times, default=demand.read)
        full = full or demand.full
        if full or candidate is not None:
            self._see_what_is_owed(connection, demand, samples)
        return present if demand.wants(samples.time, full) else 0

    @staticmethod
    def _see_what_is_owed(connection: GuardedConnection, demand: UploadDemand, samples: Samples) -> None:
        found = [samples.sockets.get(each) for each in (*connection.uncapped, *connection.capped)]
        there = [each for each in found if each is not None and each.data_sequence]
        paths = [flow.path for flow in connection.flows if flow.present]
        if len(there) < 2 or not paths:
            return
        times = [each.read for each in there]
        if max(times) - min(times) > COMPARABLE_SECONDS:
            return  # bytes that arrived between the reads are not missing
        top = there[0].data_sequence
        for each in there:
            top = each.data_sequence if ahead(each.data_sequence, top) > 0 else top
        best = max(paths, key=lambda path: path.baseline)
        over_best = [each.data_sequence for each in there if each.four_tuple.remote == best.address]
        behind = min((ahead(top, each) for each in over_best), default=0)
        least = max(OWED_BYTES, OWED_SECONDS * best.baseline / 8)
        if demand.missing(there, top) >= least and behind >= least:
            demand.owed = samples.time

    def sample_of(self, there: KernelSubflow) -> Sample:
        return Sample(there.read, there.bytes_received)

    def is_backlogged(self, connection: GuardedConnection, now: float) -> bool:
        since = connection.demand.wanted_since
        return (
            since is not None
            and now - since >= MIN_SPAN
            and any(each.span >= MIN_SPAN for each in connection.histories)
        )

    def onset(self, span: float) -> float:
        return 0.0  # A client wants more for a while before it shows.

    def is_proven(self, connection: GuardedConnection, now: float) -> bool:
        return connection.demand.proves(now)


class DegradationDetector:
    """Observes connections with guarded caps in one direction. Times are monotonic, in seconds."""

    def __init__(
        self, guard: Guard, counters: GuardCounters | None = None, evidence: DownloadEvidence | None = None
    ) -> None:
        """Add to *counters*, if given. *evidence* defaults to that of downloads."""
        self.guard = guard
        self.counters = counters or GuardCounters()
        self.connections: dict[int, GuardedConnection] = {}
        self._evidence = evidence or DownloadEvidence()
        self._candidates: dict[int, GuardedConnection] = {}
        self._sampled = Sampled()
        self._paths = Paths()

    def watch(self, token: int, uncapped: tuple[FourTuple, ...], capped: Mapping[FourTuple, Capped]) -> None:
        """Observe connection *token*. *capped*: what the policy caps, relaxed or not."""
        connection = self.connections.get(token)
        if connection is None:
            connection = self.connections[token] = GuardedConnection(token)
            self._evidence.begin(connection)
        elif connection.uncapped == uncapped and connection.capped == capped:
            return
        self._sampled.remove(token, (*connection.uncapped, *connection.capped))
        before = {flow.four_tuple: flow for flow in connection.flows}
        connection.flows = tuple(before.pop(each) if each in before else self._paths.join(each) for each in uncapped)
        for flow in before.values():
            self._paths.leave(flow)
        connection.uncapped, connection.capped = uncapped, capped
        self._evidence.watch(connection)
        everything = self._evidence.samples_all or connection.candidate is not None
        self._sampled.add(token, (*uncapped, *capped) if everything else uncapped)
        if connection.candidate is not None:
            for gone in connection.candidate.histories.keys() - {*uncapped, *capped}:
                del connection.candidate.histories[gone]

    def forget(self, token: int) -> None:
        """Drop connection *token*, which has ended or has no guarded caps."""
        connection = self.connections.pop(token, None)
        if connection is None:
            return
        self._candidates.pop(token, None)
        self._sampled.remove(token, (*connection.uncapped, *connection.capped))
        for flow in connection.flows:
            self._paths.leave(flow)
        self._evidence.forget(connection)

    def relaxation(self, token: int) -> Relaxation | None:
        """Return why the caps of connection *token* are relaxed; None while they are not."""
        connection = self._candidates.get(token)
        return None if connection is None or connection.candidate is None else connection.candidate.relaxation

    def relaxed(self) -> Set[int]:
        """Return the connections whose caps are relaxed."""
        return {token for token in self._candidates if self.relaxation(token) is not None}

    def watched(self) -> Set[FourTuple]:
        """Return the subflows that must be in every sweep."""
        return self._sampled.four_tuples

    def urgent(self) -> Set[FourTuple]:
        """Return all subflows of candidates, adjacent so that look-ups read them together, and of suspected paths."""
        found: dict[FourTuple, None] = {}
        suspected: dict[Path, None] = {}
        for connection in self._candidates.values():
            found.update(dict.fromkeys((*connection.uncapped, *connection.capped)))
            if connection.candidate is not None and connection.candidate.suspected is not None:
                suspected[connection.candidate.suspected] = None
        for path in suspected:
            found.update(dict.fromkeys(path.flows))
        return found.keys()

    def observe(self, samples: Samples) -> Iterator[Collection[int]]:
        """Take *samples*, a slice at a time; yield the connections whose relaxation began, changed or ended."""
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
                continue  # it ended between two slices
            present, waiting = self._take(connection, samples, sampled)
            waiting = self._evidence.wanting(connection, samples, present, waiting)
            wants = bool(present) and waiting >= present
            candidate = connection.candidate
            if candidate is None:
                if not wants:
                    continue
                candidate = connection.candidate = Candidate()
                self._candidates[token] = connection
                self._sampled.add(token, connection.capped)
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
            if candidate.may_go(now):
                connection.candidate = None
                del self._candidates[connection.token]
                if not self._evidence.samples_all:
                    self._sampled.remove(connection.token, connection.capped)
        yield changed

    def _take(self, connection: GuardedConnection, samples: Samples, sampled: dict[Path, None]) -> tuple[int, int]:
        """Take uncapped subflows; return how many are there and on how many data wait. Add their paths to *sampled*."""
        now, sockets, complete, _ = samples
        present = waiting = 0
        for flow in connection.flows:
            sample = sockets.get(flow.four_tuple)
            if sample is not None and sample.token != connection.token:
                present += flow.present
                continue  # an earlier connection had the four-tuple when the sweep read the socket
            if sample is None or sample.backup:
                if flow.present and (complete or sample is not None):
                    flow.pause()
                    flow.path.disturbed = now
                present += flow.present
                continue
            path = flow.path
            if path.sampled != now:
                path.begin(now)
                sampled[path] = None
            present += 1
            path.reads.append(sample.read)
            waiting += self._evidence.take(connection, flow, sample)
        return present, waiting

    def _record(self, connection: GuardedConnection, candidate: Candidate, samples: Samples) -> None:
        histories = candidate.histories
        for four_tuple in (*connection.uncapped, *connection.capped):
            there = samples.sockets.get(four_tuple)
            if there is not None and not there.backup:
                histories.setdefault(four_tuple, History()).add(self._evidence.sample_of(there))
            elif there is not None or samples.complete:
                histories.pop(four_tuple, None)
        for flow in connection.flows:
            flow.take_rate(histories.get(flow.four_tuple))

    def _judge(self, connection: GuardedConnection, candidate: Candidate, now: float) -> None:
        if candidate.relaxation is not None:
            self._judge_relaxed(connection, candidate, candidate.relaxation, now)
            return
        if now - candidate.resumed > TRIAL:
            candidate.pause = 0.0
        found = self._degradation(connection, candidate, now)
        if found is None or not self._evidence.is_proven(connection, now):
            candidate.not_degraded()
            return
        path, rate = found
        read = connection.read(now)
        if candidate.degraded_since is None or candidate.suspected is not path:
            candidate.degraded_since = read - max(0.0, connection.span - WINDOW)
            candidate.suspected, candidate.suspected_since = path, now
        if read - candidate.degraded_since < self.guard.after or path.complete < candidate.suspected_since:
            return
        candidate.lengthen_pause(self.guard)
        baseline = round(path.baseline)
        candidate.relaxation = Relaxation(now + candidate.pause, path.address, round(rate), baseline, baseline, now)
        candidate.not_degraded()
        candidate.healthy_since, candidate.counted = None, read

    def _judge_relaxed(
        self, connection: GuardedConnection, candidate: Candidate, relaxation: Relaxation, now: float
    ) -> None:
        read = connection.read(now)
        self._count(connection, candidate, relaxation.baseline, read)
        path = self._paths.used(relaxation.path)
        if path is not None and path.sampled != now:
            path = None
        if path is None or path.rate < HEALTHY * relaxation.baseline:
            candidate.healthy_since = None
        elif candidate.healthy_since is None:
            candidate.healthy_since = read - max(0.0, connection.span - WINDOW)
        seen_well = candidate.healthy_since is not None and read - candidate.healthy_since >= self.guard.after
        if not seen_well and now < relaxation.until:
            lacking = round(max(MIN_RATE, connection.lacking(relaxation.baseline)))
            differs = not LACKS_LESS * relaxation.lacking <= lacking <= LACKS_MORE * relaxation.lacking
            if differs and not 0 <= now - relaxation.measured < WINDOW:
                candidate.relaxation = replace(relaxation, lacking=lacking, measured=now)
        elif not seen_well and path is not None and path.degraded and self._evidence.is_backlogged(connection, now):
            candidate.lengthen_pause(self.guard)
            candidate.relaxation = replace(relaxation, until=now + candidate.pause)
        else:
            candidate.relaxation, candidate.resumed = None, now
            if seen_well:
                candidate.pause = 0.0

    def _count(self, connection: GuardedConnection, candidate: Candidate, baseline: float, read: float) -> None:
        seconds, candidate.counted = max(0.0, read - candidate.counted), read
        capped = [candidate.histories[each] for each in connection.capped if each in candidate.histories]
        self.counters.lacking_bytes += max(0.0, connection.lacking(baseline)) / 8 * seconds
        self.counters.relaxed_bytes += sum(each.rate for each in capped) / 8 * seconds

    def _degradation(
        self, connection: GuardedConnection, candidate: Candidate, now: float
    ) -> tuple[Path, float] | None:
        """Return the path of the baseline and what the connection gets, bits/s; None if it gets enough."""
        capped = any(each in candidate.histories for each in connection.capped)
        if not capped or not self._evidence.is_backlogged(connection, now):
            candidate.backlogged_since = None
            return None
        if candidate.backlogged_since is None:
            candidate.backlogged_since = now
        present = [flow.path for flow in connection.flows if flow.present]
        if not present:
            return None  # they changed between two slices
        best = max(present, key=lambda path: path.baseline)
        span = connection.span
        disturbed = max(best.disturbed, candidate.backlogged_since)
        was_well = best.well >= max(best.disturbed, candidate.backlogged_since - self._evidence.onset(span))
        if not was_well and now - max(span, WINDOW) < disturbed + GRACE - WINDOW:
            return None
        total = sum(each.rate for each in candidate.histories.values())
        if best.baseline < MIN_RATE or not best.degraded or total >= MAX_TOTAL * best.baseline:
            return None
        return best, total
