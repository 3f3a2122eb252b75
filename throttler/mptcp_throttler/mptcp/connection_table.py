# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's connections by token and subflows by four-tuple, within the limits.

A connection without a subflow is also in ``lingering``. It stays in the table and counts towards its client's share, so
that a roaming client can join it again.

Readers get the frozen :class:`~.model.Connection` and :class:`~.model.Subflow`: a change replaces them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from mptcp_throttler.mptcp.limits import ConnectionShares, TrackerCounters, TrackerLimits
from mptcp_throttler.mptcp.lookups import SocketLookupQueue
from mptcp_throttler.mptcp.model import Connection, Event, EventKind, FourTuple, KernelEvent, KernelSubflow, Subflow

EXPIRY_STEP: Final = 1_000  # maximum connections that one ``expire`` call closes, in about 10 ms
MAX_DUMP_SECONDS: Final = 120.0  # a dump that takes longer counts as failed: ended subflows are not kept for it

KernelRecord = KernelEvent | KernelSubflow
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True, eq=False)
class SubflowRecord:
    """One subflow of the kernel."""

    token: int
    subflow: Subflow
    priority_time: float  # when the kernel last reported the backup flag
    last_dump: int = 0  # number of the latest dump that listed the subflow

    def agrees_with(self, entry: KernelSubflow) -> bool:
        """Return whether *entry*, a socket with this four-tuple, has the same values as this record."""
        tracked = self.subflow
        return (
            self.token == entry.token
            and tracked.interface is not None
            and tracked.initial is entry.initial
            and tracked.backup is entry.backup
            and (entry.remote_id is None or entry.remote_id == tracked.remote_id)
            and (entry.local_id is None or entry.local_id == tracked.local_id)
        )


class TimedTable(Generic[K, V]):
    """A mapping ordered by time, oldest first, so that expiry costs O(1) per expired entry.

    Times arrive slightly out of order. To keep the order, an entry gets the latest time so far if its own time is
    earlier. If the table has *limit* entries, a new entry evicts the oldest.
    """

    def __init__(self, limit: float = math.inf) -> None:
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()
        self._latest = -math.inf
        self._limit = limit

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def put(self, key: K, value: V, time: float) -> bool:
        """Add *key*, or move it to the end. Return whether another entry was evicted."""
        if is_full := len(self._entries) >= self._limit and key not in self._entries:
            self._entries.popitem(last=False)
        self._latest = max(self._latest, time)
        self._entries[key] = (self._latest, value)
        self._entries.move_to_end(key)
        return is_full

    def get(self, key: K) -> V | None:
        return self._entries.get(key, (0.0, None))[1]

    def pop(self, key: K) -> V | None:
        return self._entries.pop(key, (0.0, None))[1]

    def pop_until(self, time: float) -> Iterator[V]:
        """Remove and yield every entry stamped at or before *time*. Entries may be put and popped between steps."""
        while self._entries:
            key, (stamp, value) = next(iter(self._entries.items()))
            if stamp > time:
                return
            self.pop(key)
            yield value

    def drop_until(self, time: float) -> int:
        """Remove every entry stamped at or before *time*; return the number of entries removed."""
        return sum(1 for _ in self.pop_until(time))


