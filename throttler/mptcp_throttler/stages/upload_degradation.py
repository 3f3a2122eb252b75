"""Detects capped uploads that get too little because the paths left to them have degraded. Pure.

As ``stages.degradation``, by what arrives. What a client has waiting is not known here; it shows in two things.

*Demand*: the capped path is at its cap. Linux's scheduler gives the next data to the subflow that would be done first,
so that a client which sends less than its paths carry fills neither; but a cap of 1 Mbit/s is filled by less. A
subflow under a shared cap has to have about its part of it as well.

*Proof*: a path that carries little could carry no more. Either it owes data: what came over the others lies ahead of
what came over this one in the data sequence (RFC 8684, 3.3), and as much as the path once carried in
``OWED_SECONDS`` is missing below that. A path which the client needs less than before owes nothing. Or nothing at all
comes over it while the cap is full, for longer than the scheduler leaves a path alone that is well.

How much is missing is the advance of the data sequence less the bytes that came. What is sent again over another path
comes twice and makes that less: the least ever seen counts as nothing missing, and what is found too little. It is
counted while a cap is full: nearly all connections cost as much as a download.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow, TcpInfo
from mptcp_throttler.policy.model import Guard, ScopeKey
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES
from mptcp_throttler.shaping.onset.uploads import ahead
from mptcp_throttler.stages.baseline import MIN_SPAN, Flow, Path
from mptcp_throttler.stages.degradation import (
    Candidate,
    DegradationDetector,
    GuardCounters,
    GuardedConnection,
    Kept,
)
from mptcp_throttler.stages.history import Sample
from mptcp_throttler.stages.stage import Samples

FULL = 0.85
"""Part of a cap that is payload where it is full: headers count, too, with small packets 8 %."""
FAIR = 0.5
"""Part of an equal share of a full cap that a subflow has to have which wants more."""
OWED_SECONDS = 0.05
COMPARABLE_SECONDS = OWED_SECONDS / 2
"""Subflows whose reads are at most so far apart are compared in what they received; look-ups read them together."""
OWED_BYTES = 2 * ASSIGNMENT_BYTES
"""At least: each subflow's data sequence is known by the beginning of a piece, of 64 KB at the most."""
LASTING_SECONDS = 1.0
"""For how long what was owed counts as demand: a client whose send buffer is full of it sends little meanwhile,"""
PROVEN_SECONDS = 5.0
"""and as proof."""
LAPSE_SECONDS = 0.3
"""A cap that is less full for so long does not mean that the client wants less."""
SILENT_SECONDS, SILENT_PIECES = 2.0, 3
"""Without anything over a path while a cap is full, and in the times that the cap takes for one of the scheduler's
pieces: meanwhile the scheduler leaves a path alone whose turn it is not."""


class Capped(NamedTuple):
    """The cap of one subflow."""

    scope: ScopeKey
    ceil: int
    """Bits/s."""


class _Demand:
    """What is known of one connection's demand."""

    __slots__ = ("_first", "_least", "_seen", "caps", "owed", "progressed", "read", "wanted", "wanted_since")

    def __init__(self) -> None:
        self.caps: list[tuple[Flow, Capped]] = []
        self.wanted_since: float | None = None
        self.wanted = float("-inf")
        """When it last wanted more than it got."""
        self.owed = float("-inf")
        """When an uncapped path last owed data."""
        self.progressed = float("-inf")
        """When anything last came over an uncapped path, or no cap was full."""
        self.read = float("-inf")
        """Until when all uncapped subflows are known."""
        self._seen: list[FourTuple] = []
        """The subflows that counted last,"""
        self._first = self._least = 0
        """the data sequence when they first did, and the least that was missing since."""

    def part(self) -> None:
        """Have no path refer to the subflows any more."""
        for flow, _ in self.caps:
            flow.part()

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

    @property
    def silence(self) -> float:
        """Seconds after which a path over which nothing comes is one over which nothing can."""
        pieces = 8 * SILENT_PIECES * ASSIGNMENT_BYTES
        return SILENT_SECONDS + min((pieces / cap.ceil for flow, cap in self.caps), default=0.0)


