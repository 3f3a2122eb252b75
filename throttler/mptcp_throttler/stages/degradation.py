"""Detects capped connections that get too little because the paths left to them have degraded. Pure.

A capped connection should get no less than a TCP session over one path would. It lives on the paths that are left
uncapped, so the baseline is what the best of those once gave (``stages.baseline``). A connection is degraded while

- it is backlogged: each of its uncapped subflows has data waiting that takes a while to send at its present rate, or
  makes no progress with what it sent. One that is idle, or whose application is slow, has nothing waiting; one whose
  client is slow waits for the client's window;
- the path of those subflows has degraded: all connections of that client together get at most ``DEGRADED`` of the
  baseline. Where another connection merely takes its share, they get more;
- all its subflows together get less than ``MAX_TOTAL`` of the baseline.

Senders need a while to take what has become free: where a subflow came to the path or left it, or the connection
began to be backlogged, the path has to be seen well again before it can be said to have degraded, or ``GRACE``
seconds pass. A path that was well until the backlog began has degraded, and is waited for no longer: on a fast path
too little waits to count, until the path gets slow.

Once this held for ``Guard.after`` seconds the caps are relaxed: the capped subflows may carry what the uncapped ones
lack of the baseline, and no more. That is all of it at first, for rates lag behind; then, once in a window, what they
give is taken off. The caps come back when the path is well again, which shows while they are relaxed, or as a trial
after ``Guard.retry`` seconds unless it is plain that the path is as it was. Each time the pause doubles.

Samples of one subflow may be 0.1 s or some seconds apart. Rates are taken over the span that samples really have. One
that was taken over a longer span than the window counts as having held for the difference.

This is about downloads; what differs with uploads is in ``stages.upload_degradation``.

Cost: nearly all connections are not backlogged. Of those one number for each uncapped subflow is kept and compared.
Only where data wait on every uncapped subflow is the connection a candidate, with samples of all its subflows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Protocol

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo
from mptcp_throttler.policy.model import Guard
from mptcp_throttler.stages.baseline import HEALTHY, MIN_RATE, MIN_SPAN, SLACK, WINDOW, Flow, Path, Paths
from mptcp_throttler.stages.history import History, Sample, sample_of
from mptcp_throttler.stages.stage import SLICE, Samples

MAX_TOTAL = 0.8
"""Part of the baseline. A connection that gets as much in all is not degraded."""
GRACE = 2.5
"""Seconds."""
LACKS_MORE, LACKS_LESS = 1.1, 0.7
"""Parts of what a connection may have over its capped paths, beyond which that is measured anew."""
TRIAL = 5.0
"""Seconds. A degradation so soon after a cap came back doubles the next pause."""
MAX_IDLE_SAMPLES = 3
"""A candidate that is not backlogged in as many samples in a row is none any more."""


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


class Candidate:
    """What is kept of a connection that may be degraded, or is."""

    __slots__ = (
        "backlogged_since",
        "counted",
        "degraded_since",
        "healthy_since",
        "histories",
        "idle_samples",
        "pause",
        "relaxation",
        "resumed",
        "suspected",
        "suspected_since",
    )

    def __init__(self) -> None:
        self.histories: dict[FourTuple, History] = {}
        self.idle_samples = 0
        self.backlogged_since: float | None = None
        self.degraded_since: float | None = None
        self.suspected: Path | None = None
        """The path that seems to have degraded. Before caps are relaxed, all of it has to be sampled."""
        self.suspected_since = 0.0
        self.relaxation: Relaxation | None = None
        self.counted = 0.0
        """Until when what it lacks and is given is counted."""
        self.healthy_since: float | None = None
        self.pause = 0.0
        self.resumed = float("-inf")

    def lengthen_pause(self, guard: Guard) -> None:
        self.pause = min(guard.longest_retry, 2 * self.pause) if self.pause else guard.retry

    def not_degraded(self) -> None:
        self.degraded_since = self.suspected = None

    def may_go(self, now: float) -> bool:
        """There is nothing about it that has to be remembered."""
        return self.idle_samples >= MAX_IDLE_SAMPLES and self.relaxation is None and now - self.resumed > TRIAL


class Kept(Protocol):
    """What is kept of a connection, and refers to paths that refer to it."""

    def part(self) -> None:
        """Have no path refer to it any more, so that it is freed when nobody else does."""


class GuardedConnection:
    """One connection with guarded caps."""

    __slots__ = ("candidate", "capped", "flows", "uncapped")

    def __init__(self, uncapped: tuple[FourTuple, ...], capped: tuple[FourTuple, ...], flows: tuple[Flow, ...]) -> None:
        self.uncapped = uncapped
        self.capped = capped
        self.flows = flows
        """The uncapped subflows, with their rates."""
        self.candidate: Candidate | None = None

    def part(self) -> None:
        """Have no path refer to the subflows any more."""
        for flow in self.flows:
            flow.part()


class DegradationDetector:
    """Observes connections with guarded caps. Times are monotonic, in seconds."""

    samples_all = False
    """All subflows are in every sweep, not only the uncapped ones."""

    def __init__(self, guard: Guard, counters: GuardCounters | None = None) -> None:
        """*counters* are counted on."""
        self.guard = guard
        self.counters = GuardCounters() if counters is None else counters
        self._connections: dict[int, GuardedConnection] = {}
        self._candidates: dict[int, Candidate] = {}
        self._token_of: dict[FourTuple, int] = {}
        """Of each subflow that is to be sampled: the uncapped ones, and all of candidates."""
        self._paths = Paths()

    def kept(self) -> Iterable[Kept]:
        """Return what is kept of each connection."""
        return self._connections.values()

    def watch(self, token: int, uncapped: tuple[FourTuple, ...], capped: tuple[FourTuple, ...]) -> None:
        """Observe connection *token* and its subflows. The policy caps those *capped*, relaxed or not."""
        known = self._connections.get(token)
        if known is not None and known.uncapped == uncapped and known.capped == capped:
            return
        before = {} if known is None else {flow.four_tuple: flow for flow in known.flows}
        flows = tuple(before.pop(each) if each in before else self._paths.join(each) for each in uncapped)
        for flow in before.values():
            self._paths.leave(flow)
        now = self._connections[token] = GuardedConnection(uncapped, capped, flows)
        if known is not None:
            for each in (*known.uncapped, *known.capped):
                if self._token_of.get(each) == token:
                    del self._token_of[each]
            now.candidate = known.candidate
        if now.candidate is not None:
            there = {*uncapped, *capped}
            for gone in now.candidate.histories.keys() - there:
                del now.candidate.histories[gone]
        for each in uncapped if now.candidate is None and not self.samples_all else (*uncapped, *capped):
            self._token_of[each] = token

    def forget(self, token: int) -> None:
        """Connection *token* has ended or has no guarded caps."""
        known = self._connections.pop(token, None)
        if known is None:
            return
        self._candidates.pop(token, None)
        for each in (*known.uncapped, *known.capped):
            if self._token_of.get(each) == token:
                del self._token_of[each]
        for flow in known.flows:
            self._paths.leave(flow)

    def relaxation(self, token: int) -> Relaxation | None:
        """Return why the caps of connection *token* are relaxed; None while they are not."""
        candidate = self._candidates.get(token)
        return None if candidate is None else candidate.relaxation

    def relaxed(self) -> Set[int]:
        """Return the connections whose caps are relaxed."""
        return {token for token, each in self._candidates.items() if each.relaxation is not None}

    def watched(self) -> Set[FourTuple]:
        """Return the subflows that are to be in every sweep."""
        return self._token_of.keys()

    def urgent(self) -> Set[FourTuple]:
        """Return the subflows of candidates, and all on paths that seem to have degraded.

        Those of a connection are next to each other, so that they are looked up together.
        """
        found: dict[FourTuple, None] = {}
        suspected: set[Path] = set()
        for token, candidate in self._candidates.items():
            connection = self._connections[token]
            found.update(dict.fromkeys((*connection.uncapped, *connection.capped)))
            if candidate.suspected is not None:
                suspected.add(candidate.suspected)
        for path in suspected:
            found.update(dict.fromkeys(flow.four_tuple for flow in path.flows))
        return found.keys()

    def observe(self, samples: Samples) -> Iterator[Collection[int]]:
        """Take *samples*, a slice at a time; yield the connections whose relaxation began, changed or ended."""
        if not self._connections:
            return
        now, sockets, complete, _ = samples
        self._paths.begin(now)
        sampled: list[Path] = []
        candidates: list[tuple[int, Candidate]] = []
        look_up = sockets.get
        for number, token in enumerate(list(self._connections) if complete else self._sampled(sockets.keys()), 1):
            if not number % SLICE:
                yield ()
            connection = self._connections.get(token)
            if connection is None:
                continue  # it ended between two slices
            present = waiting = 0
            for flow in connection.flows:
                sample = look_up(flow.four_tuple)
                if sample is not None and sample.token != token:
                    present += flow.present
                    continue  # of a connection before it, which had its four-tuple when the sweep read the socket
                if sample is None:
                    if complete:
                        self._left(flow, now)
                    present += flow.present
                    continue
                tcp = sample.tcp
                if tcp is None or sample.backup:
                    self._left(flow, now)
                    continue
                path = flow.path
                if path.sampled != now:
                    path.begin(now)
                    sampled.append(path)
                present += 1
                path.reads.append(sample.read)
                waiting += self._take(token, flow, sample, tcp)
            waiting = self._wanting(token, connection, samples, present, waiting)
            candidate = connection.candidate
            if candidate is None:
                if not present or waiting < present:
                    continue
                candidate = self._make_candidate(token, connection)
            candidate.idle_samples = 0 if present and waiting == present else candidate.idle_samples + 1
            self._record(token, candidate, connection, samples)
            candidates.append((token, candidate))
        for number, path in enumerate(sampled, 1):
            if not number % SLICE:
                yield ()
            path.conclude(now)
        changed: set[int] = set()
        for number, (token, candidate) in enumerate(candidates, 1):
            if not number % SLICE:
                yield changed
                changed = set()
            connection = self._connections.get(token)
            if connection is None or connection.candidate is not candidate:
                continue
            before = candidate.relaxation
            self._judge(token, connection, candidate, now)
            after = candidate.relaxation
            if before is not after and (before is None or after is None or before.lacking != after.lacking):
                changed.add(token)
            if candidate.may_go(now):
                self._drop_candidate(token, connection)
        yield changed

    def _sampled(self, sockets: Iterable[FourTuple]) -> set[int]:
        return {self._token_of[each] for each in sockets if each in self._token_of}

    @staticmethod
    def _left(flow: Flow, now: float) -> None:
        if flow.present:
            flow.leave()
            flow.path.disturbed = now

    def _make_candidate(self, token: int, connection: GuardedConnection) -> Candidate:
        candidate = connection.candidate = self._candidates[token] = Candidate()
        for each in connection.capped:
            self._token_of[each] = token
        return candidate

    def _drop_candidate(self, token: int, connection: GuardedConnection) -> None:
        connection.candidate = None
        del self._candidates[token]
        for each in () if self.samples_all else connection.capped:
            if self._token_of.get(each) == token:
                del self._token_of[each]

    def _judge(self, token: int, connection: GuardedConnection, candidate: Candidate, now: float) -> None:
        if candidate.relaxation is not None:
            self._judge_relaxed(token, connection, candidate, candidate.relaxation, now)
            return
        if now - candidate.resumed > TRIAL:
            candidate.pause = 0.0
        found = self._degradation(token, connection, candidate, now)
        if found is None or not self._is_proven(token, now):
            candidate.not_degraded()
            return
        path, rate, span = found
        read = _read(connection, candidate, now)
        if candidate.degraded_since is None or candidate.suspected is not path:
            candidate.degraded_since = read - max(0.0, span - WINDOW)
            candidate.suspected, candidate.suspected_since = path, now
        if read - candidate.degraded_since < self.guard.after or path.complete < candidate.suspected_since:
            return
        candidate.lengthen_pause(self.guard)
        candidate.relaxation = Relaxation(
            now + candidate.pause, path.address, round(rate), round(path.baseline), round(path.baseline), now
        )
        candidate.not_degraded()
        candidate.healthy_since, candidate.counted = None, read

    def _judge_relaxed(
        self, token: int, connection: GuardedConnection, candidate: Candidate, relaxation: Relaxation, now: float
    ) -> None:
        read = _read(connection, candidate, now)
        self._count(connection, candidate, relaxation.baseline, read)
        path = self._paths.used(relaxation.path)
        if path is not None and path.sampled != now:
            path = None
        if path is None or path.rate < HEALTHY * relaxation.baseline:
            candidate.healthy_since = None
        elif candidate.healthy_since is None:
            candidate.healthy_since = read - max(0.0, _span(connection, candidate) - WINDOW)
        seen_well = candidate.healthy_since is not None and read - candidate.healthy_since >= self.guard.after
        if not seen_well and now < relaxation.until:
            lacking = _lacking(connection, candidate, relaxation.baseline)
            differs = not LACKS_LESS * relaxation.lacking <= lacking <= LACKS_MORE * relaxation.lacking
            if differs and not 0 <= now - relaxation.measured < WINDOW:
                candidate.relaxation = replace(relaxation, lacking=lacking, measured=now)
            return
        still_degraded = not seen_well and path is not None and path.degraded
        if still_degraded and self._is_backlogged(token, connection, candidate, now):
            candidate.lengthen_pause(self.guard)
            candidate.relaxation = replace(relaxation, until=now + candidate.pause)
            return
        candidate.relaxation = None
        candidate.resumed = now
        if seen_well:
            candidate.pause = 0.0

    def _count(self, connection: GuardedConnection, candidate: Candidate, baseline: float, read: float) -> None:
        seconds, candidate.counted = max(0.0, read - candidate.counted), read
        lacking = baseline - sum(each.rate for each in _uncapped(connection, candidate))
        capped = [candidate.histories[each] for each in connection.capped if each in candidate.histories]
        self.counters.lacking_bytes += max(0.0, lacking) / 8 * seconds
        self.counters.relaxed_bytes += sum(each.rate for each in capped) / 8 * seconds

    # What differs with uploads

    def _take(self, token: int, flow: Flow, sample: KernelSubflow, tcp: TcpInfo) -> bool:
        """Take the sample of an uncapped subflow; return whether data wait on it."""
        # As KernelSubflow.delivered, which costs more.
        delivered = sample.bytes_acked + tcp.sacked * tcp.mss if tcp.sacked else sample.bytes_acked
        return bool((not flow.take(sample.read, delivered) and tcp.unacked) or tcp.not_sent)

    def _wanting(self, token: int, connection: GuardedConnection, samples: Samples, present: int, waiting: int) -> int:
        """Return on how many of the uncapped subflows that are *present* data seem to wait."""
        return waiting

    def _sample_of(self, there: KernelSubflow) -> Sample:
        return sample_of(there)

    def _is_backlogged(self, token: int, connection: GuardedConnection, candidate: Candidate, now: float) -> bool:
        uncapped = _uncapped(connection, candidate)
        return bool(uncapped) and all(each.span >= MIN_SPAN and each.backlogged for each in uncapped)

    def _onset(self, span: float) -> float:
        """Return how many seconds a degradation may take to show as a backlog, at samples with a *span* of so many."""
        return max(WINDOW, 2 * span) + SLACK

    def _is_proven(self, token: int, now: float) -> bool:
        """Tell whether a path that gives little can give no more."""
        return True

    def _record(self, token: int, candidate: Candidate, connection: GuardedConnection, samples: Samples) -> None:
        """Add *samples* to the histories of all subflows, and take the rates of the uncapped ones from those."""
        histories = candidate.histories
        for four_tuple in (*connection.uncapped, *connection.capped):
            there = samples.sockets.get(four_tuple)
            if there is None:
                if samples.complete:
                    histories.pop(four_tuple, None)
            elif there.tcp is None or there.backup:
                histories.pop(four_tuple, None)
            else:
                histories.setdefault(four_tuple, History()).add(self._sample_of(there))
        for flow in connection.flows:
            history = histories.get(flow.four_tuple)
            if history is not None and history.span >= MIN_SPAN:
                flow.set_rate(int(history.rate))

    def _degradation(
        self, token: int, connection: GuardedConnection, candidate: Candidate, now: float
    ) -> tuple[Path, float, float] | None:
        """Return the path of the baseline, what the connection gets, bits/s, and over how many seconds that was seen;
        None where it is not too little."""
        capped = any(each in candidate.histories for each in connection.capped)
        if not capped or not self._is_backlogged(token, connection, candidate, now):
            candidate.backlogged_since = None
            return None
        if candidate.backlogged_since is None:
            candidate.backlogged_since = now
        present = [flow.path for flow in connection.flows if flow.present]
        if not present:
            return None  # they changed between two slices
        best = max(present, key=lambda path: path.baseline)
        span = _span(connection, candidate)
        disturbed = max(best.disturbed, candidate.backlogged_since)
        was_well = best.well >= max(best.disturbed, candidate.backlogged_since - self._onset(span))
        if not was_well and now - max(span, WINDOW) < disturbed + GRACE - WINDOW:
            return None
        total = sum(each.rate for each in candidate.histories.values())
        if best.baseline < MIN_RATE or not best.degraded or total >= MAX_TOTAL * best.baseline:
            return None
        return best, total, span


def _lacking(connection: GuardedConnection, candidate: Candidate, baseline: float) -> int:
    """Return what the uncapped subflows give less than *baseline*, bits/s; at least MIN_RATE."""
    return round(max(MIN_RATE, baseline - sum(each.rate for each in _uncapped(connection, candidate))))


def _uncapped(connection: GuardedConnection, candidate: Candidate) -> list[History]:
    return [candidate.histories[each] for each in connection.uncapped if each in candidate.histories]


def _read(connection: GuardedConnection, candidate: Candidate, now: float) -> float:
    """Return until when all uncapped subflows are known: how long something has held is counted up to then."""
    return min((each.last for each in _uncapped(connection, candidate)), default=now)


def _span(connection: GuardedConnection, candidate: Candidate) -> float:
    """Return the seconds over which the rates of all uncapped subflows are known."""
    return min((each.span for each in _uncapped(connection, candidate)), default=0.0)
