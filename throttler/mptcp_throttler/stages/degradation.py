# SPDX-License-Identifier: GPL-2.0-or-later
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
having held for the difference already. A connection that wants no more than it gets, as nearly all do, costs one
comparison per uncapped subflow. Only the others are candidates, with samples of all their subflows.
Times are monotonic seconds, rates bits/s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Guard
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
    """What the connection got."""
    baseline: int
    """What that path by itself once gave."""
    lacking: int
    """Shortfall of its uncapped paths against the baseline: its allowance over the capped paths."""
    measured: float


class Capped(NamedTuple):
    """The cap of one subflow."""

    scope: ScopeKey
    ceil: int


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


@dataclass(slots=True, eq=False)
class GuardedConnection:
    """One connection with guarded caps, and the evidence of its download: a backlog.

    Each uncapped subflow has data waiting that takes a while to send at its present rate, or makes no progress with
    what it sent. Idle and slow applications have nothing waiting; a slow client's window limits its subflow.
    """

    samples_all: ClassVar[bool] = False
    """Whether every sweep has all subflows, not only the uncapped ones."""

    token: int
    shared: dict[ScopeKey, Path]
    """The loads under all caps, of uploads only."""
    uncapped: Sequence[FourTuple] = ()
    capped: Mapping[FourTuple, Capped] = field(default_factory=dict)
    flows: tuple[Flow, ...] = ()
    """Of the uncapped subflows."""
    candidate: Candidate | None = None
    rules: tuple[str, ...] = ()
    """The rules of its guarded caps."""
    told: bool = False
    """That its caps are relaxed was reported."""

    @property
    def histories(self) -> list[History]:
        """Those of the uncapped subflows."""
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

    def take_caps(self) -> None:
        """Follow the new subflows or caps."""

    def take(self, flow: Flow, sample: KernelSubflow) -> bool:
        """Take the sample of an uncapped subflow; return whether data wait on it."""
        # Same as KernelSubflow.delivered, which costs more.
        tcp = sample.tcp
        delivered = sample.bytes_acked + tcp.sacked * tcp.mss if tcp.sacked else sample.bytes_acked
        return bool((not flow.take(sample.read, delivered) and tcp.unacked) or tcp.not_sent)

    def wants(self, samples: Samples, present: int, waiting: int) -> bool:
        """Return whether it wants more than it gets. Data wait on *waiting* of the *present* uncapped subflows."""
        return waiting >= present > 0

    def sample_of(self, there: KernelSubflow) -> Sample:
        tcp = there.tcp
        return Sample(there.read, there.delivered, tcp.not_sent, tcp.unacked, tcp.receive_window_limited)

    def is_backlogged(self, now: float) -> bool:
        uncapped = self.histories
        return bool(uncapped) and all(each.span >= MIN_SPAN and each.backlogged for each in uncapped)

    def onset(self) -> float:
        """Return how many seconds a degradation may take to show as a backlog."""
        return max(WINDOW, 2 * self.span) + SLACK

    def is_proven(self, now: float) -> bool:
        """Return whether a path that gives little can give no more."""
        return True


@dataclass(slots=True, eq=False)
class GuardedUpload(GuardedConnection):
    """One connection with guarded caps, and the evidence of its upload (docs/design.md, "The guard").

    *Demand*: the capped path is at its cap; under a shared cap the subflow also needs about its share. *Proof*: a path
    that carries little owes data, or carries nothing while the cap is full. The missing bytes are the advance of the
    data sequence (RFC 8684, 3.3) less the bytes received. Retransmissions over another path arrive twice and lower
    this figure, so the least ever seen counts as zero.
    """

    samples_all = True

    caps: list[tuple[Flow, Capped]] = field(default_factory=list)
    wanted_since: float | None = None
    wanted: float = -inf
    """When it last wanted more than it got."""
    owed: float = -inf
    """When an uncapped path last owed data."""
    progressed: float = -inf
    """When data last came over an uncapped path, or no cap was full."""
    known: float = -inf
    """Time up to which all uncapped subflows are known."""
    _seen: list[FourTuple] = field(default_factory=list)
    _first: int = 0
    _least: int = 0
    """Data sequence when ``_seen`` last changed, and the least missing since."""

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
        top = max((each.data_sequence for each in there), key=lambda one: ahead(one, there[0].data_sequence))
        best = max(paths, key=lambda path: path.baseline)
        over_best = [each.data_sequence for each in there if each.four_tuple.remote == best.address]
        behind = min((ahead(top, each) for each in over_best), default=0)
        least = max(OWED_BYTES, OWED_SECONDS * best.baseline / 8)
        seen, received = [each.four_tuple for each in there], sum([each.bytes_received for each in there])
        if seen != self._seen:
            # Bytes of a subflow that is gone no longer count.
            self._seen, self._first, self._least = seen, top, -received
        missing = ahead(top, self._first) - received
        self._least = min(self._least, missing)
        if missing - self._least >= least and behind >= least:
            self.owed = samples.time

    def sample_of(self, there: KernelSubflow) -> Sample:
        return Sample(there.read, there.bytes_received)

    def is_backlogged(self, now: float) -> bool:
        lasts = self.wanted_since is not None and now - self.wanted_since >= MIN_SPAN
        return lasts and any(each.span >= MIN_SPAN for each in self.histories)

    def onset(self) -> float:
        return 0.0  # A client wants more for a while before it shows.

    def is_proven(self, now: float) -> bool:
        pieces = [8 * SILENT_PIECES * ASSIGNMENT_BYTES / cap.ceil for _, cap in self.caps]
        silence = SILENT_SECONDS + min(pieces, default=0.0)
        return now - self.owed <= PROVEN_SECONDS or self.known - self.progressed >= silence


def _is_full(flow: Flow, cap: Capped) -> bool:
    """Return whether *cap* is full and this connection has its share of it."""
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
        """Observe connection *token*. *capped*: what the policy caps, relaxed or not."""
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
        """Return the subflows that must be in every sweep."""
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
                candidate.relaxation = replace(relaxation, lacking=lacking, measured=now)
        elif not seen_well and path is not None and path.degraded and known.is_backlogged(now):
            candidate.lengthen_pause(self.guard)
            candidate.relaxation = replace(relaxation, until=now + candidate.pause)
        else:
            candidate.relaxation, candidate.resumed = None, now
            if seen_well:
                candidate.pause = 0.0

    def _degradation(self, known: GuardedConnection, candidate: Candidate, now: float) -> tuple[Path, float] | None:
        """Return the path of the baseline and what the connection gets, bits/s; None if it gets enough."""
        capped = any(each in candidate.histories for each in known.capped)
        if not capped or not known.is_backlogged(now):
            candidate.backlogged_since = None
            return None
        if candidate.backlogged_since is None:
            candidate.backlogged_since = now
        present = [flow.path for flow in known.flows if flow.present]
        if not present:
            return None  # they changed between two slices
        best = max(present, key=lambda path: path.baseline)
        span = known.span
        disturbed = max(best.disturbed, candidate.backlogged_since)
        was_well = best.well >= max(best.disturbed, candidate.backlogged_since - known.onset())
        if not was_well and now - max(span, WINDOW) < disturbed + GRACE - WINDOW:
            return None
        total = sum(each.rate for each in candidate.histories.values())
        enough = best.baseline < MIN_RATE or not best.degraded or total >= MAX_TOTAL * best.baseline
        return None if enough else (best, total)
