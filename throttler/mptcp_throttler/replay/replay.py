# SPDX-License-Identifier: GPL-2.0-or-later
"""Replay captured segments: find what the throttler would have known and decided. Pure.

Each segment goes to the tracker, and the policy decides on the tracker's events, as in the daemon. The clock is the
time of the capture. Differences from the daemon:

- Kernel events are derived from the packets (``endpoint``).
- Subflows that began before the capture are unknown; the daemon lists the sockets when it starts.
- Budgets begin with no used bytes, and count captured bytes.
- Guard and steering need samples of sockets: entries only name the rule that steers a subflow, as ``plan`` does.
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
from mptcp_throttler.replay.capture import Captured
from mptcp_throttler.replay.endpoint import Endpoint
from mptcp_throttler.replay.words import segment_in_words
from mptcp_throttler.stages.budget import BudgetStage, Reached
from mptcp_throttler.stages.stage import Samples
from mptcp_throttler.views.answers import AccountAnswer
from mptcp_throttler.views.budgets import budget_rows
from mptcp_throttler.views.words import planned_reason

TICK_SECONDS: Final = 1.0  # interval of the checks for expired subflows and budget periods
SAMPLE_SECONDS: Final = 0.1  # the daemon's sampling interval near the next step of a budget
MAX_ACCOUNTS: Final = 20  # maximum accounts in the summary; if the policy has more budgets, one account of each
_UNKNOWN_TOKEN: Final = "no connection with this token is known: it began before the capture, or the join is forged"
_Key = tuple[FourTuple, Direction]


@dataclass(frozen=True, slots=True)
class Entry:
    """One observation or decision."""

    time: float
    kind: str  # segment, connection, subflow, changed, closed, refused, decided, lifted, budget, clock: operator.md
    text: str
    token: int | None = None
    four_tuple: FourTuple | None = None
    details: Mapping[str, str | int | None] = field(default_factory=dict)
    """For JSON: path, rule, rate, ceil, direction; from (client or proxy) of a segment."""


@dataclass(slots=True)
class Carried:
    """Data bytes that one subflow carried: in each direction, the advance of the highest sequence number. So each byte
    counts once, even if it is sent several times; a gap counts at once, data that fill the gap later do not count."""

    cookie: int
    token: int = 0
    down: int = 0
    up: int = 0
    highest: dict[bool, int] = field(default_factory=dict)  # highest sequence number plus 1, by whether a client's

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


_NOTHING: Final = Carried(0)


@dataclass(slots=True)
class CapTotals:
    caps: int = 0  # how often a subflow was capped; directions count separately
    seconds: float = 0.0
    bytes: int = 0  # captured bytes under the caps, although no cap was applied to them


class Replay:
    """One capture under one policy. All times are the capture's, in seconds since the epoch."""

    def __init__(
        self, policy: Policy, ports: Sequence[int], interfaces: Sequence[tuple[Network | None, str]] = ()
    ) -> None:
        """*interfaces*: the interface by which subflows to clients in a network leave; None is any network. The first
        match counts; without a match, the interface that the capture names."""
        self.policy, self.ports, self.interfaces = policy, ports, interfaces
        self.segments = self.connections = self.subflows = 0
        self.older = 0  # subflows with MPTCP options whose SYN is not in the capture
        self.names_interface = bool(interfaces)
        self.first: float | None = None
        self.now = 0.0  # time of the latest segment; never goes back: a segment with an earlier time counts as of then
        self.rules: dict[str, CapTotals] = {}
        self._tracker = Tracker(ports)
        self._endpoint = Endpoint()
        self._anticipation = JoinPredictor()
        self._budgets = BudgetStage()
        self._budgets.set_policy(policy)
        self._asked: dict[FourTuple, bool] = {}  # four-tuples with MPTCP options: whether their SYN was seen
        self._verdicts: dict[int, dict[_Key, Verdict]] = {}
        self._active: dict[FourTuple, Carried] = {}
        self._caps: dict[_Key, tuple[str, float, int]] = {}  # in force: rule, begin, bytes that the subflow had carried
        self._moved: set[FourTuple] = set()  # subflows that carried data since the last sample
        self._tick = self._sample = self._change = math.inf
        """Next times: of the check for expired subflows, of the sample for budgets, of a change of a rule's hours."""
        self._open: tuple[bool, ...] = ()

    @property
    def counters(self) -> dict[str, int]:
        return {**asdict(self._tracker.counters), "unproven_joins": self._endpoint.unproven_joins}

    def take(self, captured: Captured) -> Iterator[Entry]:
        """Process a segment to or from the proxy's ports. Yield the entries that were due before it, the segment itself
        if it carries signalling, and its effects."""
        segment = captured.segment
        yield from self._advance(segment.time)
        now = self.now
        self.segments += 1
        from_client = segment.destination_port in self.ports
        ends = (segment.destination, segment.destination_port), (segment.source, segment.source_port)
        (local, local_port), (remote, remote_port) = ends if from_client else ends[::-1]
        four_tuple = FourTuple(local, local_port, remote, remote_port)
        segment = replace(segment, time=now, interface=self._interface(remote, segment.interface))
        self.names_interface = self.names_interface or bool(segment.interface)
        if self._signals(segment, four_tuple):
            words, sender = segment_in_words(segment, from_client), {"from": "client" if from_client else "proxy"}
            yield Entry(now, "segment", words, None, four_tuple, sender)
        before = self._active.get(four_tuple)
        self._count(captured, four_tuple, from_client)
        yield from self._follow(self._tracker.segment(segment))
        for event in self._endpoint.take(segment, four_tuple, from_client):
            yield from self._follow(self._tracker.kernel_event(event))
        if (begun := self._active.get(four_tuple)) is not None and begun is not before:
            begun.highest = {from_client: segment.sequence, not from_client: segment.acknowledgment}
            self._count(captured, four_tuple, from_client)

    def finish(self) -> Iterator[Entry]:
        """End the capture: yield the effects of the last bytes carried, and complete the totals."""
        yield from self._sample_budgets()
        for key in list(self._caps):
            self._end_cap(key)

    def accounts(self) -> list[AccountAnswer]:
        """Return the budget accounts for the summary, the fullest first."""
        if not self.policy.budgets:
            return []
        return budget_rows(self.policy, self._budgets.accounts.used, self.now, MAX_ACCOUNTS)[1]

    def _advance(self, to: float) -> Iterator[Entry]:
        if self.first is None:
            self.first = self.now = to
            self._tick = to + TICK_SECONDS
            self._open = self.policy.open_rules(to)
            self._change = self.policy.next_change(to) or math.inf
        while (due := self._next_due()) <= to:
            self.now = max(self.now, due)
            yield from self._due()
        self.now = max(self.now, to)
        if self._tick <= self.now or self._change <= self.now:  # no connection was open
            yield from self._due()

    def _next_due(self) -> float:
        while_open = min(self._tick, self._change) if self._tracker.connections else math.inf
        window = self._anticipation.next_window_end
        return min(while_open, self._sample, math.inf if window is None else window)

    def _due(self) -> Iterator[Entry]:
        now = self.now
        if self._tick <= now:
            self._tick = now + TICK_SECONDS
            while events := self._tracker.expire(now):
                yield from self._follow(events)
            yield from self._decide(self._budgets.advance(now, now))
            self._anticipation.expire(now)
        yield from self._decide(self._anticipation.take_due(now))
        if self._change <= now:
            before, self._open = self._open, self.policy.open_rules(now)
            for rule, was, is_now in zip(self.policy.rules, before, self._open, strict=True):
                if was is not is_now and self._tracker.connections:
                    text = f"the hours of rule {rule.name} {'begin' if is_now else 'end'}"
                    yield Entry(now, "clock", text, details={"rule": rule.name})
            self._change = self.policy.next_change(now) or math.inf
            yield from self._decide(list(self._tracker.connections))
        if self._sample <= now:
            yield from self._sample_budgets()

    def _interface(self, remote: bytes, captured: str) -> str:
        address = ip_address(remote)
        return next((name for network, name in self.interfaces if network is None or address in network), captured)

    def _signals(self, segment: Segment, four_tuple: FourTuple) -> bool:
        """Return whether the segment gets a line: it has SYN, FIN, RST, or any option other than DSS."""
        if segment.flags & SYN:
            if segment.options:
                self._asked[four_tuple] = True
            return True
        if segment.options and four_tuple not in self._asked:
            self._asked[four_tuple] = False
            self.older += 1
        known = self._asked.get(four_tuple, False)
        return known and (
            bool(segment.flags & (FIN | RST)) or any(not isinstance(each, Dss) for each in segment.options)
        )

    def _count(self, captured: Captured, four_tuple: FourTuple, from_client: bool) -> None:
        """Count the data of an active subflow; a segment in the wrong direction is forged, and does not count."""
        segment, carried = captured.segment, self._active.get(four_tuple)
        if carried is None or segment.outgoing is from_client or not captured.length:
            return
        if carried.count(segment, captured.length, from_client) and self.policy.budgets:
            self._moved.add(four_tuple)
            self._sample = min(self._sample, self.now + SAMPLE_SECONDS)

    def _follow(self, events: Iterable[Event]) -> Iterator[Entry]:
        tokens: dict[int, None] = {}
        closed = []
        for event in events:
            tokens[event.token] = None
            four_tuple = event.four_tuple
            self.connections += event.kind is EventKind.CONNECTION_OPENED
            if event.kind is EventKind.SUBFLOW_ACTIVE and four_tuple is not None:
                self.subflows += 1
                self._active[four_tuple] = Carried(self.subflows, event.token)
            elif event.kind is EventKind.SUBFLOW_CLOSED and four_tuple is not None:
                closed.append(four_tuple)
            yield self._entry(event)
        yield from self._decide(tokens)
        for four_tuple in closed:
            carried = self._active.pop(four_tuple, None)
            if carried is not None:
                self._moved.discard(four_tuple)
                if self.policy.budgets:
                    end = four_tuple.remote, four_tuple.remote_port, four_tuple.local_port
                    self._budgets.sockets.socket_closed(carried.cookie, end, carried.down, carried.up)
                    self._sample = min(self._sample, self.now)

    def _entry(self, event: Event) -> Entry:
        four_tuple, token, detail = event.four_tuple, event.token, event.detail
        kind, text = "changed", detail
        match event.kind:
            case EventKind.CONNECTION_OPENED:
                kind, text = "connection", f"connection {token:08x} is open"
            case EventKind.CONNECTION_CLOSED:
                self._endpoint.forget(token)
                kind, text = "closed", f"connection {token:08x} has ended: {detail}"
            case EventKind.SUBFLOW_ACTIVE if four_tuple is not None:
                kind, text = "subflow", f"active: {self._subflow(four_tuple)}"
            case EventKind.SUBFLOW_CLOSED if four_tuple is not None:
                carried = self._active.get(four_tuple, _NOTHING)
                sizes = f"{approximate_size(carried.down)} down, {approximate_size(carried.up)} up"
                kind, text = "closed", f"has ended: {detail}; {sizes}"
            case EventKind.SUBFLOW_CHANGED if four_tuple is not None:
                text = f"is now: {self._subflow(four_tuple)}"
            case EventKind.JOIN_REFUSED:
                kind, text = "refused", f"join refused: {_UNKNOWN_TOKEN if detail == 'unknown token' else detail}"
        return Entry(self.now, kind, text, token, four_tuple)

    def _subflow(self, four_tuple: FourTuple) -> str:
        record = self._tracker.table.subflows.get(four_tuple)
        if record is None:
            return ""
        each = record.subflow
        parts = ["initial subflow" if each.initial else "joined subflow"]
        parts += [f"address id {each.remote_id}"] if each.remote_id else []
        parts += ["backup" if each.backup else "regular"]
        parts += [f"leaves by {each.interface}"] if each.interface else []
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
                yield from self._changed(token, key, before.get(key), verdict)
            for key in before.keys() - after.keys() & self._caps.keys():
                yield self._end_cap(key, token)

    def _changed(self, token: int, key: _Key, before: Verdict | None, verdict: Verdict) -> Iterator[Entry]:
        throttle, scope = verdict.throttle, verdict.scope
        if before is not None and (before.throttle, before.scope) == (throttle, scope):
            if scope is not None or before.reason == verdict.reason:
                return
        elif before is not None and before.scope not in (None, scope):
            yield self._end_cap(key, token, verdict if scope is None else None)
            if scope is None:
                return
        word = "not capped: " if scope is None else "" if self.policy.dry_run else "capped: "
        if scope is not None and key not in self._caps:
            self._caps[key] = scope.rule, self.now, self._carried(key)
            self.rules.setdefault(scope.rule, CapTotals()).caps += 1
        details = {
            "path": verdict.path,
            "rule": None if verdict.rule is None else verdict.rule.name,
            "rate": None if throttle is None else throttle.rate,
            "ceil": None if throttle is None else throttle.ceil,
            "direction": verdict.direction.value,
        }
        text = word + planned_reason(verdict)
        yield Entry(self.now, "decided", text, token, verdict.four_tuple, details=details)

    def _end_cap(self, key: _Key, token: int | None = None, verdict: Verdict | None = None) -> Entry:
        """End the cap on a subflow; *verdict* has the reason if the subflow continues without a cap."""
        rule, since, before = self._caps.pop(key)
        seconds, carried = self.now - since, self._carried(key) - before
        total = self.rules[rule]
        total.seconds += seconds
        total.bytes += carried
        why = "" if verdict is None else f": {verdict.reason}"
        upload = "upload: " if key[1] is Direction.UP else ""
        text = f"{upload}cap of rule {rule} is over after {seconds:.1f} s, {approximate_size(carried)}{why}"
        details = {"path": None if verdict is None else verdict.path, "rule": rule, "direction": key[1].value}
        return Entry(self.now, "lifted", text, token, key[0], details=details)

    def _carried(self, key: _Key) -> int:
        carried = self._active.get(key[0], _NOTHING)
        return carried.down if key[1] is Direction.DOWN else carried.up

    def _sample_budgets(self) -> Iterator[Entry]:
        """Give the budgets captured bytes in place of socket samples; yield steps reached and changed decisions."""
        self._sample = math.inf
        sockets = {}
        for each in self._moved:
            carried = self._active[each]
            amounts = carried.down, carried.up, carried.cookie
            sockets[each] = KernelSubflow(carried.token, each, True, 0, 0, False, self.now, *amounts)
        self._moved.clear()
        changed: set[int] = set()
        for outcome in self._budgets.observe(Samples(self.now, sockets, False)):
            changed.update(outcome.changed)
            for step in outcome.effects:
                if isinstance(step, Reached):
                    whose = f"client {step.client}: " if step.client else ""
                    yield Entry(self.now, "budget", whose + step.sentence, details={"rule": step.budget})
        yield from self._decide(sorted(changed))
