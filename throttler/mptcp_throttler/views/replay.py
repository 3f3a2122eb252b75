"""What the throttler would have known and done, from captured segments alone. Pure.

The capture's time is the clock: by it handshakes and idle subflows expire, rules open and close, and connections are
anticipated, as they are in the daemon. What differs from the daemon:

- There is no kernel to confirm or to end anything: what packets show counts, MP_PRIO included.
- A subflow that began before the capture is not known; the daemon lists the sockets when it starts.
- Budgets begin with nothing used, and count what was captured (``replayed_budgets``), each byte once.
- What was captured on two interfaces is taken in once (``captured_again``).
- Guard and steering need samples of sockets. Which rule steers a subflow is said, as ``plan`` does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from ipaddress import ip_address
from typing import Any, Final

from mptcp_common.units import approximate_size
from mptcp_throttler.mptcp.captured import Captured
from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.model import (
    Connection,
    Event,
    EventKind,
    FourTuple,
    KernelEvent,
    KernelEventKind,
    Segment,
    Subflow,
    SubflowState,
    TcpFlag,
    unmap,
)
from mptcp_throttler.mptcp.options import Dss, MpCapable, MpPrio
from mptcp_throttler.mptcp.tracker import Tracker, TrackerCounters
from mptcp_throttler.policy.anticipation import Anticipation
from mptcp_throttler.policy.evaluate import evaluate, next_change
from mptcp_throttler.policy.model import Direction, Network, Policy, Verdict
from mptcp_throttler.policy.schedule import open_rules
from mptcp_throttler.views.captured_again import CapturedAgain
from mptcp_throttler.views.preview import steered_reason
from mptcp_throttler.views.replayed import Caps, Carried, Entry, InForce, Totals
from mptcp_throttler.views.replayed_budgets import ReplayedBudgets

BACK_SECONDS: Final = 60.0
"""A segment so much older than the one before begins a capture that was appended; others came in disorder."""
MAX_REMEMBERED: Final = 65_536
"""Four-tuples of which it is remembered that their SYN was seen, or was not."""
_TICK_SECONDS: Final = 1.0
_EXPIRED_AT_ONCE: Final = 1_000
_SYN, _ACK, _ENDS = int(TcpFlag.SYN), int(TcpFlag.ACK), int(TcpFlag.FIN | TcpFlag.RST)
"""Plain numbers: an enumeration computes in Python, and there is a segment each time."""
_Key = tuple[FourTuple, Direction]

_DETAILS: Final = {
    "unknown token": "no connection with this token is known: it began before the capture, or the join is forged",
}


class Replay:
    """One capture under one policy."""

    def __init__(
        self,
        policy: Policy,
        ports: Collection[int],
        interfaces: Sequence[tuple[Network | None, str]] = (),
        limits: TrackerLimits | None = None,
    ) -> None:
        """*interfaces*: by which interface subflows leave whose clients' addresses are of a network, of any where it is
        None; the first that fits. Without one that fits it is the one that the capture names."""
        self.totals = Totals()
        self._limits = limits or TrackerLimits()
        self._policy = policy
        self._ports = frozenset(ports)
        self._interfaces = tuple(interfaces)
        self._counted: Counter[str] = Counter()
        """By trackers from before the capture's time went back."""
        self._caps: dict[_Key, InForce] = {}
        self._verdicts: dict[int, dict[_Key, Verdict]] = {}
        self._carried: dict[FourTuple, Carried] = {}
        """Of active subflows, and of those that close."""
        self._clock: float | None = None
        self._budgets = ReplayedBudgets(policy)
        self._again = CapturedAgain()
        self._tracker = Tracker(self._ports, self._limits)
        self._begin()

    def _begin(self) -> None:
        """Begin to track, with nothing known but what was used of budgets."""
        self._end_caps()
        for token in self._verdicts:
            self._budgets.forget(token)
        for four_tuple, carried in self._carried.items():
            self._budgets.closed(four_tuple, carried, self._now)
        self._counted.update(asdict(self._tracker.counters))
        self._again.forget()
        self._tracker = Tracker(self._ports, self._limits)
        self._anticipation = Anticipation()
        self._verdicts = {}
        self._carried = {}
        self._token_of: dict[FourTuple, int] = {}
        self._asked: dict[FourTuple, bool] = {}
        """Four-tuples with MPTCP options: whether their SYN was seen."""
        self._clock = None
        self._change: float | None = None
        """When the clock next opens or closes a rule; infinity: never; None: to be asked."""
        self._open: tuple[bool, ...] = ()

    @property
    def counters(self) -> TrackerCounters:
        """What the tracker counted."""
        return TrackerCounters(**(self._counted + Counter(asdict(self._tracker.counters))))

    def take(self, captured: Captured) -> Iterator[Entry]:
        """Take in one segment; yield what happened until then, the segment if it signals anything, and what follows."""
        segment = captured.segment
        yield from self._advance(segment.time)
        now = self._now
        four_tuple, from_client = self._sides(segment)
        # The tracker ignores what went the wrong way: where a host forwards, the copy that went the right way counts.
        taken = segment.outgoing is not from_client
        copy, was_taken = self._again.note(captured, taken)
        self.totals.copies += copy
        self.totals.segments += not copy
        if copy and (was_taken or not taken):
            return
        if self._interfaces:
            segment = replace(segment, interface=self._interface(four_tuple.remote, segment.interface))
        carried = self._carried.get(four_tuple)
        if carried is not None and taken and captured.payload:
            self._count(carried, captured, four_tuple, from_client)
        if self._signals(segment, four_tuple) and not copy:
            text = _VERSION_0 if _asks_for_version_0(segment, from_client) else ""
            yield Entry(now, "segment", text, None, four_tuple, captured=captured, from_client=from_client)
        events = self._tracker.segment(segment)
        events += self._priority(segment, four_tuple, from_client)
        yield from self._follow(events, now)
        if carried is None and (begun := self._carried.get(four_tuple)) is not None:
            begun.begin(segment, from_client)
            if captured.payload:
                self._count(begun, captured, four_tuple, from_client)

    def _count(self, carried: Carried, captured: Captured, four_tuple: FourTuple, from_client: bool) -> None:
        if carried.data(captured.segment, captured.payload, from_client):
            self._budgets.carried(self._token_of[four_tuple], four_tuple, carried, self._now)

    def finish(self) -> Iterator[Entry]:
        """The capture is over: yield what was carried last brought about, and complete the totals."""
        yield from self._sample_budgets(self._now)
        self._end_caps()

    def accounts(self) -> list[dict[str, Any]]:
        """Return what was used of budgets, the fullest first, as ``summary`` has it."""
        return self._budgets.accounts(self._now)

    def _end_caps(self) -> None:
        for key in list(self._caps):
            self._end_cap(key, self._now)

    @property
    def _now(self) -> float:
        return self._clock or 0.0

    # The clock

    def _advance(self, to: float) -> Iterator[Entry]:
        """Let the time pass, and yield what it does."""
        if self._clock is None or to < self._clock - BACK_SECONDS:
            if self._clock is not None:
                yield Entry(self._clock, "clock", "time goes back: what is known is forgotten, as at a start")
                self._begin()
            self._clock, self.totals.last = to, to
            self._open = open_rules(self._policy, to)
        while (due := self._next_due()) <= to:
            self._clock = max(self._now, due)
            yield from self._due(self._clock)
        now = max(self._now, to)
        self.totals.seconds += now - self.totals.last
        self._clock = self.totals.last = now

    def _next_due(self) -> float:
        """Return when something is next to be done; infinity where nothing is."""
        now, sizes = self._now, self._tracker.table_sizes
        due = [math.inf]
        if (window := self._anticipation.next_due) is not None:
            due.append(window)
        if sizes["half_open"] or sizes["closing"] or sizes["lingering"]:
            due.append(now + _TICK_SECONDS)
        elif sizes["live"]:
            idle = self.totals.last + self._limits.idle_timeout + _TICK_SECONDS
            due.append(idle if idle > now else math.inf)
        if sizes["connections"]:
            if self._change is None:
                change = next_change(self._policy, now)
                self._change = math.inf if change is None else change
            due.append(self._change)
            due.append(self._budgets.due)
        return min(due)

    def _due(self, now: float) -> Iterator[Entry]:
        for _ in range(self._tracker.table_sizes["subflows"] // _EXPIRED_AT_ONCE + 1):
            yield from self._follow(self._tracker.expire(now), now)
        yield from self._decide(self._anticipation.due(now), now)
        if self._change is not None and self._change <= now:
            self._change = None
            before, self._open = self._open, open_rules(self._policy, now)
            for rule, was, is_now in zip(self._policy.rules, before, self._open, strict=True):
                if was is not is_now:
                    text = f"the hours of rule {rule.name} {'begin' if is_now else 'end'}"
                    yield Entry(now, "clock", text, rule=rule.name)
            yield from self._decide(list(self._tracker.connections), now)
        if self._budgets.due <= now:
            yield from self._sample_budgets(now)

    def _sample_budgets(self, now: float) -> Iterator[Entry]:
        changed, reached = self._budgets.sample(now)
        for each in reached:
            whose = f"client {each.client}: " if each.client else ""
            yield Entry(now, "budget", f"{whose}{each.sentence}", rule=each.budget)
        yield from self._decide(changed, now)

    # Segments

    def _sides(self, segment: Segment) -> tuple[FourTuple, bool]:
        """Return the four-tuple, and whether the client sent the segment."""
        source, destination = unmap(segment.source), unmap(segment.destination)
        if segment.destination_port in self._ports:
            inward = FourTuple(destination, segment.destination_port, source, segment.source_port)
            if segment.source_port not in self._ports:
                return inward, True
        outward = FourTuple(source, segment.source_port, destination, segment.destination_port)
        if segment.destination_port not in self._ports or outward in self._asked:
            return outward, False
        return inward, True

    def _interface(self, remote: bytes, captured: str) -> str:
        address = ip_address(remote)
        for network, name in self._interfaces:
            if network is None or (address.version == network.version and address in network):
                return name
        return captured

    def _signals(self, segment: Segment, four_tuple: FourTuple) -> bool:
        """Return whether the segment is worth a line: a SYN, the end of a subflow, any option but one of data."""
        options = segment.options
        if segment.flags & _SYN:
            if options:
                self._remember(four_tuple, True)
            return True
        if options and four_tuple not in self._asked:
            self._remember(four_tuple, False)
            self.totals.older += 1
        known = self._asked.get(four_tuple, False)
        return known and (bool(segment.flags & _ENDS) or any(not isinstance(each, Dss) for each in options))

    def _remember(self, four_tuple: FourTuple, asked: bool) -> None:
        self._asked.pop(four_tuple, None)
        self._asked[four_tuple] = asked
        if len(self._asked) > MAX_REMEMBERED:
            del self._asked[next(iter(self._asked))]

    def _priority(self, segment: Segment, four_tuple: FourTuple, from_client: bool) -> list[Event]:
        """Do what the kernel's event does in the daemon: the tracker takes no MP_PRIO from the wire."""
        token = self._token_of.get(four_tuple)
        if token is None or not from_client or segment.outgoing:
            return []
        return [
            event
            for option in segment.options
            if isinstance(option, MpPrio)
            for event in self._tracker.kernel_event(
                KernelEvent(segment.time, KernelEventKind.SUBFLOW_PRIORITY, token, four_tuple, backup=option.backup)
            )
        ]

    # Events and decisions

    def _follow(self, events: Iterable[Event], now: float) -> Iterator[Entry]:
        tokens: dict[int, None] = {}
        closed = []
        for event in events:
            tokens[event.token] = None
            yield self._entry(event, now)
            if event.kind is EventKind.SUBFLOW_CLOSED and event.four_tuple is not None:
                closed.append(event.four_tuple)
        yield from self._decide(tokens, now)
        for four_tuple in closed:
            self._token_of.pop(four_tuple, None)
            if (carried := self._carried.pop(four_tuple, None)) is not None:
                self._budgets.closed(four_tuple, carried, now)

    def _entry(self, event: Event, now: float) -> Entry:
        four_tuple, token = event.four_tuple, event.token
        match event.kind:
            case EventKind.CONNECTION_OPENED:
                self.totals.connections += 1
                return Entry(now, "connection", f"connection {token:08x} is open", token, four_tuple)
            case EventKind.CONNECTION_CLOSED:
                return Entry(now, "closed", f"connection {token:08x} has ended: {event.detail}", token)
            case EventKind.SUBFLOW_ACTIVE if four_tuple is not None:
                self.totals.subflows += 1
                self._carried[four_tuple], self._token_of[four_tuple] = Carried(), token
                return Entry(now, "subflow", f"active: {self._kind(token, four_tuple)}", token, four_tuple)
            case EventKind.SUBFLOW_CLOSED if four_tuple is not None:
                carried = self._carried.get(four_tuple, Carried())
                text = f"has ended: {event.detail}; {carried}"
                return Entry(now, "closed", text, token, four_tuple)
            case EventKind.SUBFLOW_CHANGED:
                return Entry(now, "changed", self._change_of(event), token, four_tuple)
            case EventKind.JOIN_REFUSED:
                detail = _DETAILS.get(event.detail, event.detail)
                return Entry(now, "refused", f"join refused: {detail}", token, four_tuple)
        return Entry(now, "changed", event.detail, token, four_tuple)

    def _change_of(self, event: Event) -> str:
        subflow = None if event.four_tuple is None else self._subflow(event.token, event.four_tuple)
        if subflow is None or subflow.state is SubflowState.CLOSING:
            return f"is closing: {event.detail}"
        return f"is now: {self._kind(event.token, subflow.four_tuple)}"

    def _kind(self, token: int, four_tuple: FourTuple) -> str:
        subflow = self._subflow(token, four_tuple)
        if subflow is None:
            return "a subflow"
        parts = ["initial subflow" if subflow.initial else "joined subflow"]
        if subflow.remote_id:
            parts.append(f"address id {subflow.remote_id}")
        parts.append("backup" if subflow.backup else "regular")
        if subflow.interface:
            parts.append(f"leaves by {subflow.interface}")
        return ", ".join(parts)

    def _subflow(self, token: int, four_tuple: FourTuple) -> Subflow | None:
        connection = self._tracker.get(token)
        found = () if connection is None else connection.subflows
        return next((each for each in found if each.four_tuple == four_tuple), None)

    def _decide(self, tokens: Iterable[int], now: float) -> Iterator[Entry]:
        for token in tokens:
            connection = self._tracker.get(token)
            before = self._verdicts.pop(token, {})
            after: dict[_Key, Verdict] = {}
            if connection is None:
                self._anticipation.forget(token, now)
                self._budgets.forget(token)
            else:
                after = {(each.four_tuple, each.direction): each for each in self._evaluate(connection, now)}
                self._verdicts[token] = after
            for key, verdict in after.items():
                yield from self._changed(token, key, before.get(key), verdict, now)
            for key, verdict in before.items():
                if key not in after and verdict.scope is not None:
                    yield self._end_cap(key, now, token)

    def _evaluate(self, connection: Connection, now: float) -> tuple[Verdict, ...]:
        expected = self._anticipation.subflows(connection, now)
        verdicts = evaluate(self._policy, connection, now, expected if self._policy.anticipate else 0)
        return self._budgets.apply(connection, verdicts, now)

    def _changed(self, token: int, key: _Key, before: Verdict | None, verdict: Verdict, now: float) -> Iterator[Entry]:
        """Yield what is decided of a subflow, if that is another cap, or another reason for none."""
        throttle, scope = verdict.throttle, verdict.scope
        if before is not None and before.throttle == throttle and before.scope == scope:  # noqa: SIM102 - two questions
            if scope is not None or before.reason == verdict.reason:
                return
        if before is not None and before.scope != scope and before.scope is not None:
            yield self._end_cap(key, now, token, verdict if scope is None else None)
            if scope is None:
                return
        word = "not capped: "
        if scope is not None:
            # What a dry run would cap is no cap.
            word = "" if self._policy.dry_run else "capped: "
            self._begin_cap(key, scope.rule, now)
        yield Entry(
            now,
            "decided",
            word + steered_reason(verdict, verdict.reason),
            token,
            verdict.four_tuple,
            verdict.path,
            None if verdict.rule is None else verdict.rule.name,
            verdict.direction,
            None if throttle is None else throttle.rate,
            None if throttle is None else throttle.ceil,
        )

    def _begin_cap(self, key: _Key, rule: str, now: float) -> None:
        carried = self._carried.get(key[0], Carried())
        self._caps[key] = InForce(rule, now, carried.of(key[1]))
        self.totals.caps.setdefault(rule, Caps()).count += 1

    def _end_cap(self, key: _Key, now: float, token: int | None = None, verdict: Verdict | None = None) -> Entry:
        """Take the cap from the subflow; *verdict* has why, where it goes on without."""
        cap = self._caps.pop(key)
        seconds, carried = max(0.0, now - cap.since), self._carried.get(key[0], Carried()).of(key[1]) - cap.before
        total = self.totals.caps[cap.rule]
        total.seconds += seconds
        total.carried += carried
        why = "" if verdict is None else f": {verdict.reason}"
        upload = "upload: " if key[1] is Direction.UP else ""
        text = f"{upload}cap of rule {cap.rule} is over after {seconds:.1f} s, {approximate_size(carried)}{why}"
        path = None if verdict is None else verdict.path
        return Entry(now, "lifted", text, token, key[0], path, cap.rule, key[1])


_VERSION_0: Final = "asks for MPTCP version 0 (RFC 6824), which Linux answers in plain TCP: not tracked"


def _asks_for_version_0(segment: Segment, from_client: bool) -> bool:
    syn = from_client and segment.flags & (_SYN | _ACK) == _SYN
    return syn and any(isinstance(each, MpCapable) and each.version == 0 for each in segment.options)
