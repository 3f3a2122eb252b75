"""Apply the kernel's records, path-manager events and socket dumps, to the connection table.

Sources: linux/mptcp_pm.h (events), linux/inet_diag.h and linux/mptcp.h (dumps).

The kernel has checked each handshake, so the table holds exactly what the kernel has. Events can get lost, and a dump
takes time. A ``DISAGREEMENT`` is a contradiction between two kernel records: another token or address identifier for
the same subflow, or a subflow that a dump lists after its end or does not list.

- The event socket also reports MPTCP clients on this host. A subflow is ours if we listen on its local port, or if its
  token is tracked (a proxy may also open a subflow to its client).
- CREATED follows the check of MP_CAPABLE's third ACK, SUB_ESTABLISHED the check of a join's HMAC.
- When a whole connection ends, the kernel reports CLOSED, and no SUB_CLOSED for its subflows.
- A dump does not undo changes made since shortly before it began. It lists established sockets of the listening ports,
  so the absence of a subflow with another local port means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from mptcp_throttler.mptcp.connection_table import ConnectionTable
from mptcp_throttler.mptcp.model import (
    Event,
    EventKind,
    FourTuple,
    KernelEvent,
    KernelEventKind,
    KernelSubflow,
    unmapped,
)
from mptcp_throttler.mptcp.records import SubflowRecord

InterfaceOf = Callable[[FourTuple], str | None]
"""Returns the interface by which a subflow leaves; None if unknown."""

_ESTABLISHING = frozenset({KernelEventKind.CREATED, KernelEventKind.ESTABLISHED, KernelEventKind.SUBFLOW_ESTABLISHED})


class KernelObserver:
    """Applies the kernel's records of the connections to *listen_ports* to *table*."""

    def __init__(self, table: ConnectionTable, listen_ports: frozenset[int], interface_of: InterfaceOf) -> None:
        self.table = table
        self.ports = listen_ports
        self._interface_of = interface_of
        self._resyncs_wanted = self._resyncs_served = 0
        self._older_known = False
        """A dump has finished, so the connections older than the daemon are known."""

    @property
    def wants_resync(self) -> bool:
        return self._resyncs_wanted > self._resyncs_served

    def want_resync(self) -> None:
        """Ask for a resync that begins after now."""
        self._resyncs_wanted += 1

    def event(self, event: KernelEvent) -> list[Event]:
        table, four_tuple = self.table, event.four_tuple
        table.counters.kernel_events += 1
        connection = table.connections.get(event.token)
        if event.kind is KernelEventKind.CLOSED:
            table.remember_end(event.token, event.time)
            if connection is None:
                return self._ignore()
            return table.close(connection, event.time, event.detail or "closed by the kernel")
        if four_tuple is None:
            return self._ignore()
        four_tuple = unmapped(four_tuple)
        if event.kind in _ESTABLISHING:
            if connection is None and four_tuple.local_port not in self.ports:
                return self._ignore()
            if event.kind is KernelEventKind.CREATED:
                table.turned_away.pop(event.token)  # another connection, whose token is the same by chance
            return self._established(event, four_tuple)
        subflow = table.subflows.get(four_tuple)
        if subflow is None or subflow.connection is not connection:
            if subflow is None and event.kind is KernelEventKind.SUBFLOW_CLOSED:
                table.remember_end(four_tuple, event.time)
            return self._ignore()
        if event.kind is KernelEventKind.SUBFLOW_CLOSED:
            return table.remove(subflow, event.time, event.detail or "closed by the kernel")
        return self._prioritise(subflow, event.backup, event.time)

    def begin_resync(self, time: float) -> Resync:
        """Begin to apply a dump; *time* is before its first piece is read."""
        return Resync(self, time, self._resyncs_wanted)

    def finished(self, resync: Resync) -> None:
        """Record that *resync* has applied a complete dump."""
        self.table.counters.resyncs += 1
        self._resyncs_served = resync.wanted
        self._older_known = True

    def answer(self, asked: Iterable[FourTuple], found: Mapping[FourTuple, KernelSubflow], time: float) -> list[Event]:
        """Apply a look-up at *time*: the sockets *found* of the subflows *asked* for, in any socket state."""
        table = self.table
        events: list[Event] = []
        for four_tuple in asked:
            subflow, entry = table.subflows.get(four_tuple), found.get(four_tuple)
            if subflow is None:
                continue
            if entry is not None:
                events += self.listed(four_tuple, entry, time, time)
                continue
            events += table.remove(subflow, time, "the kernel has no such subflow")
        return events

    def _ignore(self) -> list[Event]:
        self.table.counters.kernel_events_ignored += 1
        return []

    def _established(self, event: KernelEvent, four_tuple: FourTuple) -> list[Event]:
        initial = event.kind is not KernelEventKind.SUBFLOW_ESTABLISHED
        interface = self._interface_of(four_tuple)  # even without room: this also forgets the handshake
        if not initial and event.token not in self.table.connections:
            self.want_resync()  # other subflows of a connection whose beginning was missed may be unknown
        subflow, events = self._ours(four_tuple, event.token, initial, event.time)
        if subflow is None:
            subflow, more = self._enter(four_tuple, event.token, initial, event.time, dumped=False)
            events += more
            if subflow is None:
                return events
            subflow.backup, subflow.interface = event.backup, interface
            _set_ids(subflow, event.local_id, event.remote_id)
            return events + self.table.add(subflow, event.time, event.detail or "established by the kernel")
        events += self._identify(subflow, event.local_id, event.remote_id, event.time)
        return events if initial else events + self._prioritise(subflow, event.backup, event.time)

    def listed(self, four_tuple: FourTuple, entry: KernelSubflow, time: float, read: float) -> list[Event]:
        """Apply one socket that differs from what is tracked, *read* then by a dump that began at *time*."""
        table = self.table
        subflow = table.subflows.get(four_tuple)
        ended = table.ended.get(four_tuple)
        if subflow is None:
            settled = time - table.limits.resync_grace
            connection_ended = table.ended.get(entry.token)
            if (ended is not None and ended > settled) or (connection_ended is not None and connection_ended > settled):
                return []
        elif subflow.since > time:
            subflow.touch(time)
            return []
        subflow, events = self._ours(four_tuple, entry.token, entry.initial, time)
        if subflow is None:
            subflow, more = self._enter(four_tuple, entry.token, entry.initial, read, dumped=True)
            events += more
            if subflow is None:
                return events
            subflow.backup = entry.backup
            subflow.interface = self._interface_of(four_tuple)
            _set_ids(subflow, entry.local_id, entry.remote_id)
            events += table.add(subflow, read, "listed by the kernel")
            if ended is not None:
                events.append(table.disagree(subflow, time, "its end was told, but the kernel has it"))
            return events
        if subflow.interface is None:
            subflow.interface = self._interface_of(four_tuple)
            if subflow.interface is not None:
                events += table.change(subflow, time, f"leaves by {subflow.interface}")
        events += self._identify(subflow, entry.local_id, entry.remote_id, time)
        if subflow.prioritised <= time:
            events += self._prioritise(subflow, entry.backup, time)
        subflow.touch(time)
        return events

    # Room

    def _enter(
        self, four_tuple: FourTuple, token: int, initial: bool, time: float, *, dumped: bool
    ) -> tuple[SubflowRecord | None, list[Event]]:
        """Return a new record for an untracked subflow, None if there is no room for it; and the events."""
        table, events = self.table, list[Event]()
        if token not in table.connections:
            # A connection that is unknown when joined is older than the daemon; a dumped one may be.
            if self.lacks_share(four_tuple, token, dumped=dumped or not initial):
                return None, self._without_share(four_tuple, token, time, dumped=dumped)
            events += table.make_share_for(four_tuple.remote, time)
            events += table.open(token, four_tuple, time, seen_from_start=initial and not dumped)
        connection = table.connections[token]
        if len(connection.subflows) >= table.limits.max_subflows_per_connection:
            table.counters.overflows += 1
            return None, events if dumped else events + self._no_room(four_tuple, token, time)
        return table.new_subflow(four_tuple, connection, initial, time), events

    def _no_room(self, four_tuple: FourTuple, token: int, time: float) -> list[Event]:
        """Report a subflow without room; if another may have ended unnoticed, leave that to the next dump."""
        table = self.table
        others = table.connections[token].subflows
        if self.wants_resync or any(each.four_tuple in table.questions for each in others):
            self.want_resync()
            return []
        return self.excess(four_tuple, token, time)

    def lacks_share(self, four_tuple: FourTuple, token: int, *, dumped: bool) -> bool:
        """Return whether the connection of *four_tuple* exceeds its client's share. Connections of the first dump are
        older than the daemon: those that may have had room when they began stay."""
        table = self.table
        if token in table.connections:
            return False
        if token in table.turned_away:
            return True
        if table.has_share_for(four_tuple.remote):
            return False
        if not dumped or self._older_known or len(table.connections) >= table.limits.max_connections:
            return True
        return not table.shares.had_room(four_tuple.remote)

    def may_lack_share(self, four_tuple: FourTuple, entry: KernelSubflow) -> bool:
        """Return whether to decide at the end of the dump: its client may have fewer connections then, and for a join,
        the initial subflow, which identifies the client, may be listed later."""
        if entry.token in self.table.connections:
            return False
        return not entry.initial or self.lacks_share(four_tuple, entry.token, dumped=True)

    def _without_share(self, four_tuple: FourTuple, token: int, time: float, *, dumped: bool) -> list[Event]:
        """Report a connection beyond its client's share; if looked up, leave it to a dump, which lists all others."""
        if dumped:
            self.want_resync()
            return []
        return self.refuse_connection(four_tuple, token, time)

    def refuse_connection(self, four_tuple: FourTuple, token: int, time: float) -> list[Event]:
        """Report that an untracked connection, with the subflow *four_tuple*, must be closed."""
        table = self.table
        table.counters.connections_refused += table.turn_away(token, time)
        return [Event(EventKind.CONNECTION_EXCESS, time, token, four_tuple, table.shares.words(four_tuple.remote))]

    def excess(self, four_tuple: FourTuple, token: int, time: float) -> list[Event]:
        """Report an untracked subflow of the kernel if its connection is full of others that the kernel has."""
        table = self.table
        connection = table.connections.get(token)
        if connection is None or four_tuple in table.subflows:
            return []
        others = len(connection.subflows)
        if others < table.limits.max_subflows_per_connection:
            return []
        return [Event(EventKind.SUBFLOW_EXCESS, time, token, four_tuple, f"its connection has {others} others")]

    # Differences

    def _ours(
        self, four_tuple: FourTuple, token: int, initial: bool, time: float
    ) -> tuple[SubflowRecord | None, list[Event]]:
        """Return the tracked subflow. If the kernel has another token or kind (initial or joined) for its four-tuple,
        the tracked one has ended without an event: remove it."""
        table = self.table
        subflow = table.subflows.get(four_tuple)
        if subflow is None:
            return None, []
        events = []
        if subflow.connection.token != token:
            events.append(table.disagree(subflow, time, f"its token is {token:#010x} in the kernel"))
        elif subflow.initial is initial:
            return subflow, []
        return None, events + table.remove(subflow, time, "the kernel has another on its addresses and ports")

    def _identify(
        self, subflow: SubflowRecord, local_id: int | None, remote_id: int | None, time: float
    ) -> list[Event]:
        events = []
        for name, value in (("local_id", local_id), ("remote_id", remote_id)):
            known = getattr(subflow, name)
            if value is None or value == known:
                continue
            if known is not None:
                events.append(self.table.disagree(subflow, time, f"{name} is {value} in the kernel, not {known}"))
            setattr(subflow, name, value)
            subflow.changed()
        if events:
            events += self.table.change(subflow, time, "address identifier corrected")
        return events

    def _prioritise(self, subflow: SubflowRecord, backup: bool, time: float) -> list[Event]:
        subflow.prioritised = time
        if subflow.backup is backup:
            return []
        subflow.backup = backup
        return self.table.change(subflow, time, "backup flag from the kernel")


