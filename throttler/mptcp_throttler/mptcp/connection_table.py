# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's connections by token and subflows by four-tuple, within the limits.

A connection without a subflow is also in ``lingering``. It keeps its place and counts against its client's share, so
that a roaming client can join it again.

Records are mutable and are not passed to other modules. Readers get the frozen :class:`~.model.Connection` and
:class:`~.model.Subflow`. These snapshots are made when they are first read, and kept until the next change.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, TypeVar

from mptcp_throttler.mptcp.limits import Shares, TrackerCounters, TrackerLimits
from mptcp_throttler.mptcp.model import Connection, Event, EventKind, FourTuple, KernelEvent, KernelSubflow, Subflow
from mptcp_throttler.mptcp.questions import SocketLookupQueue

EXPIRY_STEP: Final = 1_000  # maximum entries per table that one ``expire`` call checks or forgets, in about 10 ms
MAX_DUMP_SECONDS: Final = 120.0  # a dump that takes longer counts as failed: ended subflows are not kept for it
MAX_LOCALS: Final = 256  # Maximum number of cached local ends, which subflows share. The proxy has few.

KernelRecord = KernelEvent | KernelSubflow
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class ConnectionRecord:
    """One connection of the kernel."""

    token: int
    since: float
    seen_from_start: bool
    holder: bytes
    """The client against whose share the connection counts (:class:`~.limits.Shares`)."""
    subflows: list[SubflowRecord] = field(default_factory=list)  # oldest first; they are few, so a list is fast enough
    kept: Connection | None = None  # the snapshot of the connection, if it was read since the last change

    def snapshot(self) -> Connection:
        if self.kept is None:
            subflows = tuple(subflow.snapshot() for subflow in self.subflows)
            self.kept = Connection(self.token, subflows, self.since, self.seen_from_start)
        return self.kept


@dataclass(slots=True, eq=False)
class SubflowRecord:
    """One subflow of the kernel."""

    four_tuple: FourTuple
    connection: ConnectionRecord
    initial: bool
    local_id: int | None
    remote_id: int | None
    backup: bool
    since: float
    prioritised: float  # when the kernel last reported ``backup``
    last_seen: float
    interface: str | None = None
    listed: int = 0  # number of the latest dump that listed it
    kept: Subflow | None = None

    def touch(self, time: float) -> None:
        """Note that the subflow was seen. This does not invalidate the snapshot."""
        if time > self.last_seen:
            self.last_seen = time

    def agrees_with(self, entry: KernelSubflow) -> bool:
        """Return whether *entry*, a socket with this four-tuple, has no news except that the subflow still exists."""
        return (
            self.connection.token == entry.token
            and self.initial is entry.initial
            and self.backup is entry.backup
            and (entry.remote_id is None or entry.remote_id == self.remote_id)
            and (entry.local_id is None or entry.local_id == self.local_id)
        )

    def changed(self) -> None:
        self.kept = self.connection.kept = None

    def snapshot(self) -> Subflow:
        if self.kept is None:
            ids = self.local_id, self.remote_id
            self.kept = Subflow(self.four_tuple, self.initial, *ids, self.backup, self.interface, self.since)
        return self.kept


