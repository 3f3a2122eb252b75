"""Detects capped connections that get too little because the paths left to them have degraded. Pure.

A capped connection should get no less than a TCP session over one path would. It lives on the paths that are left
uncapped, so the baseline is what the best of those once gave (``stages.baseline``). A connection is degraded while

- it wants more than it gets, which shows in downloads and in uploads by different evidence;
- the path of its uncapped subflows has degraded: all connections of that client together get at most ``DEGRADED`` of
  the baseline. Where another connection merely takes its share, they get more;
- all its subflows together get less than ``MAX_TOTAL`` of the baseline.

Senders need a while to take what has become free: where a subflow came to the path or left it, or the connection
began to want more, the path has to be seen well again before it can be said to have degraded, or ``GRACE`` seconds
pass. A path that was well until then has degraded, and is waited for no longer: on a fast path too little waits to
count, until the path gets slow.

Once this held for ``Guard.after`` seconds the caps are relaxed: the capped subflows may carry what the uncapped ones
lack of the baseline, and no more. That is all of it at first, for rates lag behind; then, once in a window, what they
give is taken off. The caps come back when the path is well again, which shows while they are relaxed, or as a trial
after ``Guard.retry`` seconds unless it is plain that the path is as it was. Each time the pause doubles.

Samples of one subflow may be 0.1 s or some seconds apart. Rates are taken over the span that samples really have. One
that was taken over a longer span than the window counts as having held for the difference.

*Evidence of a download*: it is backlogged. Each of its uncapped subflows has data waiting that takes a while to send at
its present rate, or makes no progress with what it sent. One that is idle, or whose application is slow, has nothing
waiting; one whose client is slow waits for the client's window.

*Evidence of an upload*: what its client has waiting is not known here; it shows in two things. *Demand*: the capped
path is at its cap. Linux's scheduler gives the next data to the subflow that would be done first, so that a client that
sends less than its paths carry fills neither; but a cap of 1 Mbit/s is filled by less. A subflow under a shared cap has
to have about its part of it as well. *Proof*: a path that carries little could carry no more. Either it owes data: what
came over the others lies ahead of what came over this one in the data sequence (RFC 8684, 3.3), and as much as the path
once carried in ``OWED_SECONDS`` is missing below that. Or nothing at all comes over it while the cap is full, for
longer than the scheduler leaves a path alone that is well. How much is missing is the advance of the data sequence less
the bytes that came. What is sent again over another path comes twice and makes that less: the least ever seen counts as
nothing missing, and what is found too little.

Cost: nearly all connections want no more than they get. Of those one number for each uncapped subflow is kept and
compared. Only the others are candidates, with samples of all their subflows.
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
"""Part of the baseline. A connection that gets as much in all is not degraded."""
GRACE = 2.5
"""Seconds."""
LACKS_MORE, LACKS_LESS = 1.1, 0.7
"""Parts of what a connection may have over its capped paths, beyond which that is measured anew."""
TRIAL = 5.0
"""Seconds. A degradation so soon after a cap came back doubles the next pause."""
MAX_IDLE_SAMPLES = 3
"""A candidate that wants no more in as many samples in a row is none any more."""

FULL = 0.85
"""Part of a cap that is payload where it is full: headers count, too, with small packets 8 %."""
FAIR = 0.5
"""Part of an equal share of a full cap that a subflow has to have which wants more."""
OWED_SECONDS = 0.05
COMPARABLE_SECONDS = OWED_SECONDS / 2
"""Subflows whose reads are at most so far apart are compared in what they received; look-ups read them together."""
OWED_BYTES = 2 * ASSIGNMENT_BYTES
"""At least: each subflow's data sequence is known by the beginning of a piece, of 64 KB at the most."""
LASTING_SECONDS, PROVEN_SECONDS = 1.0, 5.0
"""For how long what was owed counts as demand, for a client whose send buffer is full of it sends little meanwhile;
and as proof."""
LAPSE_SECONDS = 0.3
"""A cap that is less full for so long does not mean that the client wants less."""
SILENT_SECONDS, SILENT_PIECES = 2.0, 3
"""Without anything over a path while a cap is full, and in the times that the cap takes for one of the scheduler's
pieces: meanwhile the scheduler leaves a path alone whose turn it is not."""