class UploadDegradationDetector(DegradationDetector):
    """Observes uploads with guarded caps. Times are monotonic, in seconds."""

    samples_all = True

    def __init__(self, guard: Guard, counters: GuardCounters | None = None) -> None:
        super().__init__(guard, counters)
        self._demands: dict[int, _Demand] = {}
        self._shared: dict[ScopeKey, Path] = {}
        """What comes under each cap."""

    def kept(self) -> Iterable[Kept]:
        return [*super().kept(), *self._demands.values()]

    def watch_caps(self, token: int, uncapped: tuple[FourTuple, ...], capped: Mapping[FourTuple, Capped]) -> None:
        """As :meth:`watch`, with the caps of those that are *capped*, relaxed or not."""
        self.watch(token, uncapped, tuple(capped))
        demand = self._demands.setdefault(token, _Demand())
        before = {flow.four_tuple: (flow, cap) for flow, cap in demand.caps}
        demand.caps = []
        for four_tuple, cap in capped.items():
            known = before.get(four_tuple)
            if known is not None and known[1].scope == cap.scope:
                del before[four_tuple]
                flow = known[0]
            else:
                flow = Flow(four_tuple, self._shared.setdefault(cap.scope, Path(four_tuple.remote)))
            demand.caps.append((flow, cap))
        self._leave_caps(before.values())

    def forget(self, token: int) -> None:
        super().forget(token)
        demand = self._demands.pop(token, None)
        if demand is not None:
            self._leave_caps(demand.caps)

    def _leave_caps(self, caps: Iterable[tuple[Flow, Capped]]) -> None:
        for flow, cap in caps:
            flow.leave()
            flow.part()
            if not flow.path.flows:
                self._shared.pop(cap.scope, None)

    def _take(self, token: int, flow: Flow, sample: KernelSubflow, tcp: TcpInfo) -> bool:
        if flow.take(sample.read, sample.bytes_received):
            demand = self._demands[token]
            demand.progressed = max(demand.progressed, sample.read)
        return False

    def _wanting(self, token: int, connection: GuardedConnection, samples: Samples, present: int, waiting: int) -> int:
        now, sockets, complete, _ = samples
        demand, candidate = self._demands[token], connection.candidate
        relaxed = candidate is not None and candidate.relaxation is not None
        full = False
        for flow, cap in demand.caps:
            sample = sockets.get(flow.four_tuple)
            history = None if candidate is None else candidate.histories.get(flow.four_tuple)
            if sample is None or sample.tcp is None or sample.backup or relaxed:
                if complete or sample is not None:
                    flow.leave()
                full |= relaxed and history is not None and history.rate >= FULL * cap.ceil
                continue
            flow.take(sample.read, sample.bytes_received)
            if history is not None and history.span >= MIN_SPAN:
                flow.set_rate(int(history.rate))
        times = [there.read for each in connection.uncapped if (there := sockets.get(each)) is not None]
        demand.read = min(times, default=demand.read)
        full = full or demand.full
        if full or candidate is not None:
            self._see_what_is_owed(demand, connection, samples)
        return present if demand.wants(now, full) else 0

    @staticmethod
    def _see_what_is_owed(demand: _Demand, connection: GuardedConnection, samples: Samples) -> None:
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
        behind = min(
            (ahead(top, each.data_sequence) for each in there if each.four_tuple.remote == best.address), default=0
        )
        least = max(OWED_BYTES, OWED_SECONDS * best.baseline / 8)
        if demand.missing(there, top) >= least and behind >= least:
            demand.owed = samples.time

    def _sample_of(self, there: KernelSubflow) -> Sample:
        return Sample(there.read, there.bytes_received, 0, 0, 0)

    def _onset(self, span: float) -> float:
        return 0.0  # A client wants more for a while before anything shows that it does.

    def _is_backlogged(self, token: int, connection: GuardedConnection, candidate: Candidate, now: float) -> bool:
        since = self._demands[token].wanted_since
        uncapped = [candidate.histories[each] for each in connection.uncapped if each in candidate.histories]
        return since is not None and now - since >= MIN_SPAN and any(each.span >= MIN_SPAN for each in uncapped)

    def _is_proven(self, token: int, now: float) -> bool:
        demand = self._demands[token]
        return now - demand.owed <= PROVEN_SECONDS or demand.read - demand.progressed >= demand.silence
