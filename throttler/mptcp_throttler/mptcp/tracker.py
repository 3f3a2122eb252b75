"""Tracks which subflow belongs to which connection.

    kernel events ─┐
    socket dumps ──┴▶ from_kernel ──▶ connection table ──▶ events
    segments ───────▶ from_wire ──────▶ interfaces, questions, refused joins

No I/O, no clock: all inputs are arguments, times are seconds of one clock that nobody sets. Every call returns the
events that it caused. A subflow is tracked while the kernel has it, from the check of its handshake on; segments do not
change that. The first subflow makes its connection known (``CONNECTION_OPENED``). Every table has a bound
(:class:`~.limits.TrackerLimits`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mptcp_throttler.mptcp.connection_table import ConnectionTable
from mptcp_throttler.mptcp.from_kernel import InterfaceOf, KernelObserver, Resync
from mptcp_throttler.mptcp.from_wire import WireObserver
from mptcp_throttler.mptcp.limits import TrackerCounters, TrackerLimits
from mptcp_throttler.mptcp.model import Connection, Event, FourTuple, KernelEvent, KernelSubflow, Segment
from mptcp_throttler.mptcp.records import ConnectionRecord

__all__ = ["Tracker", "TrackerCounters", "TrackerLimits"]


class Tracker:
    """Follows the MPTCP connections to the proxy's *listen_ports*."""

    def __init__(self, listen_ports: Iterable[int], limits: TrackerLimits | None = None) -> None:
        ports = frozenset(listen_ports)
        self._table = ConnectionTable(limits or TrackerLimits(), ports)
        self._wire = WireObserver(self._table, ports)
        self._kernel = KernelObserver(self._table, ports, self._leaves_by)
        self._connections = _Connections(self._table.connections)
        self.interface_of: InterfaceOf = lambda _: None
        """For subflows whose handshake was not captured."""

    def segment(self, segment: Segment) -> list[Event]:
        """Apply one captured segment."""
        return self._wire.segment(segment)

    def kernel_event(self, event: KernelEvent) -> list[Event]:
        """Apply one path-manager event."""
        return self._kernel.event(event)

    def begin_resync(self, time: float) -> Resync:
        """Begin to apply a dump in pieces (:class:`~.from_kernel.Resync`); *time* is before the first is read."""
        return self._kernel.begin_resync(time)

    def resync(self, subflows: Iterable[KernelSubflow], time: float) -> list[Event]:
        """Apply a complete dump, begun at *time*, of the established MPTCP subflows of the listening ports. Subflows
        that are older than the dump and not listed have ended."""
        resync = self.begin_resync(time)
        events = resync.add(subflows)
        for more in resync.finish():
            events += more
        return events

    def questions(self, now: float) -> tuple[FourTuple, ...]:
        """Return the few subflows to look up at *now* (:mod:`.questions`)."""
        return self._table.questions.take(now)

    def next_question(self, now: float) -> float | None:
        """Return the seconds until :meth:`questions` may return some; None if none waits."""
        return self._table.questions.pause(now)

    def answer(self, asked: Iterable[FourTuple], found: Mapping[FourTuple, KernelSubflow], time: float) -> list[Event]:
        """Apply which of the subflows *asked* for were *found* at *time*."""
        return self._kernel.answer(asked, found, time)

    def expire(self, time: float) -> list[Event]:
        """Forget handshakes, idle subflows and connections without a subflow that are too old at *time*."""
        self._wire.expire(time)
        events = self._table.expire(time)
        if self._table.silent:
            self._table.silent = False
            self._kernel.want_resync()
        return events

    @property
    def connections(self) -> Mapping[int, Connection]:
        """The open connections by token: a live view of immutable snapshots."""
        return self._connections

    def get(self, token: int) -> Connection | None:
        """Return a snapshot of the open connection with that token."""
        return self._connections.get(token)

    @property
    def counters(self) -> TrackerCounters:
        """A copy of the counters."""
        return replace(self._table.counters)

    def want_resync(self) -> None:
        """Request a resync that begins after now, because events were lost."""
        self._kernel.want_resync()

    @property
    def wants_resync(self) -> bool:
        """Whether a resync is wanted, until one that begins later finishes: an event named a connection whose beginning
        was missed, or a subflow was silent for half of ``idle_timeout``, which a resync that lists it restarts."""
        return self._kernel.wants_resync

    @property
    def table_sizes(self) -> Mapping[str, int]:
        """Entries of each table, for the status page and for tests of the bounds."""
        table, wire = self._table, self._wire
        return {
            "connections": len(table.connections),
            "subflows": len(table.subflows),
            "lingering": len(table.lingering),
            "handshakes": len(wire.handshakes),
            "refused": len(wire.refused),
            "questions": len(table.questions),
            "ended": len(table.ended),
            "turned_away": len(table.turned_away),
        }

    def _leaves_by(self, four_tuple: FourTuple) -> str | None:
        return self._wire.interface(four_tuple) or self.interface_of(four_tuple)


class _Connections(Mapping[int, Connection]):
    def __init__(self, records: Mapping[int, ConnectionRecord]) -> None:
        self._records = records

    def __getitem__(self, token: int) -> Connection:
        return self._records[token].snapshot()

    def __iter__(self) -> Iterator[int]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)