@dataclass(slots=True)
class GuardCounters:
    """Since the start of the daemon."""

    relaxations: int = 0
    resumptions: int = 0
    lacking_bytes: float = 0.0
    """What uncapped paths carried less than they once did while the caps beside them were relaxed."""
    relaxed_bytes: float = 0.0
    """What the capped subflows carried meanwhile."""


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The caps of one connection are relaxed."""

    until: float
    """When they are tried again at the latest."""
    path: bytes
    """The client's address on the path that has degraded."""
    rate: int
    """What the connection got, bits/s."""
    baseline: int
    """What that path alone once gave, bits/s."""
    lacking: int
    """What its uncapped paths give less than that, bits/s, and what it may have over the others."""
    measured: float
    """When that was found."""


class Capped(NamedTuple):
    """The cap of one subflow."""

    scope: ScopeKey
    ceil: int
    """Bits/s."""


@dataclass(slots=True)
class Candidate:
    """What is kept of a connection that may be degraded, or is."""

    histories: dict[FourTuple, History] = field(default_factory=dict)
    idle_samples: int = 0
    backlogged_since: float | None = None
    degraded_since: float | None = None
    suspected: Path | None = None
    """The path that seems to have degraded. Before caps are relaxed, all of it has to be sampled."""
    suspected_since: float = 0.0
    relaxation: Relaxation | None = None
    counted: float = 0.0
    """Until when what it lacks and is given is counted."""
    healthy_since: float | None = None
    pause: float = 0.0
    resumed: float = -inf

    def lengthen_pause(self, guard: Guard) -> None:
        self.pause = min(guard.longest_retry, 2 * self.pause) if self.pause else guard.retry

    def not_degraded(self) -> None:
        self.degraded_since = self.suspected = None

    def may_go(self, now: float) -> bool:
        """There is nothing about it that has to be remembered."""
        return self.idle_samples >= MAX_IDLE_SAMPLES and self.relaxation is None and now - self.resumed > TRIAL


class UploadDemand:
    """What is known of the demand of one upload."""

    __slots__ = ("_first", "_least", "_seen", "caps", "owed", "progressed", "read", "wanted", "wanted_since")

    def __init__(self) -> None:
        self.caps: list[tuple[Flow, Capped]] = []
        self.wanted_since: float | None = None
        self.wanted = -inf
        """When it last wanted more than it got."""
        self.owed = -inf
        """When an uncapped path last owed data."""
        self.progressed = -inf
        """When anything last came over an uncapped path, or no cap was full."""
        self.read = -inf
        """Until when all uncapped subflows are known."""
        self._seen: list[FourTuple] = []
        """The subflows that counted last,"""
        self._first = self._least = 0
        """the data sequence when they first did, and the least that was missing since."""

    def missing(self, there: list[KernelSubflow], top: int) -> int:
        """Return at least how many bytes below *top*, the greatest data sequence, did not come."""
        seen = [each.four_tuple for each in there]
        received = sum([each.bytes_received for each in there])
        if seen != self._seen:
            # What came over one that is gone is counted no more.
            self._seen, self._first, self._least = seen, top, -received
        missing = ahead(top, self._first) - received
        self._least = min(self._least, missing)
        return missing - self._least

    @property
    def full(self) -> bool:
        """A cap is as full as it gets, and this connection has its part of it."""
        return any(
            flow.present
            and flow.path.rate >= FULL * cap.ceil
            and flow.rate >= (FULL if flow.path.present == 1 else FAIR / flow.path.present) * cap.ceil
            for flow, cap in self.caps
        )

    def wants(self, now: float, full: bool) -> bool:
        """Take whether a cap is *full*; return whether the client wants more than it gets."""
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
        """Tell whether a path that gives little can give no more."""
        silence = SILENT_SECONDS + min(
            (8 * SILENT_PIECES * ASSIGNMENT_BYTES / cap.ceil for _, cap in self.caps), default=0.0
        )
        return now - self.owed <= PROVEN_SECONDS or self.read - self.progressed >= silence


