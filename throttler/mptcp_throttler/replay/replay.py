# SPDX-License-Identifier: GPL-2.0-or-later
"""Replays captured segments: computes the state and the decisions that the throttler would have had. Pure.

Each segment goes to the tracker, and the policy decides on the tracker's events, as in the daemon. The clock is the
time of the capture. Differences from the daemon:

- Kernel events are derived from the packets (``simulated_kernel``).
- Subflows that began before the capture are unknown; the daemon lists the sockets when it starts.
- Budgets start at 0 used bytes, and count captured bytes.
- Guard and steering need samples of sockets. So entries only name the rule that steers a subflow, as ``plan`` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_address
from typing import Final

from mptcp_common.units import approximate_size
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, KernelSubflow, Segment
from mptcp_throttler.mptcp.options import FIN, RST, SYN, Dss
from mptcp_throttler.mptcp.tracker import Tracker
from mptcp_throttler.policy.anticipation import JoinPredictor
from mptcp_throttler.policy.evaluate import count_paths, evaluate
from mptcp_throttler.policy.model import Direction, Policy
from mptcp_throttler.policy.values import Network
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.replay.capture import CapturedSegment
from mptcp_throttler.replay.descriptions import describe_segment
from mptcp_throttler.replay.simulated_kernel import SimulatedKernel
from mptcp_throttler.stages.budget import BudgetStage, StepReached
from mptcp_throttler.stages.stage import Samples
from mptcp_throttler.views.answers import AccountAnswer
from mptcp_throttler.views.budgets import budget_rows
from mptcp_throttler.views.text import planned_reason

TICK_SECONDS: Final = 1.0  # interval of the checks for expired subflows and budget periods
MAX_TICKS: Final = 10_000  # in longer gaps, checks are farther apart: a segment's damaged time may be years ahead
SAMPLE_SECONDS: Final = 0.1  # the daemon's sampling interval near the next step of a budget
MAX_ACCOUNTS: Final = 20  # maximum accounts in the summary; if the policy has more budgets, one account of each
_UNKNOWN_TOKEN: Final = "no connection with this token is known: it began before the capture, or the join is forged"
_Key = tuple[FourTuple, Direction]


@dataclass(frozen=True, slots=True)
class Entry:
    """One observation or decision."""

    time: float
    kind: str  # segment, connection, subflow, changed, closed, refused, decided, lifted, budget or clock
    text: str
    token: int | None = None
    four_tuple: FourTuple | None = None
    details: Mapping[str, str | int | None] = field(default_factory=dict)
    """For JSON: path, rule, rate, ceil, direction; from (client or proxy) of a segment."""


@dataclass(slots=True)
class ByteCounts:
    """Data bytes that one subflow carried: the advance of the highest sequence number in each direction. So each byte
    counts once, even if it is sent several times; a gap counts at once, and data that fill it later do not count."""

    cookie: int
    token: int = 0
    down: int = 0
    up: int = 0
    highest: dict[bool, int] = field(default_factory=dict)  # highest sequence number + 1; True: of the client

    def count(self, segment: Segment, size: int, from_client: bool) -> bool:
        """Count *segment* with *size* bytes of data; return whether any are new."""
        end = segment.sequence + bool(segment.flags & SYN) + size
        before = self.highest.get(from_client, end - size)
        new = (end - before + (1 << 31)) % (1 << 32) - (1 << 31)
        if new <= 0:
            return False
        self.highest[from_client] = end
        if from_client:
            self.up += new
        else:
            self.down += new
        return True


_NO_BYTES: Final = ByteCounts(0)


@dataclass(slots=True)
class CapTotals:
    caps: int = 0  # how often a subflow was capped; directions count separately
    seconds: float = 0.0
    bytes: int = 0  # captured bytes to which the caps would have applied


class Replay:
    """One capture under one policy. All times are the capture's, in seconds since the epoch."""

    def __init__(
        self, policy: Policy, ports: Sequence[int], interfaces: Sequence[tuple[Network | None, str]] = ()
    ) -> None:
        """*interfaces*: the interface of subflows to the clients of a network; None stands for any network. The first
        match counts; without a match, the interface is that of the capture."""
        self.policy, self.ports, self.interfaces = policy, ports, interfaces
        self.segments = self.connections = self.subflows = 0
        self.older_subflows = 0  # subflows with MPTCP options whose SYN is not in the capture
        self.interface_is_known = bool(interfaces)  # whether the interface of some subflow is known
        self.start_time: float | None = None
        self.now = 0.0  # latest time of a segment; a later segment with an earlier time also gets this time
        self.rules: dict[str, CapTotals] = {}
        self._tracker = Tracker(ports)
        self._kernel = SimulatedKernel()
        self._anticipation = JoinPredictor()
        self._budgets = BudgetStage()
        self._budgets.set_policy(policy)
        self._syn_seen: dict[FourTuple, bool] = {}  # for subflows with MPTCP options: whether the SYN was captured
        self._verdicts: dict[int, dict[_Key, Verdict]] = {}  # by token of the connection
        self._active: dict[FourTuple, ByteCounts] = {}
        self._caps: dict[_Key, tuple[str, float, int]] = {}  # in force: rule, begin, bytes carried before
        self._subflows_with_data: set[FourTuple] = set()  # subflows that carried data since the last sample
        self._next_expiry_check = self._next_sample = self._next_rule_change = math.inf
        """Times of the next check for expired subflows, sample for budgets, and begin or end of a rule's hours."""
        self._open_rules: tuple[bool, ...] = ()

    @property
    def counters(self) -> dict[str, int]:
        return {**asdict(self._tracker.counters), "unproven_joins": self._kernel.unproven_joins}

    def process(self, captured: CapturedSegment) -> Iterator[Entry]:
        """Process a segment to or from the proxy's ports. Yield entries of times before it, an entry of the segment if
        it carries signalling, and entries of its effects."""
        segment = captured.segment
        yield from self._advance(segment.time)
        now = self.now
        self.segments += 1
        from_client = segment.destination_port in self.ports
        ends = (segment.destination, segment.destination_port), (segment.source, segment.source_port)
        (local, local_port), (remote, remote_port) = ends if from_client else ends[::-1]
        four_tuple = FourTuple(local, local_port, remote, remote_port)
        segment = replace(segment, time=now, interface=self._interface_of(remote, segment.interface))
        self.interface_is_known = self.interface_is_known or bool(segment.interface)
        if self._has_signalling(segment, four_tuple):
            description, sender = describe_segment(segment, from_client), {"from": "client" if from_client else "proxy"}
            yield Entry(now, "segment", description, None, four_tuple, sender)
        before = self._active.get(four_tuple)
        self._count(captured, four_tuple, from_client)
        yield from self._apply_events(self._tracker.apply_segment(segment))
        for event in self._kernel.process(segment, four_tuple, from_client):
            yield from self._apply_events(self._tracker.apply_event(event))
        if (after := self._active.get(four_tuple)) is not None and after is not before:
            after.highest = {from_client: segment.sequence, not from_client: segment.acknowledgment}
            self._count(captured, four_tuple, from_client)

    def finish(self) -> Iterator[Entry]:
        """End the capture: yield the entries of the last bytes, and complete the totals."""
        yield from self._sample_budgets()
        for key in list(self._caps):
            self._end_cap(key)

    def accounts(self) -> list[AccountAnswer]:
        """Return the budget accounts for the summary, the fullest first."""
        if not self.policy.budgets:
            return []
        return budget_rows(self.policy, self._budgets.accounts.used, self.now, MAX_ACCOUNTS)[1]

    def _advance(self, time: float) -> Iterator[Entry]:
        if self.start_time is None:
            self.start_time = self.now = time
            self._next_expiry_check = time + TICK_SECONDS
            self._open_rules = self.policy.open_rules(time)
            self._next_rule_change = self.policy.next_change(time) or math.inf
        while (next_time := self._next_time()) <= time:
            self.now = max(self.now, next_time)
            yield from self._run_timers(time)
        self.now = max(self.now, time)
        if self._next_expiry_check <= self.now or self._next_rule_change <= self.now:  # no connection was open
            yield from self._run_timers(time)

    def _next_time(self) -> float:
        while_open = min(self._next_expiry_check, self._next_rule_change) if self._tracker.connections else math.inf
        return min(while_open, self._next_sample, self._anticipation.next_window_end or math.inf)

    def _run_timers(self, time: float) -> Iterator[Entry]:
        now = self.now
        if self._next_expiry_check <= now:
            self._next_expiry_check = now + max(TICK_SECONDS, (time - now) / MAX_TICKS)
            while events := self._tracker.expire(now):
                yield from self._apply_events(events)
            yield from self._decide(self._budgets.advance(now, now))
            self._anticipation.expire(now)
        yield from self._decide(self._anticipation.take_due(now))
        if self._next_rule_change <= now:
            before, self._open_rules = self._open_rules, self.policy.open_rules(now)
            for rule, was_open, is_open in zip(self.policy.rules, before, self._open_rules, strict=True):
                if was_open is not is_open and self._tracker.connections:
                    text = f"the hours of rule {rule.name} {'begin' if is_open else 'end'}"
                    yield Entry(now, "clock", text, details={"rule": rule.name})
            self._next_rule_change = self.policy.next_change(now) or math.inf
            yield from self._decide(list(self._tracker.connections))
        if self._next_sample <= now:
            yield from self._sample_budgets()

    def _interface_of(self, remote: bytes, captured: str) -> str:
        address = ip_address(remote)
        return next((name for network, name in self.interfaces if network is None or address in network), captured)

    def _has_signalling(self, segment: Segment, four_tuple: FourTuple) -> bool:
        """Return whether to show a segment: a SYN or, after an MPTCP SYN, a FIN, RST or any option other than DSS."""
        if segment.flags & SYN:
            if segment.options:
                self._syn_seen[four_tuple] = True
            return True
        if segment.options and four_tuple not in self._syn_seen:
            self._syn_seen[four_tuple] = False
            self.older_subflows += 1
        syn_seen = self._syn_seen.get(four_tuple, False)
        return syn_seen and (
            bool(segment.flags & (FIN | RST)) or any(not isinstance(each, Dss) for each in segment.options)
        )

    def _count(self, captured: CapturedSegment, four_tuple: FourTuple, from_client: bool) -> None:
        """Count the data of an active subflow; a segment in the wrong direction is forged, and does not count."""
        segment, counts = captured.segment, self._active.get(four_tuple)
        if counts is None or segment.outgoing is from_client or not captured.length:
            return
        if counts.count(segment, captured.length, from_client) and self.policy.budgets:
            self._subflows_with_data.add(four_tuple)
            self._next_sample = min(self._next_sample, self.now + SAMPLE_SECONDS)

    def _apply_events(self, events: Iterable[Event]) -> Iterator[Entry]:
        tokens: dict[int, None] = {}
        closed = []
        for event in events:
            tokens[event.token] = None
            four_tuple = event.four_tuple
            self.connections += event.kind is EventKind.CONNECTION_OPENED
            if event.kind is EventKind.SUBFLOW_ACTIVE and four_tuple is not None:
                self.subflows += 1
                self._active[four_tuple] = ByteCounts(self.subflows, event.token)
            elif event.kind is EventKind.SUBFLOW_CLOSED and four_tuple is not None:
                closed.append(four_tuple)
            yield self._describe_event(event)
        yield from self._decide(tokens)
        for four_tuple in closed:
            counts = self._active.pop(four_tuple, None)
            if counts is not None:
                self._subflows_with_data.discard(four_tuple)
                if self.policy.budgets:
                    end = four_tuple.remote, four_tuple.remote_port, four_tuple.local_port
                    self._budgets.sockets.socket_closed(counts.cookie, end, counts.down, counts.up)
                    self._next_sample = min(self._next_sample, self.now)

    def _describe_event(self, event: Event) -> Entry:
        four_tuple, token, detail = event.four_tuple, event.token, event.detail
        kind, text = "changed", detail
        match event.kind:
            case EventKind.CONNECTION_OPENED:
                kind, text = "connection", f"connection {token:08x} is open"
            case EventKind.CONNECTION_CLOSED:
                self._kernel.forget(token)
                kind, text = "closed", f"connection {token:08x} has ended: {detail}"
            case EventKind.SUBFLOW_ACTIVE if four_tuple is not None:
                kind, text = "subflow", f"active: {self._describe_subflow(four_tuple)}"
            case EventKind.SUBFLOW_CLOSED if four_tuple is not None:
                counts = self._active.get(four_tuple, _NO_BYTES)
                sizes = f"{approximate_size(counts.down)} down, {approximate_size(counts.up)} up"
                kind, text = "closed", f"has ended: {detail}; {sizes}"
            case EventKind.SUBFLOW_CHANGED if four_tuple is not None:
                text = f"is now: {self._describe_subflow(four_tuple)}"
            case EventKind.JOIN_REFUSED:
                kind, text = "refused", f"join refused: {_UNKNOWN_TOKEN if detail == 'unknown token' else detail}"
        return Entry(self.now, kind, text, token, four_tuple)

    def _describe_subflow(self, four_tuple: FourTuple) -> str:
        record = self._tracker.table.subflows.get(four_tuple)
        if record is None:
            return ""
        each = record.subflow
        parts = ["initial subflow" if each.initial else "joined subflow"]
        parts += [f"address id {each.remote_id}"] if each.remote_id else []
        parts += ["backup" if each.backup else "regular"]
        parts += [f"leaves through {each.interface}"] if each.interface else []
        return ", ".join(parts)

    def _decide(self, tokens: Iterable[int]) -> Iterator[Entry]:
        for token in tokens:
            connection = self._tracker.connections.get(token)
            before = self._verdicts.pop(token, {})
            after: dict[_Key, Verdict] = {}
            if connection is None:
                self._anticipation.forget(token, self.now)
                self._budgets.forget(token)
            else:
                expected = self._anticipation.expected_paths(connection, count_paths(self.policy, connection), self.now)
                verdicts = evaluate(self.policy, connection, self.now, expected if self.policy.anticipate else 0)
                verdicts = self._budgets.apply(connection, verdicts, self.now)
                after = self._verdicts[token] = {(each.four_tuple, each.direction): each for each in verdicts}
            for key, verdict in after.items():
                yield from self._report_change(token, key, before.get(key), verdict)
            for key in before.keys() - after.keys() & self._caps.keys():
                yield self._end_cap(key, token)

    def _report_change(self, token: int, key: _Key, before: Verdict | None, verdict: Verdict) -> Iterator[Entry]:
        throttle, scope = verdict.throttle, verdict.scope
        if before is not None and (before.throttle, before.scope) == (throttle, scope):
            if scope is not None or before.reason == verdict.reason:
                return
        elif before is not None and before.scope not in (None, scope):
            yield self._end_cap(key, token, verdict if scope is None else None)
            if scope is None:
                return
        prefix = "not capped: " if scope is None else "" if self.policy.dry_run else "capped: "
        if scope is not None and key not in self._caps:
            self._caps[key] = scope.rule, self.now, self._byte_count(key)
            self.rules.setdefault(scope.rule, CapTotals()).caps += 1
        details = {
            "path": verdict.path,
            "rule": None if verdict.rule is None else verdict.rule.name,
            "rate": None if throttle is None else throttle.rate,
            "ceil": None if throttle is None else throttle.ceil,
            "direction": verdict.direction.value,
        }
        text = prefix + planned_reason(verdict)
        yield Entry(self.now, "decided", text, token, verdict.four_tuple, details=details)

    def _end_cap(self, key: _Key, token: int | None = None, verdict: Verdict | None = None) -> Entry:
        """End the cap on a subflow; *verdict* has the reason if the subflow continues without a cap."""
        rule, since, before = self._caps.pop(key)
        seconds, byte_count = self.now - since, self._byte_count(key) - before
        total = self.rules[rule]
        total.seconds += seconds
        total.bytes += byte_count
        reason = "" if verdict is None else f": {verdict.reason}"
        upload = "upload: " if key[1] is Direction.UP else ""
        text = f"{upload}cap of rule {rule} ended after {seconds:.1f} s, {approximate_size(byte_count)}{reason}"
        details = {"path": None if verdict is None else verdict.path, "rule": rule, "direction": key[1].value}
        return Entry(self.now, "lifted", text, token, key[0], details=details)

    def _byte_count(self, key: _Key) -> int:
        counts = self._active.get(key[0], _NO_BYTES)
        return counts.down if key[1] is Direction.DOWN else counts.up

    def _sample_budgets(self) -> Iterator[Entry]:
        """Pass captured bytes to the budgets, as samples of sockets; yield reached steps and changed decisions."""
        self._next_sample = math.inf
        sockets = {}
        for each in self._subflows_with_data:
            counts = self._active[each]
            amounts = counts.down, counts.up, counts.cookie
            sockets[each] = KernelSubflow(counts.token, each, True, 0, 0, False, self.now, *amounts)
        self._subflows_with_data.clear()
        changed: set[int] = set()
        for outcome in self._budgets.observe(Samples(self.now, sockets, False)):
            changed.update(outcome.changed)
            for step in outcome.actions:
                if isinstance(step, StepReached):
                    prefix = f"client {step.client}: " if step.client else ""
                    yield Entry(self.now, "budget", prefix + step.sentence, details={"rule": step.budget})
        yield from self._decide(sorted(changed))