class ConnectionTable:
    """Performs every change to the set of connections and subflows, and returns its events."""

    def __init__(self, limits: TrackerLimits, listen_ports: frozenset[int]) -> None:
        self.limits = limits
        self.listen_ports = listen_ports
        self.counters = TrackerCounters()
        self.shares = ConnectionShares(limits.max_connections)
        self.lookups = SocketLookupQueue()
        self.subflows: dict[FourTuple, SubflowRecord] = {}
        self.connections: dict[int, Connection] = {}
        self.lingering: TimedTable[int, Connection] = TimedTable()
        self.ended: TimedTable[FourTuple | int, float] = TimedTable(limits.max_remembered)
        """When recent subflows (by four-tuple) and connections (by token) ended: an older dump may still list them."""
        self.refused_tokens: TimedTable[int, None] = TimedTable(limits.max_remembered)
        """Tokens of connections refused because of their client's share. Late joins to them are refused, too."""
        self.dumps = 0  # number of socket dumps begun
        self.dump_began: float | None = None
        self.dumps_requested = 0  # number of requests for a dump
        self.dumps_served = 0  # number of requests that were made before the last complete dump began

    # Subflows and connections

    def open(self, token: int, four_tuple: FourTuple, time: float, seen_from_start: bool) -> list[Event]:
        """Add the connection *token*, whose first known subflow is *four_tuple*. The client's share must have room."""
        self.counters.connections_opened += 1
        holder = self.shares.add(four_tuple.remote)
        self.connections[token] = Connection(token, (), time, seen_from_start, holder)
        return [Event(EventKind.CONNECTION_OPENED, time, token, four_tuple)]

    def add(self, subflow: Subflow, token: int, detail: str) -> list[Event]:
        """Track a new subflow of a tracked connection. No tracked subflow may have the same four-tuple."""
        self.subflows[subflow.four_tuple] = SubflowRecord(token, subflow, subflow.since)
        self._set_subflows(token, (*self.connections[token].subflows, subflow))
        self.lingering.pop(token)
        self.counters.subflows_activated += 1
        return [Event(EventKind.SUBFLOW_ACTIVE, subflow.since, token, subflow.four_tuple, detail)]

    def remove(self, record: SubflowRecord, time: float, detail: str) -> list[Event]:
        token, four_tuple = record.token, record.subflow.four_tuple
        del self.subflows[four_tuple]
        self.lookups.pop(four_tuple, None)
        self.ended.put(four_tuple, time, time)
        others = tuple(each for each in self.connections[token].subflows if each is not record.subflow)
        self._set_subflows(token, others)
        if not others:
            self.lingering.put(token, self.connections[token], time)
        self.counters.subflows_closed += 1
        return [Event(EventKind.SUBFLOW_CLOSED, time, token, four_tuple, detail)]

    def close(self, connection: Connection, time: float, detail: str) -> list[Event]:
        records = [self.subflows[each.four_tuple] for each in connection.subflows]
        events = [event for each in records for event in self.remove(each, time, detail)]
        del self.connections[connection.token]
        self.lingering.pop(connection.token)
        self.shares.release(connection.holder)
        self.counters.connections_closed += 1
        return [*events, Event(EventKind.CONNECTION_CLOSED, time, connection.token, None, detail)]

    def change(self, record: SubflowRecord, time: float, detail: str, **values: Any) -> list[Event]:
        before, record.subflow = record.subflow, replace(record.subflow, **values)
        subflows = self.connections[record.token].subflows
        self._set_subflows(record.token, tuple(record.subflow if each is before else each for each in subflows))
        return [Event(EventKind.SUBFLOW_CHANGED, time, record.token, before.four_tuple, detail)]

    def _set_subflows(self, token: int, subflows: tuple[Subflow, ...]) -> None:
        self.connections[token] = replace(self.connections[token], subflows=subflows)

    def record_disagreement(self, record: SubflowRecord, time: float, detail: str) -> Event:
        self.counters.disagreements += 1
        return Event(EventKind.DISAGREEMENT, time, record.token, record.subflow.four_tuple, detail)

    def has_ended(self, four_tuple: FourTuple, token: int, time: float) -> bool:
        """Return whether the subflow or its connection ended so late that a dump that began at *time* may list it."""
        ends = self.ended.get(four_tuple), self.ended.get(token)
        return any(end is not None and end > time - self.limits.resync_grace for end in ends)

    # Time

    def expire(self, time: float) -> list[Event]:
        """Forget entries too old at *time*; close at most :data:`EXPIRY_STEP` connections."""
        limits, events = self.limits, list[Event]()
        for connection in islice(self.lingering.pop_until(time - limits.closed_linger), EXPIRY_STEP):
            events += self.close(connection, time, "no subflow left")
        cutoff = time - limits.closed_linger
        if self.dump_began is not None:
            cutoff = min(cutoff, max(self.dump_began - limits.resync_grace, time - MAX_DUMP_SECONDS))
        self.refused_tokens.drop_until(cutoff)
        self.ended.drop_until(cutoff)
        return events
