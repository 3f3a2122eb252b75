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
    TcpFlag,
    unmap,
)
from mptcp_throttler.mptcp.options import Dss, MpCapable, MpPrio
from mptcp_throttler.mptcp.tracker import Tracker, TrackerCounters
from mptcp_throttler.policy.evaluate import next_change
from mptcp_throttler.policy.model import Network, Policy
from mptcp_throttler.policy.schedule import open_rules
from mptcp_throttler.views.captured_again import CapturedAgain
from mptcp_throttler.views.replayed import Carried, Entry, Totals
from mptcp_throttler.views.replayed_decisions import ReplayedDecisions
from mptcp_throttler.views.replayed_events import entry_of

BACK_SECONDS: Final = 60.0
"""A segment so much older than the one before begins a capture that was appended; others came in disorder."""
MAX_REMEMBERED: Final = 65_536
"""Four-tuples of which it is remembered that their SYN was seen, or was not."""
_TICK_SECONDS: Final = 1.0
_EXPIRED_AT_ONCE: Final = 1_000
_SYN, _ACK, _ENDS = int(TcpFlag.SYN), int(TcpFlag.ACK), int(TcpFlag.FIN | TcpFlag.RST)
"""Plain numbers: an enumeration computes in Python, and there is a segment each time."""


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
        self._clock: float | None = None
        self._again = CapturedAgain()
        self._tracker = Tracker(self._ports, self._limits)
        self._decisions = ReplayedDecisions(policy, self.totals, self._connection)
        self._begin()

    def _begin(self) -> None:
        """Begin to track, with nothing known but what was used of budgets."""
        self._decisions.forget(self._now)
        self._counted.update(asdict(self._tracker.counters))
        self._again.forget()
        self._tracker = Tracker(self._ports, self._limits)
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
        was_active = self._decisions.carried_by(four_tuple) is not None
        if was_active and taken and captured.payload:
            self._decisions.count(captured, four_tuple, from_client, now)
        if self._signals(segment, four_tuple) and not copy:
            text = _VERSION_0 if _asks_for_version_0(segment, from_client) else ""
            yield Entry(now, "segment", text, None, four_tuple, captured=captured, from_client=from_client)
        events = self._tracker.segment(segment)
        events += self._priority(segment, four_tuple, from_client)
        yield from self._follow(events, now)
        if not was_active and (begun := self._decisions.carried_by(four_tuple)) is not None:
            begun.begin(segment, from_client)
            if captured.payload:
                self._decisions.count(captured, four_tuple, from_client, now)

    def finish(self) -> Iterator[Entry]:
        """The capture is over: yield what was carried last brought about, and complete the totals."""
        yield from self._decisions.sample_budgets(self._now)
        self._decisions.end_caps(self._now)

    def accounts(self) -> list[dict[str, Any]]:
        """Return what was used of budgets, the fullest first, as ``summary`` has it."""
        return self._decisions.accounts(self._now)

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
        if (window := self._decisions.window_due) is not None:
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
            due.append(self._decisions.budgets_due)
        return min(due)

    def _due(self, now: float) -> Iterator[Entry]:
        for _ in range(self._tracker.table_sizes["subflows"] // _EXPIRED_AT_ONCE + 1):
            yield from self._follow(self._tracker.expire(now), now)
        yield from self._decisions.end_of_windows(now)
        if self._change is not None and self._change <= now:
            self._change = None
            before, self._open = self._open, open_rules(self._policy, now)
            for rule, was, is_now in zip(self._policy.rules, before, self._open, strict=True):
                if was is not is_now:
                    text = f"the hours of rule {rule.name} {'begin' if is_now else 'end'}"
                    yield Entry(now, "clock", text, rule=rule.name)
            yield from self._decisions.decide(list(self._tracker.connections), now)
        if self._decisions.budgets_due <= now:
            yield from self._decisions.sample_budgets(now)

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
        token = self._decisions.token_of(four_tuple)
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

    # Events

    def _connection(self, token: int) -> Connection | None:
        """Return what the tracker of now has: there is another one after a step back in time."""
        return self._tracker.get(token)

    def _follow(self, events: Iterable[Event], now: float) -> Iterator[Entry]:
        tokens: dict[int, None] = {}
        closed = []
        for event in events:
            tokens[event.token] = None
            four_tuple = event.four_tuple
            if event.kind is EventKind.CONNECTION_OPENED:
                self.totals.connections += 1
            elif event.kind is EventKind.SUBFLOW_ACTIVE and four_tuple is not None:
                self.totals.subflows += 1
                self._decisions.begun(four_tuple, event.token)
            elif event.kind is EventKind.SUBFLOW_CLOSED and four_tuple is not None:
                closed.append(four_tuple)
            carried = None if four_tuple is None else self._decisions.carried_by(four_tuple)
            yield entry_of(event, now, self._connection, carried or Carried())
        yield from self._decisions.decide(tokens, now)
        for four_tuple in closed:
            self._decisions.closed(four_tuple, now)


_VERSION_0: Final = "asks for MPTCP version 0 (RFC 6824), which Linux answers in plain TCP: not tracked"


def _asks_for_version_0(segment: Segment, from_client: bool) -> bool:
    syn = from_client and segment.flags & (_SYN | _ACK) == _SYN
    return syn and any(isinstance(each, MpCapable) and each.version == 0 for each in segment.options)
