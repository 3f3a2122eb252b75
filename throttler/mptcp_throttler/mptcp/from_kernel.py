"""From the kernel's own records to what is tracked: path-manager events, and dumps of its sockets.

Sources: linux/mptcp_pm.h (events), linux/inet_diag.h and linux/mptcp.h (dumps).

The kernel is the endpoint: it has checked each handshake, so that what it has is tracked, and nothing else is. An event
may be lost, and a dump takes time. What two records of the kernel cannot both be right about is a ``DISAGREEMENT``:
another token or address identifier for the same subflow, a subflow that a dump lists after its end or does not list.

- The same socket reports MPTCP clients on this host. A subflow is ours if its local port is one
  we listen on, or if its token is tracked (a proxy, too, may open a subflow to its client).
- CREATED follows the check of MP_CAPABLE's third ACK, SUB_ESTABLISHED that of a join's HMAC.
- When a whole connection ends, the kernel reports CLOSED, and no SUB_CLOSED for its subflows.
- What changed since shortly before a dump began is left alone. It lists established sockets of the listening ports, so
  that the absence of a subflow of another local port means nothing.
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
"""Says by which interface a subflow leaves; None where it does not know."""

_ESTABLISHING = frozenset({KernelEventKind.CREATED, KernelEventKind.ESTABLISHED, KernelEventKind.SUBFLOW_ESTABLISHED})


class KernelObserver:
    """Applies the kernel's records of the connections to *listen_ports* to *table*."""

    def __init__(self, table: ConnectionTable, listen_ports: frozenset[int], interface_of: InterfaceOf) -> None:
        self.table = table
        self.ports = listen_ports
        self._interface_of = interface_of
        self._resyncs_wanted = self._resyncs_served = 0
        self._older_known = False
        """A dump was finished, so that the connections older than the daemon are known."""

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
        """Begin to take in a dump; *time* is before its first piece is read."""
        return Resync(self, time, self._resyncs_wanted)

    def finished(self, resync: Resync) -> None:
        """Take note that *resync* has taken in a complete dump."""
        self.table.counters.resyncs += 1
        self._resyncs_served = resync.wanted
        self._older_known = True

    def answer(self, asked: Iterable[FourTuple], found: Mapping[FourTuple, KernelSubflow], time: float) -> list[Event]:
        """Take in what a look-up at *time* found of the subflows *asked* for, whatever states their sockets are in."""
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
        interface = self._interface_of(four_tuple)  # its handshake is over, whether there is room for it or not
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
        """Take in one socket that differs from what is tracked: *read* then, of a dump that began at *time*."""
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
        """Return a new record for a subflow that is not tracked, and the events; None where there is no room for it."""
        table, events = self.table, list[Event]()
        if token not in table.connections:
            # One that is joined and unknown is older than the daemon, as what is dumped may be.
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
        """Report a subflow for which there was no room, unless one of the others may have ended without anybody
        noticing: the next dump decides then. Of what a dump lists it is not known before the dump's end."""
        table = self.table
        others = table.connections[token].subflows
        if self.wants_resync or any(each.four_tuple in table.questions for each in others):
            self.want_resync()
            return []
        return self.excess(four_tuple, token, time)

    def lacks_share(self, four_tuple: FourTuple, token: int, *, dumped: bool) -> bool:
        """Return whether the connection, of which the kernel has *four_tuple*, is more than its client may have.

        What the first dump lists was there before the daemon, and may have had room as it came: then it stays.
        """
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
        """Return whether that is known at the end of the dump which has *entry*: its client may have fewer others then,
        and of a joined subflow the first one, which says whose the connection is, may be listed later."""
        if entry.token in self.table.connections:
            return False
        return not entry.initial or self.lacks_share(four_tuple, entry.token, dumped=True)

    def _without_share(self, four_tuple: FourTuple, token: int, time: float, *, dumped: bool) -> list[Event]:
        """Report a connection that is more than its client may have, when an event tells of it; one that was looked up
        stays as it is until the next dump, which says whether its client has all the others."""
        if dumped:
            self.want_resync()
            return []
        return self.refuse_connection(four_tuple, token, time)

    def refuse_connection(self, four_tuple: FourTuple, token: int, time: float) -> list[Event]:
        """Report that a connection which is not tracked is to be closed: the kernel has *four_tuple* of it."""
        table = self.table
        table.counters.connections_refused += table.turn_away(token, time)
        return [Event(EventKind.CONNECTION_EXCESS, time, token, four_tuple, table.shares.words(four_tuple.remote))]

    def excess(self, four_tuple: FourTuple, token: int, time: float) -> list[Event]:
        """Report a subflow that the kernel has, for which there was no room beside others that it has as well."""
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
        """Return the tracked subflow; one that belongs to another connection, or is a join where the kernel has a first
        subflow or the reverse, has ended without an event."""
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
        """Take the address identifiers from the kernel."""
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
"""Subflows that one step of :meth:`Resync.finish` checks: at most some 5 ms if all of them have to be closed."""


