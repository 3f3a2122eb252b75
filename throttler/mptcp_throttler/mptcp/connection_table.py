"""The kernel's connections by token and subflows by four-tuple, within the limits.

A connection without a subflow is also in ``lingering``. It keeps its place and its client's share, so that a roaming
client finds it, and gives way only to another connection of its own client.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from mptcp_common.clients import client_of
from mptcp_throttler.mptcp.limits import Shares, TrackerCounters, TrackerLimits
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple
from mptcp_throttler.mptcp.questions import SocketLookupQueue
from mptcp_throttler.mptcp.records import ConnectionRecord, SubflowRecord
from mptcp_throttler.mptcp.timed_table import IdleConnections, TimedTable

EXPIRY_STEP: Final = 1_000
"""Entries of one table that one ``expire`` call checks or forgets: at most about 10 ms."""

MAX_DUMP_SECONDS: Final = 120.0
"""A dump that takes longer has failed: the table no longer remembers endings for it."""

MAX_LOCALS: Final = 256
"""Local addresses with ports kept for subflows to share."""


class ConnectionTable:
    """Makes every change to the set of connections and subflows, and returns its events."""

    def __init__(self, limits: TrackerLimits, listen_ports: frozenset[int]) -> None:
        self.limits = limits
        self._listen_ports = listen_ports
        self.counters = TrackerCounters()
        self.shares = Shares(limits.max_connections)
        self.questions = SocketLookupQueue()
        self.subflows: dict[FourTuple, SubflowRecord] = {}
        self.connections: dict[int, ConnectionRecord] = {}
        self.lingering = IdleConnections()
        self.ended: TimedTable[FourTuple | int, float] = TimedTable()
        """When recent subflows (by four-tuple) and connections (by token) ended."""
        self.turned_away: TimedTable[int, bool] = TimedTable()
        """Tokens of connections beyond their client's share: a late join to one gets no room either."""
        self.dumps = 0
        """Number of socket dumps begun."""
        self.dump_began: float | None = None
        self.silent = False
        """A subflow was not seen for half of ``idle_timeout``. The reader clears it."""
        self._locals: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        self._idle_checks: Iterator[SubflowRecord] = iter(())

    # Subflows and connections

    def open(self, token: int, four_tuple: FourTuple, time: float, seen_from_start: bool) -> list[Event]:
        """Add the connection *token*, first known by *four_tuple*. Its client must have room in its share."""
        self.counters.connections_opened += 1
        holder = self.shares.take(four_tuple.remote)
        self.connections[token] = ConnectionRecord(token, time, seen_from_start, holder)
        return [Event(EventKind.CONNECTION_OPENED, time, token, four_tuple)]

    def add(self, subflow: SubflowRecord, time: float, detail: str) -> list[Event]:
        """Track *subflow*, whose four-tuple must be free."""
        connection = subflow.connection
        self.subflows[subflow.four_tuple] = subflow
        connection.subflows.append(subflow)
        connection.changed()
        self.lingering.pop(connection.token)
        self.counters.subflows_activated += 1
        return [self._event(EventKind.SUBFLOW_ACTIVE, subflow, time, detail)]

    def new_subflow(
        self, four_tuple: FourTuple, connection: ConnectionRecord, initial: bool, time: float
    ) -> SubflowRecord:
        """Return a new record that shares its local address and port with others: the proxy has few."""
        local, local_port, remote, remote_port = four_tuple
        shared = self._locals.get((local, local_port))
        if shared is None:
            if len(self._locals) >= MAX_LOCALS:
                self._locals.clear()
            shared = self._locals[local, local_port] = (local, local_port)
        return SubflowRecord(FourTuple(*shared, remote, remote_port), connection, initial, time)

    def remove(self, subflow: SubflowRecord, time: float, detail: str) -> list[Event]:
        """Forget *subflow*, which has ended. Its connection stays, to wait for a join."""
        connection, four_tuple = subflow.connection, subflow.four_tuple
        self.subflows.pop(four_tuple)
        self.questions.drop(four_tuple)
        self.remember_end(four_tuple, time)
        connection.subflows.remove(subflow)
        connection.changed()
        if not connection.subflows:
            self.lingering.put(connection.token, connection, time)
        self.counters.subflows_closed += 1
        return [self._event(EventKind.SUBFLOW_CLOSED, subflow, time, detail)]

    def close(self, connection: ConnectionRecord, time: float, detail: str) -> list[Event]:
        """End *connection* with all its subflows."""
        events = [event for each in list(connection.subflows) for event in self.remove(each, time, detail)]
        del self.connections[connection.token]
        self.lingering.pop(connection.token)
        self.shares.give_back(connection.holder)
        self.counters.connections_closed += 1
        return [*events, Event(EventKind.CONNECTION_CLOSED, time, connection.token, None, detail)]

    def change(self, subflow: SubflowRecord, time: float, detail: str) -> list[Event]:
        """Announce a change of *subflow*."""
        subflow.changed()
        return [self._event(EventKind.SUBFLOW_CHANGED, subflow, time, detail)]

    def disagree(self, subflow: SubflowRecord, time: float, detail: str) -> Event:
        self.counters.disagreements += 1
        return self._event(EventKind.DISAGREEMENT, subflow, time, detail)

    # Shares

    def has_share_for(self, address: bytes) -> bool:
        """Return whether the client may have one more connection after :meth:`make_share_for`."""
        return self.shares.has_room(address, self.lingering.number_of(client_of(address)))

    def make_share_for(self, address: bytes, time: float) -> list[Event]:
        """Close the client's oldest lingering connections until it may have one more."""
        client, events = client_of(address), list[Event]()
        while not self.shares.has_room(address) and self.lingering.number_of(client):
            self.counters.lingering_evicted += 1
            events += self.close(self.lingering.oldest_of(client), time, "evicted for a new connection of its client")
        return events

    def turn_away(self, token: int, time: float) -> bool:
        """Remember that the connection *token* exceeded its client's share; return whether that is new."""
        if new := token not in self.turned_away:
            if len(self.turned_away) >= self.limits.max_remembered:
                self.turned_away.pop_oldest()
            self.turned_away.put(token, True, time)
        return new

    # Time

    def remember_end(self, key: FourTuple | int, time: float) -> None:
        """Remember that the subflow or connection *key* ended at *time*: an older dump may still list it."""
        if len(self.ended) >= self.limits.max_remembered and key not in self.ended:
            self.ended.pop_oldest()
        self.ended.put(key, time, time)

    def expire(self, time: float) -> list[Event]:
        """Forget entries too old at *time*: at most :data:`EXPIRY_STEP` of each table per call."""
        limits, events = self.limits, list[Event]()
        for subflow in self._next_idle_checks():
            if self.subflows.get(subflow.four_tuple) is not subflow:
                continue
            if subflow.last_seen > time - limits.idle_timeout / 2:
                continue
            if subflow.four_tuple.local_port not in self._listen_ports:
                self.questions.ask(subflow.four_tuple, time)  # no dump lists it, even while it is alive
                continue
            self.silent = True
            if subflow.last_seen <= time - limits.idle_timeout:
                self.counters.expired += 1
                events += self.remove(subflow, time, "idle")
                self.ended.pop(subflow.four_tuple)  # its end was not seen: let a dump that begins now bring it back
        for connection in islice(self.lingering.pop_until(time - limits.closed_linger), EXPIRY_STEP):
            events += self.close(connection, time, "no subflow left")
        forgotten = time - limits.closed_linger
        if self.dump_began is not None:
            forgotten = min(forgotten, max(self.dump_began - limits.resync_grace, time - MAX_DUMP_SECONDS))
        self.turned_away.drop_until(forgotten)
        self.ended.drop_until(forgotten)
        return events

    def _next_idle_checks(self) -> list[SubflowRecord]:
        records = list(islice(self._idle_checks, EXPIRY_STEP))
        if len(records) < EXPIRY_STEP:
            self._idle_checks = iter(list(self.subflows.values()))
            records += islice(self._idle_checks, EXPIRY_STEP)
        return records

    def _event(self, kind: EventKind, subflow: SubflowRecord, time: float, detail: str) -> Event:
        return Event(kind, time, subflow.connection.token, subflow.four_tuple, detail)
