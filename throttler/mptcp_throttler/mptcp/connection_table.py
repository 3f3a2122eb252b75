"""The tracker's tables, and the only module in which a subflow changes state.

Packets, kernel events, dumps and the passing of time all end in :meth:`ConnectionTable.apply`. It looks the signal up
in ``tracker_table``, moves the subflow between the tables and returns the events. Every table has a bound here.

A subflow is in ``subflows`` and, unless it is active, in one of ``half_open`` (oldest handshake first) and ``closing``.
A connection is in ``tokens`` from the moment its token is known, in ``opened`` from its first active subflow on, and in
``lingering`` while it is open and has no live subflow.

What packets alone have shown is *unconfirmed* until the kernel has it (:meth:`ConnectionTable.confirm`). Where a table
is full, it makes room for what comes; and what the kernel has is ended by the kernel alone. A connection that the
kernel has keeps its place and its client's share while it lingers, so that a client which roams finds it: the kernel
has not ended it. It gives way to another connection of its own client alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mptcp_common.clients import client_of
from mptcp_throttler.mptcp.limits import Shares, TrackerCounters, TrackerLimits
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, SubflowState
from mptcp_throttler.mptcp.questions import BURST, SocketLookupQueue
from mptcp_throttler.mptcp.records import ConnectionRecord, SubflowRecord
from mptcp_throttler.mptcp.timed_table import IdleConnections, TimedTable
from mptcp_throttler.mptcp.tracker_table import (
    CONTRADICTIONS,
    HALF_OPEN,
    LIVE,
    TRANSITIONS,
    Signal,
    announcement,
)

PROXY_RESET: Final = "RST from the proxy"
"""The detail by which a RST counts as a refusal of a join."""

EXPIRY_STEP: Final = 1_000
"""Entries of one table that one call of ``expire`` checks or forgets: at most some 10 ms."""

MAX_DUMP_SECONDS: Final = 120.0
"""A dump that was begun and is not finished by then has failed: endings are no longer remembered for it."""

CONFIRMED_AFTER: Final = 1.0
"""Seconds within which the kernel's event follows the packets; then it is asked."""

MAX_LOCALS: Final = 256
"""Local addresses with ports that subflows share."""


