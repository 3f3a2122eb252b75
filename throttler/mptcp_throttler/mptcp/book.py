"""The tracker's tables, and the only place where a subflow changes state.

Every way in (packets, kernel events, dumps, time) ends in :meth:`Book.apply`, which looks the signal up in
``tracker_table``, moves the subflow between the tables and says what is to be announced. Bounds are kept here too.

A subflow is in exactly one of ``half_open`` (oldest handshake first), ``live`` (least recently seen first) and
``closing``. A connection is in ``tokens`` from the moment its token is known, in ``opened`` from its first active
subflow on, and in ``lingering`` while it is open and has no live subflow.
"""

from __future__ import annotations

from typing import Final

from .limits import TrackerCounters, TrackerLimits
from .model import Event, EventKind, FourTuple, SubflowState
from .records import ConnectionRecord, SubflowRecord
from .timed_table import TimedTable
from .tracker_table import CONTRADICTIONS, HALF_OPEN, LIVE, REFUSALS, TRANSITIONS, Signal, announcement

PROXY_RESET: Final = "RST from the proxy"
"""The detail that makes a RST a refusal: the proxy turned the join down."""


class Book:
    """Connections and subflows by token and four-tuple, within the limits."""

    def __init__(self, limits: TrackerLimits) -> None:
        self.limits = limits
        self.counters = TrackerCounters()
        self.kernel_speaks = False
        """Path-manager events are heard: the kernel will say when a subflow that it knows ends."""
        self.subflows: dict[FourTuple, SubflowRecord] = {}
        self.tokens: dict[int, ConnectionRecord] = {}
        self.opened: dict[int, ConnectionRecord] = {}
        self.half_open: TimedTable[FourTuple, SubflowRecord] = TimedTable()
        self.live: TimedTable[FourTuple, SubflowRecord] = TimedTable()
        self.closing: TimedTable[FourTuple, SubflowRecord] = TimedTable()
        self.lingering: TimedTable[int, ConnectionRecord] = TimedTable()
        self.refused: TimedTable[FourTuple, tuple[FourTuple, bool]] = TimedTable()
        """Joins turned down; True where the reason is a wrong HMAC, which the kernel may contradict."""
        self.ended: TimedTable[FourTuple, tuple[FourTuple, float]] = TimedTable()
        """Live subflows that ended of late, and when."""
        self._tables = {
            **dict.fromkeys(HALF_OPEN, self.half_open),
            SubflowState.ACTIVE: self.live,
            SubflowState.CLOSING: self.closing,
        }

    # Entering

    def connection(self, token: int, version: int, time: float) -> ConnectionRecord:
        """Return the connection with that token, made if need be."""
        record = self.tokens.get(token)
        if record is None:
            record = self.tokens[token] = ConnectionRecord(token, version, time)
        return record

    def attach(self, subflow: SubflowRecord, connection: ConnectionRecord) -> bool:
        """Make *subflow* one of *connection*'s. False, and an overflow counted, if it has too many live ones."""
        if len(connection.subflows) >= self.limits.max_subflows_per_connection:
            oldest = connection.oldest_half_open()
            if oldest is None or oldest.initial:
                self.counters.overflows += 1
                return False
            self.counters.half_open_evicted += 1
            self._forget(oldest)
        subflow.connection = connection
        connection.subflows[subflow.four_tuple] = subflow
        subflow.changed()
        return True

    def enter(self, subflow: SubflowRecord, signal: Signal, time: float, detail: str = "") -> list[Event]:
        """Track a new subflow, whose four-tuple must be free, from *signal* on."""
        self.subflows[subflow.four_tuple] = subflow
        return self.apply(subflow, signal, time, detail)

    def make_room_for_handshake(self) -> None:
        """Forget the oldest handshake if there are too many. To be called before a new one is made."""
        if len(self.half_open) >= self.limits.max_half_open:
            self.counters.half_open_evicted += 1
            self._forget(self.half_open.oldest())

    # Changing

    def apply(self, subflow: SubflowRecord, signal: Signal, time: float, detail: str = "") -> list[Event]:
        """Take *signal* to *subflow* and return what is to be announced."""
        old = subflow.state
        new = TRANSITIONS[old].get(signal)
        if new is None:
            return []
        events: list[Event] = []
        if new is SubflowState.ACTIVE and old is not SubflowState.CLOSING:
            events += self._make_place(subflow, time)
            if not self._has_place(subflow):
                self.counters.overflows += 1
                self._forget(subflow)
                return events
            events += self._prove_initial(subflow, time)
        if (old, signal) in CONTRADICTIONS:
            events.append(self.disagree(subflow, time, f"{old.value if old else 'untracked'}, but {signal.value}"))
        subflow.state = new
        subflow.since = time
        subflow.touch(time)
        subflow.changed()
        told = announcement(old, new)
        if told is EventKind.SUBFLOW_ACTIVE:
            events += self._activated(subflow, time)
        if new is SubflowState.CLOSED:
            if not subflow.initial and old in HALF_OPEN and (signal in REFUSALS or detail == PROXY_RESET):
                connection = subflow.connection
                token = connection.token if connection else 0
                events += self.refuse(subflow.four_tuple, token, time, detail or signal.value, signal is Signal.REFUTED)
            self._remove(subflow, old, time)
        else:
            self._place(subflow, old, new, time)
        if told is not None:
            events.append(self._event(told, subflow, time, detail or signal.value))
            self.counters.subflows_closed += told is EventKind.SUBFLOW_CLOSED
        return events

    def close(self, connection: ConnectionRecord, time: float, detail: str) -> list[Event]:
        """End *connection* with all its subflows."""
        events = []
        for subflow in list(connection.subflows.values()):
            events += self.apply(subflow, Signal.ABANDONED, time, detail)
        self.tokens.pop(connection.token, None)
        self.lingering.pop(connection.token)
        if self.opened.pop(connection.token, None) is not None:
            self.counters.connections_closed += 1
            events.append(Event(EventKind.CONNECTION_CLOSED, time, connection.token, None, detail))
        return events

    def change(self, subflow: SubflowRecord, time: float, detail: str) -> list[Event]:
        """Announce that something other than the state of *subflow* changed, if anybody knows of it."""
        subflow.changed()
        if subflow.state in HALF_OPEN:
            return []
        return [self._event(EventKind.SUBFLOW_CHANGED, subflow, time, detail)]

    def see(self, subflow: SubflowRecord, time: float) -> None:
        """Note that an active *subflow* shows signs of life."""
        subflow.touch(time)
        if subflow.state is SubflowState.ACTIVE:
            self.live.put(subflow.four_tuple, subflow, time)

    def disagree(self, subflow: SubflowRecord, time: float, detail: str) -> Event:
        self.counters.disagreements += 1
        return self._event(EventKind.DISAGREEMENT, subflow, time, detail)

    def refuse(self, four_tuple: FourTuple, token: int, time: float, detail: str, by_hmac: bool) -> list[Event]:
        """Count a refused join, and announce it while there is room to remember it."""
        self.counters.joins_refused += 1
        if len(self.refused) >= self.limits.max_refused and four_tuple not in self.refused:
            return []
        self.refused.put(four_tuple, (four_tuple, by_hmac), time)
        return [Event(EventKind.JOIN_REFUSED, time, token, four_tuple, detail)]

    def expire(self, time: float) -> list[Event]:
        """Forget what is too old at *time*."""
        limits, counters = self.limits, self.counters
        events: list[Event] = []
        for table, timeout, detail in (
            (self.half_open, limits.half_open_timeout, "handshake not completed"),
            (self.closing, limits.closing_timeout, "no FIN from the other side"),
            (self.live, limits.idle_timeout, "idle"),
        ):
            for subflow in table.pop_until(time - timeout):
                counters.expired += 1
                events += self.apply(subflow, Signal.EXPIRED, time, detail)
        for connection in self.lingering.pop_until(time - limits.closed_linger):
            if connection.oldest_half_open() is not None:
                self.lingering.put(connection.token, connection, time)
            else:
                events += self.close(connection, time, "no subflow left")
        for _ in self.refused.pop_until(time - limits.half_open_timeout):
            pass
        for _ in self.ended.pop_until(time - limits.closed_linger):
            pass
        return events

    # Within

    def _event(self, kind: EventKind, subflow: SubflowRecord, time: float, detail: str) -> Event:
        token = subflow.connection.token if subflow.connection is not None else 0
        return Event(kind, time, token, subflow.four_tuple, detail)

    def _prove_initial(self, subflow: SubflowRecord, time: float) -> list[Event]:
        """A join that becomes active proves its connection's initial subflow, whose third ACK was lost to us."""
        connection = subflow.connection
        if subflow.initial or connection is None or connection.opened:
            return []
        initial = next((other for other in connection.subflows.values() if other.initial), None)
        return [] if initial is None else self.apply(initial, Signal.JOINED, time)

    def _make_place(self, subflow: SubflowRecord, time: float) -> list[Event]:
        """If all places for connections are taken, close the one that has been without a subflow the longest."""
        if self._has_place(subflow) or not len(self.lingering):
            return []
        self.counters.lingering_evicted += 1
        return self.close(self.lingering.oldest(), time, "its place was needed")

    def _has_place(self, subflow: SubflowRecord) -> bool:
        connection = subflow.connection
        return (connection is not None and connection.opened) or len(self.opened) < self.limits.max_connections

    def _activated(self, subflow: SubflowRecord, time: float) -> list[Event]:
        connection = subflow.connection
        assert connection is not None
        self.counters.subflows_activated += 1
        self.lingering.pop(connection.token)
        if connection.opened:
            return []
        connection.opened = True
        connection.since = time
        connection.changed()
        self.opened[connection.token] = connection
        self.counters.connections_opened += 1
        return [Event(EventKind.CONNECTION_OPENED, time, connection.token, subflow.four_tuple)]

    def _place(self, subflow: SubflowRecord, old: SubflowState | None, new: SubflowState, time: float) -> None:
        source, target = self._tables[old] if old is not None else None, self._tables[new]
        if source is target and target is self.half_open:
            return  # a handshake's time runs from its first segment, whatever follows
        if source is not None:
            source.pop(subflow.four_tuple)
        target.put(subflow.four_tuple, subflow, time)

    def _remove(self, subflow: SubflowRecord, old: SubflowState | None, time: float) -> None:
        four_tuple, connection = subflow.four_tuple, subflow.connection
        if old is not None:
            self._tables[old].pop(four_tuple)
        self.subflows.pop(four_tuple, None)
        if old in LIVE:
            if len(self.ended) >= self.limits.max_half_open and four_tuple not in self.ended:
                self.ended.pop_oldest()
            self.ended.put(four_tuple, (four_tuple, time), time)
        if connection is None:
            return
        connection.subflows.pop(four_tuple, None)
        connection.changed()
        if not connection.opened:
            if subflow.initial or not connection.subflows:
                self._drop(connection)
        elif connection.token not in self.lingering and not connection.has_live():
            self.lingering.put(connection.token, connection, time)

    def _drop(self, connection: ConnectionRecord) -> None:
        """Forget a connection that never opened, with the handshakes that wait for it."""
        self.tokens.pop(connection.token, None)
        for subflow in list(connection.subflows.values()):
            self._forget(subflow)

    def _forget(self, subflow: SubflowRecord) -> None:
        """Drop a handshake without a word."""
        old, subflow.state = subflow.state, SubflowState.CLOSED
        self._remove(subflow, old, subflow.last_seen)