def _set_ids(subflow: SubflowRecord, local_id: int | None, remote_id: int | None) -> None:
    if local_id is not None:
        subflow.local_id = local_id
    if remote_id is not None:
        subflow.remote_id = remote_id


FINISH_STEP: Final = 500
"""Subflows per step of :meth:`Resync.finish`: at most about 5 ms if all must be closed."""


class Resync:
    """Compares the tracker with a dump of the kernel's sockets, in pieces of a few hundred microseconds each::

        resync = tracker.begin_resync(time)        # before the first piece is read
        for piece in dump:
            events = resync.add(piece)
        for events in resync.finish():             # only after a complete dump
            ...

    Segments and kernel events may come between any two steps. The dump may or may not show what they change after it
    began, so it does not override them. A failed dump is not finished, and so closes nothing. A new dump voids one in
    progress, whose further pieces are ignored.
    """

    def __init__(self, observer: KernelObserver, time: float, wanted: int) -> None:
        """*wanted*: how many resyncs had been requested when the dump began at *time*."""
        self.time, self.wanted = time, wanted
        self._observer = observer
        self._table = observer.table
        self._table.dumps += 1
        self._table.dump_began = time
        self._number = self._table.dumps
        self._unassigned: list[KernelSubflow] = []
        """Sockets with another local port and an unknown token: a later piece may list their connection."""
        self._crowded_out: list[tuple[KernelSubflow, float]] = []
        """Sockets without room in their connection or perhaps in their client's share, and when they were read. The end
        of the dump may close others that ended unnoticed."""

    def add(self, piece: Iterable[KernelSubflow], read: float | None = None) -> list[Event]:
        """Apply some sockets of the dump, in any order. New subflows date from *read* (default: the dump's begin), when
        the kernel read them: their handshakes came before, no matter when the packets are read."""
        if self._is_void():
            return []
        subflows, ports, connections = self._table.subflows, self._observer.ports, self._table.connections
        time, number = self.time, self._number
        events: list[Event] = []
        for entry in piece:
            four_tuple = entry.four_tuple
            subflow = subflows.get(four_tuple)
            if (
                subflow is not None
                and subflow.since <= time
                and subflow.agrees_with(entry)
                and subflow.interface is not None
            ):
                # The common case: nothing is new, so announce nothing and keep the snapshot.
                if subflow.last_seen < time:
                    subflow.last_seen = time
                subflow.listed = number
            elif four_tuple.local_port in ports or entry.token in connections:
                events += self._take(entry, time if read is None else read)
            else:
                self._unassigned.append(entry)
        return events

    def finish(self, limit: int = FINISH_STEP) -> Iterator[list[Event]]:
        """Close what the dump did not list, in steps of *limit* subflows. Each step yields its events."""
        unassigned, self._unassigned = iter(self._unassigned), []
        while (batch := list(islice(unassigned, limit))) and not self._is_void():
            known = [entry for entry in batch if entry.token in self._table.connections]
            yield [event for entry in known for event in self._take(entry, self.time)]
        subflows = iter(list(self._table.subflows.values()))
        while (records := list(islice(subflows, limit))) and not self._is_void():
            yield [event for subflow in records if self._is_missing(subflow) for event in self._close(subflow)]
        # Initial subflows first: they identify the client of their connection.
        crowded_out = iter(sorted(self._crowded_out, key=lambda each: not each[0].initial))
        self._crowded_out = []
        while (left := list(islice(crowded_out, limit))) and not self._is_void():
            yield [event for entry, read in left for event in self._take_late(entry, read)]
        if not self._is_void():
            self._crowded_out = []
            self._table.dump_began = None
            self._observer.finished(self)

    def _is_void(self) -> bool:
        return self._table.dumps != self._number

    def _take(self, entry: KernelSubflow, read: float) -> list[Event]:
        four_tuple = unmapped(entry.four_tuple)
        waits = self._observer.may_lack_share(four_tuple, entry)
        events = [] if waits else self._observer.listed(four_tuple, entry, self.time, read)
        subflow = self._table.subflows.get(four_tuple)
        if subflow is not None:
            subflow.listed = self._number
        if waits or (subflow is None and entry.token in self._table.connections):
            self._crowded_out.append((entry, read))
        return events

    def _take_late(self, entry: KernelSubflow, read: float) -> list[Event]:
        four_tuple, token = unmapped(entry.four_tuple), entry.token
        ends = (self._table.ended.get(key) for key in (four_tuple, token))
        # It may have ended after it was read.
        has_ended = any(end is not None and end > self.time - self._table.limits.resync_grace for end in ends)
        if self._observer.lacks_share(four_tuple, token, dumped=True):
            return [] if has_ended else self._observer.refuse_connection(four_tuple, token, read)
        events = self._observer.listed(four_tuple, entry, self.time, read)
        return events if has_ended else events + self._observer.excess(four_tuple, token, read)

    def _is_missing(self, subflow: SubflowRecord) -> bool:
        return (
            self._table.subflows.get(subflow.four_tuple) is subflow
            and subflow.listed != self._number
            and subflow.since <= self.time - self._table.limits.resync_grace
            and subflow.four_tuple.local_port in self._observer.ports
        )

    def _close(self, subflow: SubflowRecord) -> list[Event]:
        disagreement = self._table.disagree(subflow, self.time, "no end was told, but the kernel does not list it")
        return [disagreement, *self._table.remove(subflow, self.time, "not listed by the kernel")]