class TimedTable(Generic[K, V]):
    """A mapping ordered by time, oldest first, so that expiry costs O(1) per expired entry.

    Times of different interfaces and of kernel events arrive slightly out of order. To keep the order, an entry gets
    the latest time seen so far if that is later than its own. If the table has *most* entries, a new entry evicts the
    oldest.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._latest = -math.inf
        self._most = most

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, value: V, time: float) -> bool:
        """Add *key*, or move it to the end. Return whether another entry was evicted."""
        if evicts := len(self._entries) >= self._most and key not in self._entries:
            self._entries.popitem(last=False)
        if time > self._latest:
            self._latest = time
        self._entries[key] = (self._latest, value)
        self._entries.move_to_end(key)
        return evicts

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def pop(self, key: K) -> V | None:
        entry = self._entries.pop(key, None)
        return None if entry is None else entry[1]

    def pop_until(self, time: float) -> Iterator[V]:
        """Remove and yield every entry stamped at or before *time*. Entries may be put and popped between steps."""
        while self._entries:
            key, (stamp, value) = next(iter(self._entries.items()))
            if stamp > time:
                return
            self.pop(key)
            yield value

    def drop_until(self, time: float) -> int:
        """Remove every entry stamped at or before *time*; return how many."""
        return sum(1 for _ in self.pop_until(time))


class ConnectionTable:
    """Makes every change to the set of connections and subflows, and returns its events."""

    def __init__(self, limits: TrackerLimits, listen_ports: frozenset[int]) -> None:
        self.limits = limits
        self.listen_ports = listen_ports
        self.counters = TrackerCounters()
        self.shares = Shares(limits.max_connections)
        self.questions = SocketLookupQueue()
        self.subflows: dict[FourTuple, SubflowRecord] = {}
        self.connections: dict[int, ConnectionRecord] = {}
        self.lingering: TimedTable[int, ConnectionRecord] = TimedTable()
        self.ended: TimedTable[FourTuple | int, float] = TimedTable(limits.max_remembered)
        """When recent subflows (by four-tuple) and connections (by token) ended: an older dump may still list them."""
        self.turned_away: TimedTable[int, None] = TimedTable(limits.max_remembered)
        """Tokens of connections refused because of their client's share. A late join to one is refused, too."""
        self.dumps = 0  # number of socket dumps begun
        self.dump_began: float | None = None
        self.dumps_wanted = self.dumps_served = 0
        """Number of requests for a dump, and number of these that a complete dump has served. A dump serves only
        requests made before it began."""
        self._locals: dict[tuple[bytes, int], tuple[bytes, int]] = {}
        self._idle_checks: Iterator[SubflowRecord] = iter(())

    # Subflows and connections

    def open(self, token: int, four_tuple: FourTuple, time: float, seen_from_start: bool) -> list[Event]:
        """Add the connection *token*, first known by *four_tuple*. Its client must have room in its share."""
        self.counters.connections_opened += 1
        holder = self.shares.take(four_tuple.remote)
        self.connections[token] = ConnectionRecord(token, time, seen_from_start, holder)
        return [Event(EventKind.CONNECTION_OPENED, time, token, four_tuple)]

    def add(self, four_tuple: FourTuple, told: KernelRecord, initial: bool, time: float, detail: str) -> list[Event]:
        """Track a new subflow of a tracked connection. No tracked subflow may have the same *four_tuple*."""
        local, local_port, remote, remote_port = four_tuple
        if (local, local_port) not in self._locals and len(self._locals) >= MAX_LOCALS:
            self._locals.clear()
        shared = self._locals.setdefault((local, local_port), (local, local_port))
        ends = FourTuple(*shared, remote, remote_port)
        connection, unknown = self.connections[told.token], 0 if initial else None
        subflow = SubflowRecord(
            ends,
            connection,
            initial,
            unknown if told.local_id is None else told.local_id,
            unknown if told.remote_id is None else told.remote_id,
            told.backup,
            since=time,
            prioritised=time,
            last_seen=time,
        )
        self.subflows[ends] = subflow
        connection.subflows.append(subflow)
        subflow.changed()
        self.lingering.pop(connection.token)
        self.counters.subflows_activated += 1
        return [self._event(EventKind.SUBFLOW_ACTIVE, subflow, time, detail)]

    def remove(self, subflow: SubflowRecord, time: float, detail: str) -> list[Event]:
        """Forget *subflow*, which has ended. Its connection stays and waits for a join."""
        connection, four_tuple = subflow.connection, subflow.four_tuple
        self.subflows.pop(four_tuple)
        self.questions.drop(four_tuple)
        self.ended.put(four_tuple, time, time)
        connection.subflows.remove(subflow)
        subflow.changed()
        if not connection.subflows:
            self.lingering.put(connection.token, connection, time)
        self.counters.subflows_closed += 1
        return [self._event(EventKind.SUBFLOW_CLOSED, subflow, time, detail)]

    def close(self, connection: ConnectionRecord, time: float, detail: str) -> list[Event]:
        events = [event for each in list(connection.subflows) for event in self.remove(each, time, detail)]
        del self.connections[connection.token]
        self.lingering.pop(connection.token)
        self.shares.give_back(connection.holder)
        self.counters.connections_closed += 1
        return [*events, Event(EventKind.CONNECTION_CLOSED, time, connection.token, None, detail)]

    def change(self, subflow: SubflowRecord, time: float, detail: str) -> list[Event]:
        subflow.changed()
        return [self._event(EventKind.SUBFLOW_CHANGED, subflow, time, detail)]

    def disagree(self, subflow: SubflowRecord, time: float, detail: str) -> Event:
        self.counters.disagreements += 1
        return self._event(EventKind.DISAGREEMENT, subflow, time, detail)

    def has_ended(self, four_tuple: FourTuple, token: int, time: float) -> bool:
        """Return whether the subflow or its connection ended so late that a dump that began at *time* may list it."""
        ends = self.ended.get(four_tuple), self.ended.get(token)
        return any(end is not None and end > time - self.limits.resync_grace for end in ends)

    # Time

    def expire(self, time: float) -> list[Event]:
        """Forget entries too old at *time*: at most :data:`EXPIRY_STEP` of each table per call."""
        limits, events = self.limits, list[Event]()
        for subflow in self._next_idle_checks():
            is_tracked = self.subflows.get(subflow.four_tuple) is subflow
            if not is_tracked or subflow.last_seen > time - limits.idle_timeout / 2:
                continue
            if subflow.four_tuple.local_port not in self.listen_ports:
                self.questions.ask(subflow.four_tuple, time)  # look it up, because no dump lists it even if it exists
                continue
            self.dumps_wanted += 1
            if subflow.last_seen <= time - limits.idle_timeout:
                self.counters.expired += 1
                events += self.remove(subflow, time, "idle")
                self.ended.pop(subflow.four_tuple)  # no event reported its end, so a dump from now on may list it again
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
