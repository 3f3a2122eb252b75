# SPDX-License-Identifier: GPL-2.0-or-later
"""Tracks which subflow belongs to which connection.

    kernel events ─┐
    socket dumps ──┴▶ tracker ──▶ connection table ──▶ events
    segments ───▶ wire_observer ─▶ interfaces, look-ups, refused joins

No I/O, no clock: times are seconds of one clock that is never set. Every call returns the events that it caused.

Sources of the kernel's records: linux/mptcp_pm.h (events), linux/inet_diag.h and linux/mptcp.h (dumps). The kernel has
checked each handshake, so the table has exactly the kernel's subflows. Events can get lost, and a dump takes time. A
``DISAGREEMENT`` is a contradiction between two kernel records: another token or address identifier for the same
subflow, or a subflow that a dump lists after its end or does not list.

- The event socket also reports MPTCP clients on this host. A subflow is tracked if its local port is a listening port,
  or if its token is tracked (a proxy may also open a subflow to its client).
- CREATED follows the check of MP_CAPABLE's third ACK, SUB_ESTABLISHED the check of a join's HMAC.
- When a whole connection ends, the kernel reports CLOSED, and no SUB_CLOSED for its subflows.
- A dump does not undo changes that were made after it began, or shortly before. It lists established sockets of the
  listening ports; a subflow with another local port is looked up after each dump.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from operator import attrgetter
from typing import Final, TypeVar

from mptcp_throttler.mptcp.connection_table import ConnectionTable, KernelRecord, SubflowRecord
from mptcp_throttler.mptcp.limits import TrackerLimits
from mptcp_throttler.mptcp.lookups import MAX_WAITING
from mptcp_throttler.mptcp.model import (
    Connection,
    Event,
    EventKind,
    FourTuple,
    KernelEvent,
    KernelEventKind,
    KernelSubflow,
    Segment,
    Sockets,
    Subflow,
    unmap_endpoints,
)
from mptcp_throttler.mptcp.wire_observer import WireObserver

T = TypeVar("T")

_ESTABLISHING = frozenset({KernelEventKind.CREATED, KernelEventKind.ESTABLISHED, KernelEventKind.SUBFLOW_ESTABLISHED})


class Tracker:
    """Follows the MPTCP connections to the proxy's *listen_ports*."""

    def __init__(self, listen_ports: Iterable[int], limits: TrackerLimits | None = None) -> None:
        self.table = ConnectionTable(limits or TrackerLimits(), frozenset(listen_ports))
        self.wire = WireObserver(self.table)
        self.counters, self.lookups = self.table.counters, self.table.lookups
        self.connections: Mapping[int, Connection] = self.table.connections
        """The open connections by token: a live view of immutable snapshots."""
        self.apply_segment: Callable[[Segment], list[Event]] = self.wire.observe
        self.interface_of: Callable[[FourTuple], str | None] = lambda _: None
        """Returns the egress interface of a subflow whose handshake was not captured; None if unknown."""

    def apply_event(self, event: KernelEvent) -> list[Event]:
        table, four_tuple = self.table, event.four_tuple
        table.counters.kernel_events += 1
        connection = table.connections.get(event.token)
        if event.kind is KernelEventKind.CLOSED:
            table.ended.put(event.token, event.time, event.time)
            if connection is None:
                return self._ignore()
            return table.close(connection, event.time, event.detail or "closed by the kernel")
        if four_tuple is None:
            return self._ignore()
        four_tuple = unmap_endpoints(four_tuple)
        if event.kind in _ESTABLISHING:
            if connection is None and four_tuple.local_port not in table.listen_ports:
                return self._ignore()
            if event.kind is KernelEventKind.CREATED:
                table.refused_tokens.pop(event.token)  # another connection, whose token is the same by chance
            return self._apply_established(event, four_tuple)
        record = table.subflows.get(four_tuple)
        if record is None or record.token != event.token:
            if record is None and event.kind is KernelEventKind.SUBFLOW_CLOSED:
                table.ended.put(four_tuple, event.time, event.time)
            return self._ignore()
        if event.kind is KernelEventKind.SUBFLOW_CLOSED:
            return table.remove(record, event.time, event.detail or "closed by the kernel")
        return self._set_priority(record, event.backup, event.time)

    def request_resync(self) -> None:
        self.table.dumps_requested += 1

    @property
    def needs_resync(self) -> bool:
        """Whether a resync was requested, and no resync that began after the request has finished."""
        return self.table.dumps_requested > self.table.dumps_served

    def begin_resync(self, time: float) -> Resync:
        """Begin to apply a dump in pieces; *time*: a moment before the first piece is read."""
        return Resync(self, time)

    def resync(self, subflows: Iterable[KernelSubflow], time: float) -> list[Event]:
        """Apply a complete dump, begun at *time*, of the established MPTCP subflows of the listening ports. Subflows
        that are older than the dump and not listed have ended."""
        resync = self.begin_resync(time)
        events = resync.add(subflows)
        for batch in resync.finish():
            events += batch
        return events

    def apply_lookup(self, requested: Iterable[FourTuple], sockets: Sockets, time: float) -> list[Event]:
        """Apply a look-up of the *requested* subflows at *time*; *sockets* has those that exist, in any state."""
        events: list[Event] = []
        for four_tuple in requested:
            record, entry = self.table.subflows.get(four_tuple), sockets.get(four_tuple)
            if record is not None and entry is not None:
                record.last_dump = self.table.dumps
                events += self.apply_socket(four_tuple, entry, time, time)
            elif record is not None:
                events += self.table.remove(record, time, "the kernel has no such subflow")
        return events

    def expire(self, time: float) -> list[Event]:
        """Forget handshakes and connections without a subflow that are too old at *time*."""
        self.wire.expire(time)
        return self.table.expire(time)

    @property
    def table_sizes(self) -> Mapping[str, int]:
        """Entries of each table, for the status page and for tests of the bounds."""
        sizes = {name: len(getattr(self.table, name)) for name in ("connections", "subflows", "lingering", "ended")}
        sizes |= {name: len(getattr(self.wire, name)) for name in ("handshakes", "refused")}
        return sizes | {"questions": len(self.lookups), "turned_away": len(self.table.refused_tokens)}

    def _ignore(self) -> list[Event]:
        self.table.counters.kernel_events_ignored += 1
        return []

    def _find_interface(self, four_tuple: FourTuple) -> str | None:
        handshake = self.wire.handshakes.pop(four_tuple)
        return (handshake and handshake.interface) or self.interface_of(four_tuple)

    def _apply_established(self, event: KernelEvent, four_tuple: FourTuple) -> list[Event]:
        table, initial = self.table, _is_initial(event)
        interface = self._find_interface(four_tuple)  # also for a refused connection: this forgets the handshake
        if not initial and event.token not in table.connections:
            self.request_resync()  # the connection's first event was missed: other subflows may be unknown
        record, events = self._tracked_record(four_tuple, event.token, initial, event.time)
        if record is None:
            return events + self._track(four_tuple, event, interface, event.time)
        events += self._correct_ids(record, event, event.time)
        return events if initial else events + self._set_priority(record, event.backup, event.time)

    def apply_socket(self, four_tuple: FourTuple, entry: KernelSubflow, time: float, read_time: float) -> list[Event]:
        """Apply one socket that differs from the tracked state; a dump that began at *time* read it at *read_time*."""
        table = self.table
        record, end_time = table.subflows.get(four_tuple), table.ended.get(four_tuple)
        if table.has_ended(four_tuple, entry.token, time) if record is None else record.subflow.since > time:
            return []
        record, events = self._tracked_record(four_tuple, entry.token, entry.initial, time)
        if record is None:
            events += self._track(four_tuple, entry, self._find_interface(four_tuple), read_time)
            if (new_record := table.subflows.get(four_tuple)) is not None and end_time is not None:
                detail = "its end was reported, but the kernel still has it"
                events.append(table.record_disagreement(new_record, time, detail))
            return events
        if record.subflow.interface is None and (interface := self._find_interface(four_tuple)) is not None:
            events += table.change(record, time, f"leaves through {interface}", interface=interface)
        events += self._correct_ids(record, entry, time)
        if record.priority_time <= time:
            events += self._set_priority(record, entry.backup, time)
        return events

    # Limits

    def _track(self, four_tuple: FourTuple, entry: KernelRecord, interface: str | None, time: float) -> list[Event]:
        table, token, events = self.table, entry.token, list[Event]()
        is_from_dump, initial = isinstance(entry, KernelSubflow), _is_initial(entry)
        if token not in table.connections:
            # A connection of the first dump is older than the daemon, as is one that is unknown when a join arrives.
            predates_daemon = (is_from_dump or not initial) and not table.counters.resyncs
            shares, client, is_refused = table.shares, four_tuple.remote, token in table.refused_tokens
            if is_refused or not (shares.allows(client) or (predates_daemon and shares.allows_older(client))):
                if not is_refused:
                    table.counters.connections_refused += 1
                    table.refused_tokens.put(token, None, time)
                return [Event(EventKind.CONNECTION_EXCESS, time, token, four_tuple, shares.describe(client))]
            events += table.open(token, four_tuple, time, seen_from_start=initial and not is_from_dump)
        if len(table.connections[token].subflows) < table.limits.max_subflows_per_connection:
            default_id = 0 if initial else None
            local_id = default_id if entry.local_id is None else entry.local_id
            remote_id = default_id if entry.remote_id is None else entry.remote_id
            subflow = Subflow(four_tuple, initial, local_id, remote_id, entry.backup, interface, time)
            detail = "listed by the kernel" if isinstance(entry, KernelSubflow) else entry.detail
            return events + table.add(subflow, token, detail or "established by the kernel")
        table.counters.overflows += 1
        if is_from_dump:
            return events
        if self.needs_resync or any(each.four_tuple in table.lookups for each in table.connections[token].subflows):
            self.request_resync()  # another subflow may have ended unnoticed: the next dump shows that
            return events
        return events + self.report_excess(four_tuple, token, time)

    def report_excess(self, four_tuple: FourTuple, token: int, time: float) -> list[Event]:
        """Report an untracked subflow of the kernel if its connection already has the maximum number of subflows."""
        connection = self.table.connections.get(token)
        count = 0 if connection is None else len(connection.subflows)
        if four_tuple in self.table.subflows or count < self.table.limits.max_subflows_per_connection:
            return []
        return [Event(EventKind.SUBFLOW_EXCESS, time, token, four_tuple, f"its connection has {count} other subflows")]

    # Differences

    def _tracked_record(
        self, four_tuple: FourTuple, token: int, initial: bool, time: float
    ) -> tuple[SubflowRecord | None, list[Event]]:
        """Return the tracked subflow. If the kernel has another token or kind (initial or joined) for its four-tuple,
        the tracked subflow has ended without an event: remove it."""
        table, events = self.table, list[Event]()
        record = table.subflows.get(four_tuple)
        if record is None or (record.token == token and record.subflow.initial is initial):
            return record, []
        if record.token != token:
            events.append(table.record_disagreement(record, time, f"its token is {token:#010x} in the kernel"))
        return None, events + table.remove(record, time, "the kernel has another subflow with its addresses and ports")

    def _correct_ids(self, record: SubflowRecord, entry: KernelRecord, time: float) -> list[Event]:
        before, events = record.subflow, list[Event]()
        kernel_ids = {"local_id": entry.local_id, "remote_id": entry.remote_id}
        corrections = {name: value for name, value in kernel_ids.items() if value not in (None, getattr(before, name))}
        for name, value in corrections.items():
            if (previous := getattr(before, name)) is not None:
                detail = f"{name} is {value} in the kernel, not {previous}"
                events.append(self.table.record_disagreement(record, time, detail))
        change = self.table.change(record, time, "address identifier corrected", **corrections) if corrections else []
        return events + change if events else []

    def _set_priority(self, record: SubflowRecord, backup: bool, time: float) -> list[Event]:
        record.priority_time = time
        if record.subflow.backup is backup:
            return []
        return self.table.change(record, time, "backup flag from the kernel", backup=backup)