class Resync:
    """A comparison of the tracker with a dump of the kernel's sockets, in pieces of a few hundred microseconds each::

        resync = tracker.begin_resync(time)        # before the first piece is read
        for piece in dump:
            events = resync.add(piece)
        for events in resync.finish():             # only after a dump that is complete
            ...

    Segments and kernel events may be taken in between any two steps. What they change after the dump began is left
    alone, because the dump may or may not show it. A dump that fails is not finished, and then closes nothing. A dump
    that begins while another is taken in makes the other void: what the other adds from then on is ignored.
    """

    def __init__(self, observer: KernelObserver, time: float, wanted: int) -> None:
        """*wanted*: how many resyncs were asked for when the dump began at *time*."""
        self.time, self.wanted = time, wanted
        self._observer = observer
        self._table = observer.table
        self._table.dumps += 1
        self._table.dump_began = time
        self._number = self._table.dumps
        self._unassigned: list[KernelSubflow] = []
        """Sockets of another local port whose token is unknown: a later piece may list their connection."""
        self._crowded_out: list[tuple[KernelSubflow, float]] = []
        """Sockets for which their connection had no room, or whose client may have its share of connections, and when
        they were read: others may have ended without anybody noticing, and be closed when the dump is over."""

    def add(self, piece: Iterable[KernelSubflow], read: float | None = None) -> list[Event]:
        """Take in some of the sockets that the dump lists, in any order, *read* at that time: by default when it began.

        What is new by it is as old as that: its handshake came before, whenever its packets are read.
        """
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
                # The common case: nothing is new, so that nothing is announced and no snapshot is made anew.
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
        # Whose a connection is, its first subflow says, if it is still there.
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
        # Perhaps after it was read.
        has_ended = any(end is not None and end > self.time - self._table.limits.resync_grace for end in ends)
        if self._observer.lacks_share(four_tuple, token, dumped=True):
            return [] if has_ended else self._observer.refuse_connection(four_tuple, token, read)
        events = self._observer.listed(four_tuple, entry, self.time, read)
        return events if has_ended else events + self._observer.excess(four_tuple, token, read)

    def _is_missing(self, subflow: SubflowRecord) -> bool:
        """Return whether *subflow* should have been listed and was not."""
        return (
            self._table.subflows.get(subflow.four_tuple) is subflow
            and subflow.listed != self._number
            and subflow.since <= self.time - self._table.limits.resync_grace
            and subflow.four_tuple.local_port in self._observer.ports
        )

    def _close(self, subflow: SubflowRecord) -> list[Event]:
        disagreement = self._table.disagree(subflow, self.time, "no end was told, but the kernel does not list it")
        return [disagreement, *self._table.remove(subflow, self.time, "not listed by the kernel")]