class ConnectionTable:
    """Connections and subflows by token and four-tuple, within the limits."""

    def __init__(self, limits: TrackerLimits, listen_ports: frozenset[int]) -> None:
        self.limits = limits
        self._listen_ports = listen_ports
        self.counters = TrackerCounters()
        self.shares = Shares(limits.max_connections)
        self.events_arrive = True
        """Path-manager events do, so that one reports whatever becomes of a subflow that the kernel has."""
        self.questions = SocketLookupQueue()
        self.subflows: dict[FourTuple, SubflowRecord] = {}
        self.tokens: dict[int, ConnectionRecord] = {}
        self.opened: dict[int, ConnectionRecord] = {}
        self.half_open: TimedTable[FourTuple, SubflowRecord] = TimedTable()
        self.live = 0
        """Subflows in state ACTIVE."""
        self.closing: TimedTable[FourTuple, SubflowRecord] = TimedTable()
        self.lingering = IdleConnections()
        self.unconfirmed: TimedTable[FourTuple, SubflowRecord] = TimedTable()
        """Active subflows that packets alone have shown."""
        self.unconfirmed_connections: TimedTable[int, ConnectionRecord] = TimedTable()
        """Open connections of which the kernel never had a subflow, as far as it told, or which were given up."""
        self.refused: TimedTable[FourTuple, bool] = TimedTable()
        """Refused joins; True where the reason is a wrong HMAC, which the kernel may contradict."""
        self.ended: TimedTable[FourTuple | int, float] = TimedTable()
        """When live subflows (by four-tuple) and connections that the kernel closed (by token) ended, recent ones."""
        self.turned_away: TimedTable[int, bool] = TimedTable()
        """Tokens of connections beyond their client's share: a join of one that comes late has none either."""
        self.dumps = 0
        """Dumps of the kernel's sockets that were begun."""
        self.dump_began: float | None = None
        """When the dump began that is being taken in."""
        self.silent = False
        """A subflow was not seen for half of ``idle_timeout``. The reader clears it."""
        self._tables: dict[SubflowState | None, TimedTable[FourTuple, SubflowRecord]] = {
            **dict.fromkeys(HALF_OPEN, self.half_open),
            SubflowState.CLOSING: self.closing,
        }
        self._locals: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        self._idle_checks: Iterator[SubflowRecord] = iter(())

    # Entering

    def new_subflow(self, four_tuple: FourTuple, initial: bool, time: float) -> SubflowRecord:
        """Return a record that shares its local address and port with others: the proxy has few of them."""
        local, local_port, remote, remote_port = four_tuple
        shared = self._locals.get((local, local_port))
        if shared is None:
            if len(self._locals) >= MAX_LOCALS:
                self._locals.clear()
            shared = self._locals[local, local_port] = (local, local_port)
        return SubflowRecord(FourTuple(*shared, remote, remote_port), initial, time)

    def connection(self, token: int, time: float) -> ConnectionRecord:
        """Return the connection with that token, made if need be."""
        record = self.tokens.get(token)
        if record is None:
            record = self.tokens[token] = ConnectionRecord(token, time)
        return record

    def attach(self, subflow: SubflowRecord, connection: ConnectionRecord) -> bool:
        """Make *subflow* one of *connection*'s. False, and an overflow counted, if it has too many live ones."""
        if len(connection.subflows) >= self.limits.max_subflows_per_connection:
            oldest = connection.oldest_half_open()
            if oldest is None or oldest.initial:
                self.counters.overflows += 1
                if not self.events_arrive:
                    # One of them may have ended without anybody noticing.
                    connection.crowded = True
                    for each in connection.subflows:
                        self.questions.ask(each.four_tuple)
                return False
            self.counters.half_open_evicted += 1
            self._forget(oldest)
        subflow.connection = connection
        connection.subflows.append(subflow)
        if subflow.known_to_kernel:
            self._confirm_connection(connection, subflow.four_tuple)
        subflow.changed()
        return True

    def enter(self, subflow: SubflowRecord, signal: Signal, time: float) -> list[Event]:
        """Track a new subflow, whose four-tuple must be free, from *signal* on."""
        self.subflows[subflow.four_tuple] = subflow
        return self.apply(subflow, signal, time)

    def make_room_for_handshake(self) -> None:
        """Forget the oldest handshake if there are too many. To be called before a new one is made."""
        if len(self.half_open) >= self.limits.max_half_open:
            self.counters.half_open_evicted += 1
            self._forget(self.half_open.oldest())

    def make_room_in(self, connection: ConnectionRecord, time: float) -> list[Event]:
        """For one that the kernel has, end a subflow of *connection* that it may not have, if there are too many."""
        if len(connection.subflows) < self.limits.max_subflows_per_connection:
            return []
        oldest = connection.oldest_unconfirmed()
        if oldest is None or connection.oldest_half_open() is not None:
            return []
        self.counters.unconfirmed_evicted += 1
        return self.apply(oldest, Signal.EXPIRED, time, "evicted for one that the kernel has")

    def has_share_for(self, address: bytes) -> bool:
        """Return whether the client with that *address* may have one more connection: perhaps in place of one of its
        own that lingers (:meth:`make_share_for`)."""
        return self.shares.has_room(address, self.lingering.number_of(client_of(address)))

    def make_share_for(self, address: bytes, time: float) -> list[Event]:
        """For one more connection of the client with that *address*, close those of its own that linger the longest,
        as many as that takes."""
        client, events = client_of(address), list[Event]()
        while not self.shares.has_room(address) and self.lingering.number_of(client):
            self.counters.lingering_evicted += 1
            events += self.close(self.lingering.oldest_of(client), time, "evicted for a new connection of its client")
        return events

    # Changing

    def confirm(self, subflow: SubflowRecord, time: float) -> list[Event]:
        """Note that the kernel has *subflow*."""
        if subflow.known_to_kernel:
            return []
        subflow.known_to_kernel = True
        connection = subflow.connection
        if connection is not None:
            self._confirm_connection(connection, subflow.four_tuple)
        if self.unconfirmed.pop(subflow.four_tuple) is None:
            return []
        subflow.changed()
        # A verdict differs only where others of the connection count.
        others = connection.subflows if connection is not None else []
        if not any(each.state is SubflowState.ACTIVE for each in others if each is not subflow):
            return []
        return self.change(subflow, time, "the kernel has it")

    def verify_with_kernel(self, subflow: SubflowRecord, *, reset: bool = False) -> list[Event]:
        """Do nothing on what the wire claims of *subflow*: an event will tell if it is so; else the kernel is asked.

        None tells of subflows that a *reset* ended together with their connection.
        """
        if reset or not self.events_arrive:
            self.questions.ask(subflow.four_tuple)
        return []

    def apply(self, subflow: SubflowRecord, signal: Signal, time: float, detail: str = "") -> list[Event]:
        """Apply *signal* to *subflow* and return the events."""
        old = subflow.state
        new = TRANSITIONS[old].get(signal)
        if new is None:
            return []
        events: list[Event] = []
        if new is SubflowState.ACTIVE and old is not SubflowState.CLOSING:
            events += self._make_room(subflow, time)
            if not self._has_room(subflow):
                self.counters.overflows += 1
                self._forget(subflow)
                return events
            events += self._prove_initial(subflow, time)
        if (old, signal) in CONTRADICTIONS:
            events.append(self.disagree(subflow, time, f"{old.value if old else 'untracked'}, but {signal.value}"))
        subflow.state = new
        subflow.since = time
        if new is SubflowState.ACTIVE:
            subflow.nonce_client = subflow.nonce_proxy = subflow.proof = None  # for the handshake alone
        subflow.touch(time)
        subflow.changed()
        announced = announcement(old, new)
        if announced is EventKind.SUBFLOW_ACTIVE:
            events += self._activated(subflow, time)
        if new is SubflowState.CLOSED:
            refused = signal is Signal.PLAIN_ANSWER or detail == PROXY_RESET
            if refused and not subflow.initial and old in HALF_OPEN and subflow.four_tuple not in self.refused:
                connection = subflow.connection
                token = connection.token if connection else 0
                events += self.refuse(subflow.four_tuple, token, time, detail or signal.value, by_hmac=False)
            self._remove(subflow, old, time)
        else:
            self._move(subflow, old, new, time)
        if announced is not None:
            events.append(self._event(announced, subflow, time, detail or signal.value))
            self.counters.subflows_closed += announced is EventKind.SUBFLOW_CLOSED
        return events

    def close(self, connection: ConnectionRecord, time: float, detail: str) -> list[Event]:
        """End *connection* with all its subflows."""
        events = []
        for subflow in list(connection.subflows):
            events += self.apply(subflow, Signal.ABANDONED, time, detail)
        self.tokens.pop(connection.token, None)
        self.lingering.pop(connection.token)
        self._give_back(connection)
        self.unconfirmed_connections.pop(connection.token)
        if self.opened.pop(connection.token, None) is not None:
            self.counters.connections_closed += 1
            events.append(Event(EventKind.CONNECTION_CLOSED, time, connection.token, None, detail))
        return events

    def change(self, subflow: SubflowRecord, time: float, detail: str) -> list[Event]:
        """Announce that something other than the state of *subflow* changed, if the subflow itself was announced."""
        subflow.changed()
        if subflow.state in HALF_OPEN:
            return []
        return [self._event(EventKind.SUBFLOW_CHANGED, subflow, time, detail)]

    def disagree(self, subflow: SubflowRecord, time: float, detail: str) -> Event:
        self.counters.disagreements += 1
        return self._event(EventKind.DISAGREEMENT, subflow, time, detail)

    def refuse(self, four_tuple: FourTuple, token: int, time: float, detail: str, by_hmac: bool) -> list[Event]:
        """Count a refused join, and announce it while there is room to remember it."""
        self.counters.joins_refused += 1
        if len(self.refused) >= self.limits.max_refused and four_tuple not in self.refused:
            return []
        self.refused.put(four_tuple, by_hmac, time)
        return [Event(EventKind.JOIN_REFUSED, time, token, four_tuple, detail)]

    def remember_end(self, key: FourTuple | int, time: float) -> None:
        """Remember that the subflow or connection *key* ended at *time*: a dump begun before may still list it."""
        if len(self.ended) >= self.limits.max_half_open and key not in self.ended:
            self.ended.pop_oldest()
        self.ended.put(key, time, time)

    def turn_away(self, token: int, time: float) -> bool:
        """Remember that the connection *token* was beyond its client's share; say whether that is new."""
        if new := token not in self.turned_away:
            if len(self.turned_away) >= self.limits.max_half_open:
                self.turned_away.pop_oldest()
            self.turned_away.put(token, True, time)
        return new

    def expire(self, time: float) -> list[Event]:
        """Forget what is too old at *time*: at most :data:`EXPIRY_STEP` entries of each table in one call."""
        limits, counters = self.limits, self.counters
        events: list[Event] = []
        for table, timeout, detail in (
            (self.half_open, limits.half_open_timeout, "handshake not completed"),
            (self.closing, limits.closing_timeout, "no FIN from the other side"),
        ):
            for subflow in islice(table.pop_until(time - timeout), EXPIRY_STEP):
                counters.expired += 1
                events += self.apply(subflow, Signal.EXPIRED, time, detail)
        for subflow in self._next_idle_checks():
            if subflow.state is SubflowState.ACTIVE and subflow.last_seen <= time - limits.idle_timeout / 2:
                if subflow.four_tuple.local_port not in self._listen_ports:
                    self.questions.ask(subflow.four_tuple)  # no dump lists it, however alive it is
                    continue
                self.silent = True
                if subflow.last_seen <= time - limits.idle_timeout:
                    counters.expired += 1
                    events += self.apply(subflow, Signal.EXPIRED, time, "idle")
                    self.ended.pop(subflow.four_tuple)  # no end was seen: a dump that begins at once brings it back
        for connection in islice(self.lingering.pop_until(time - limits.closed_linger), EXPIRY_STEP):
            if connection.oldest_half_open() is not None:
                self.lingering.put(connection.token, connection, time)
            else:
                events += self.close(connection, time, "no subflow left")
        for subflow in islice(self.unconfirmed.until(time - CONFIRMED_AFTER), BURST):
            self.questions.ask(subflow.four_tuple)
        for _ in self.refused.pop_until(time - limits.half_open_timeout):
            pass
        forgotten = time - limits.closed_linger
        if self.dump_began is not None:
            forgotten = min(forgotten, max(self.dump_began - limits.resync_grace, time - MAX_DUMP_SECONDS))
        for _ in self.turned_away.pop_until(forgotten):
            pass
        for _ in self.ended.pop_until(forgotten):
            pass
        return events

    # Within

    def _next_idle_checks(self) -> list[SubflowRecord]:
        """Return the next subflows to be checked: each comes once in a round over the table."""
        records = list(islice(self._idle_checks, EXPIRY_STEP))
        if len(records) < EXPIRY_STEP:
            self._idle_checks = iter(list(self.subflows.values()))
            records += islice(self._idle_checks, EXPIRY_STEP)
        return records

    def _event(self, kind: EventKind, subflow: SubflowRecord, time: float, detail: str) -> Event:
        token = subflow.connection.token if subflow.connection is not None else 0
        return Event(kind, time, token, subflow.four_tuple, detail)

    def _prove_initial(self, subflow: SubflowRecord, time: float) -> list[Event]:
        """A join that becomes active proves its connection's initial subflow, whose third ACK was not captured."""
        connection = subflow.connection
        if subflow.initial or connection is None or connection.opened:
            return []
        initial = next((other for other in connection.subflows if other.initial), None)
        return [] if initial is None else self.apply(initial, Signal.JOINED, time)

    def _confirm_connection(self, connection: ConnectionRecord, four_tuple: FourTuple) -> None:
        if connection.holder is None:
            connection.confirmed = True
            connection.holder = self.shares.take(four_tuple.remote)
            self.unconfirmed_connections.pop(connection.token)

    def _give_back(self, connection: ConnectionRecord) -> None:
        if connection.holder is not None:
            self.shares.give_back(connection.holder)
            connection.holder = None

    def _make_room(self, subflow: SubflowRecord, time: float) -> list[Event]:
        """At ``max_connections``, close the oldest connection that the kernel may not have. Where *subflow* has a share
        there is one: those that have one are no more than there is room for."""
        if self._has_room(subflow) or not len(self.unconfirmed_connections):
            return []
        oldest = self.unconfirmed_connections.oldest()
        if oldest.token in self.lingering:
            self.counters.lingering_evicted += 1
        else:
            self.counters.unconfirmed_evicted += 1
        return self.close(oldest, time, "evicted for a new connection")

    def _has_room(self, subflow: SubflowRecord) -> bool:
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
        if not connection.confirmed:
            self.unconfirmed_connections.put(connection.token, connection, time)
        self.counters.connections_opened += 1
        return [Event(EventKind.CONNECTION_OPENED, time, connection.token, subflow.four_tuple)]

    def _move(self, subflow: SubflowRecord, old: SubflowState | None, new: SubflowState, time: float) -> None:
        if old in HALF_OPEN and new in HALF_OPEN:
            return  # a handshake's time runs from its first segment, whatever follows
        self._leave_table(subflow, old)
        if new is SubflowState.ACTIVE:
            self.live += 1
            if not subflow.known_to_kernel:
                self.unconfirmed.put(subflow.four_tuple, subflow, time)
        else:
            self._tables[new].put(subflow.four_tuple, subflow, time)

    def _leave_table(self, subflow: SubflowRecord, state: SubflowState | None) -> None:
        if state is SubflowState.ACTIVE:
            self.live -= 1
            self.unconfirmed.pop(subflow.four_tuple)
        elif state is not None:
            self._tables[state].pop(subflow.four_tuple)

    def _remove(self, subflow: SubflowRecord, old: SubflowState | None, time: float) -> None:
        four_tuple, connection = subflow.four_tuple, subflow.connection
        self._leave_table(subflow, old)
        self.subflows.pop(four_tuple, None)
        self.questions.drop(four_tuple)
        if old in LIVE:
            self.remember_end(four_tuple, time)
        if connection is None:
            return
        connection.subflows.remove(subflow)
        connection.changed()
        if not connection.opened:
            if subflow.initial or not connection.subflows:
                self._drop(connection)
        elif connection.token not in self.lingering and not connection.has_live():
            if connection.given_up and connection.confirmed:
                connection.confirmed = False
                self.unconfirmed_connections.put(connection.token, connection, time)
                self._give_back(connection)
            self.lingering.put(connection.token, connection, time)

    def _drop(self, connection: ConnectionRecord) -> None:
        """Forget a connection that never opened, with the handshakes that wait for it."""
        self.tokens.pop(connection.token, None)
        self._give_back(connection)
        while connection.subflows:  # forgetting an initial subflow forgets the others
            self._forget(connection.subflows[0])

    def _forget(self, subflow: SubflowRecord) -> None:
        """Drop a handshake; nothing is announced."""
        old, subflow.state = subflow.state, SubflowState.CLOSED
        self._remove(subflow, old, subflow.last_seen)