def _is_initial(entry: KernelRecord) -> bool:
    return entry.initial if isinstance(entry, KernelSubflow) else entry.kind is not KernelEventKind.SUBFLOW_ESTABLISHED


FINISH_STEP: Final = 500  # subflows per step of :meth:`Resync.finish`: about 5 ms if all must be closed


class Resync:
    """Compares the tracker with a dump of the kernel's sockets, in pieces of a few hundred microseconds each.

    A resync begins before the first piece is read, and ends only after a complete dump: a failed dump closes nothing.
    Segments and kernel events may come between any two steps. The dump may or may not show their changes after it
    began, so it does not override them. A new dump makes one in progress void: its further pieces are ignored.
    """

    def __init__(self, tracker: Tracker, time: float) -> None:
        self._tracker, self._table, self._time = tracker, tracker.table, time
        self._table.dumps += 1
        self._table.dump_began = time
        self._dump_number, self._requests = self._table.dumps, self._table.dumps_requested
        self._postponed: list[tuple[KernelSubflow, float]] = []
        """Sockets of connections with too many subflows, and joins to unknown connections, with their reading times.
        The rest of the dump may show that other subflows ended, or the initial subflow, which identifies the client."""

    def add(self, piece: Iterable[KernelSubflow], read_time: float | None = None) -> list[Event]:
        """Apply some sockets of the dump, in any order. New subflows date from *read_time*, when the kernel read them
        (default: the dump's start): their handshakes came before, no matter when the packets are read."""
        if self._is_void():
            return []
        subflows, ports, connections = self._table.subflows, self._table.listen_ports, self._table.connections
        time, number = self._time, self._dump_number
        events: list[Event] = []
        for entry in piece:
            four_tuple = entry.four_tuple
            record = subflows.get(four_tuple)
            if record is not None and record.subflow.since <= time and record.agrees_with(entry):
                record.last_dump = number  # the common case: nothing has changed
            elif four_tuple.local_port in ports or entry.token in connections:
                events += self._add_socket(entry, time if read_time is None else read_time)
        return events

    def finish(self, limit: int = FINISH_STEP) -> Iterator[list[Event]]:
        """Close the subflows that the dump did not list, in steps of *limit*. Each step yields its events."""
        # Begin with the subflows not listed for the longest time: only some subflows can wait for a look-up.
        oldest = sorted(self._table.subflows.values(), key=attrgetter("last_dump"))
        for records in self._batches(oldest, limit):
            yield [event for record in records for event in self._close_if_missing(record)]
        for batch in self._batches(self._postponed, limit):
            yield [event for entry, read_time in batch for event in self._add_postponed(entry, read_time)]
        if not self._is_void():
            self._table.dump_began = None
            self._table.dumps_served = self._requests
            self._table.counters.resyncs += 1

    def _batches(self, items: Iterable[T], limit: int) -> Iterator[list[T]]:
        remaining = iter(items)
        while (batch := list(islice(remaining, limit))) and not self._is_void():
            yield batch

    def _is_void(self) -> bool:
        return self._table.dumps != self._dump_number

    def _add_socket(self, entry: KernelSubflow, read_time: float) -> list[Event]:
        connections, four_tuple, token = self._table.connections, unmap_endpoints(entry.four_tuple), entry.token
        is_postponed = token not in connections and not entry.initial
        events = [] if is_postponed else self._tracker.apply_socket(four_tuple, entry, self._time, read_time)
        record = self._table.subflows.get(four_tuple)
        if record is not None:
            record.last_dump = self._dump_number
        if is_postponed or (record is None and token in connections):
            self._postponed.append((entry, read_time))
        return events

    def _add_postponed(self, entry: KernelSubflow, read_time: float) -> list[Event]:
        tracker, four_tuple, token = self._tracker, unmap_endpoints(entry.four_tuple), entry.token
        has_ended = self._table.has_ended(four_tuple, token, self._time)  # perhaps after its socket was read
        events = tracker.apply_socket(four_tuple, entry, self._time, read_time)
        return events if has_ended else events + tracker.report_excess(four_tuple, token, read_time)

    def _close_if_missing(self, record: SubflowRecord) -> list[Event]:
        table, subflow = self._table, record.subflow
        if (
            table.subflows.get(subflow.four_tuple) is not record
            or record.last_dump == self._dump_number
            or subflow.since > self._time - table.limits.resync_grace
        ):
            return []
        if subflow.four_tuple.local_port not in table.listen_ports:
            if len(table.lookups) < MAX_WAITING // 2:  # leave room for captured resets
                table.lookups.add(subflow.four_tuple, self._time)
            return []
        detail = "no end was reported, but the kernel does not list it"
        disagreement = table.record_disagreement(record, self._time, detail)
        return [disagreement, *table.remove(record, self._time, "not listed by the kernel")]