class GuardedConnection:
    """One connection with guarded caps."""

    __slots__ = ("candidate", "capped", "demand", "flows", "token", "uncapped")
    demand: UploadDemand
    """Of uploads only."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.uncapped: tuple[FourTuple, ...] = ()
        self.capped: Mapping[FourTuple, Capped] = {}
        self.flows: tuple[Flow, ...] = ()
        """The uncapped subflows, with their rates."""
        self.candidate: Candidate | None = None

    @property
    def histories(self) -> list[History]:
        """Of the uncapped subflows."""
        found = {} if self.candidate is None else self.candidate.histories
        return [found[each] for each in self.uncapped if each in found]

    def read(self, now: float) -> float:
        """Return until when all uncapped subflows are known: how long something has held is counted up to then."""
        return min((each.last for each in self.histories), default=now)

    @property
    def span(self) -> float:
        """The seconds over which the rates of all uncapped subflows are known."""
        return min((each.span for each in self.histories), default=0.0)

    def lacking(self, baseline: float) -> float:
        """Return what the uncapped subflows give less than *baseline*, bits/s."""
        return baseline - sum(each.rate for each in self.histories)


class DownloadEvidence:
    """The evidence of downloads."""

    samples_all = False
    """All subflows are in every sweep, not only the uncapped ones."""

    def begin(self, connection: GuardedConnection) -> None:
        """It is observed from now on."""

    def watch(self, connection: GuardedConnection) -> None:
        """Other subflows, or other caps, are those of *connection*."""

    def forget(self, connection: GuardedConnection) -> None:
        """It has ended."""

    def take(self, connection: GuardedConnection, flow: Flow, sample: KernelSubflow) -> bool:
        """Take the sample of an uncapped subflow; return whether data wait on it."""
        # As KernelSubflow.delivered, which costs more.
        tcp = sample.tcp
        delivered = sample.bytes_acked + tcp.sacked * tcp.mss if tcp.sacked else sample.bytes_acked
        return bool((not flow.take(sample.read, delivered) and tcp.unacked) or tcp.not_sent)

    def wanting(self, connection: GuardedConnection, samples: Samples, present: int, waiting: int) -> int:
        """Return on how many of the uncapped subflows that are *present* data seem to wait."""
        return waiting

    def sample_of(self, there: KernelSubflow) -> Sample:
        tcp = there.tcp
        return Sample(there.read, there.delivered, tcp.not_sent, tcp.unacked, tcp.receive_window_limited)

    def is_backlogged(self, connection: GuardedConnection, now: float) -> bool:
        uncapped = connection.histories
        return bool(uncapped) and all(each.span >= MIN_SPAN and each.backlogged for each in uncapped)

    def onset(self, span: float) -> float:
        """Return how many seconds a degradation may take to show as a backlog, at samples with a *span* of so many."""
        return max(WINDOW, 2 * span) + SLACK

    def is_proven(self, connection: GuardedConnection, now: float) -> bool:
        """Tell whether a path that gives little can give no more."""
        return True


class UploadEvidence(DownloadEvidence):
    """The evidence of uploads."""

    samples_all = True

    def __init__(self) -> None:
        self.shared: dict[ScopeKey, Path] = {}
        """What comes under each cap."""

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
            return  # what came meanwhile is not missing
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
        return 0.0  # A client wants more for a while before anything shows that it does.

    def is_proven(self, connection: GuardedConnection, now: float) -> bool:
        return connection.demand.proves(now)


class DegradationDetector:
    """Observes connections with guarded caps in one direction. Times are monotonic, in seconds."""

    def __init__(
        self, guard: Guard, counters: GuardCounters | None = None, evidence: DownloadEvidence | None = None
    ) -> None:
        """*counters* are counted on; *evidence*: of downloads, unless it is another."""
        self.guard = guard
        self.counters = counters or GuardCounters()
        self.connections: dict[int, GuardedConnection] = {}
        self._evidence = evidence or DownloadEvidence()
        self._candidates: dict[int, GuardedConnection] = {}
        self._sampled = Sampled()
        """The uncapped subflows, and all of candidates."""
        self._paths = Paths()

    def watch(self, token: int, uncapped: tuple[FourTuple, ...], capped: Mapping[FourTuple, Capped]) -> None:
        """Observe connection *token* and its subflows. The policy caps those *capped*, relaxed or not."""
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
        """Connection *token* has ended or has no guarded caps."""
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
        """Return the subflows that are to be in every sweep."""
        return self._sampled.four_tuples

    def urgent(self) -> Set[FourTuple]:
        """Return the subflows of candidates, and all on paths that seem to have degraded.

        Those of a connection are next to each other, so that they are looked up together.
        """
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
        """Take the samples of the uncapped subflows; return how many are there, and on how many of them data wait. The
        paths that were *sampled* come to those."""
        now, sockets, complete, _ = samples
        present = waiting = 0
        for flow in connection.flows:
            sample = sockets.get(flow.four_tuple)
            if sample is not None and sample.token != connection.token:
                present += flow.present
                continue  # of a connection before it, which had its four-tuple when the sweep read the socket
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
        """Add *samples* to the histories of all subflows, and take the rates of the uncapped ones from those."""
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
        """Return the path of the baseline, and what the connection gets, bits/s; None where it is not too little."""
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
