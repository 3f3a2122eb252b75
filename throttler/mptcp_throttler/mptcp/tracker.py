"""The tracker: which subflow belongs to which connection, and which of them are active.

    segments ──▶ from_wire ───┐
    kernel events ─┐          ├──▶ signals ──▶ connection table ──▶ events
    socket dumps ──┴▶ from_kernel ┘

No I/O, no clock: everything comes as an argument, times as seconds of one clock that nobody sets. Every call returns
the events that it caused. A connection is made known (``CONNECTION_OPENED``) by its first active subflow.

A subflow is active when its handshake was proven: by the third ACK's keys (MP_CAPABLE), its HMAC (MP_JOIN), or by the
kernel, which has checked either. A SYN, a repeated or a forged third ACK make no subflow active.

Every table has a bound; see :class:`~.limits.TrackerLimits`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mptcp_throttler.mptcp.connection_table import ConnectionTable
from mptcp_throttler.mptcp.from_kernel import InterfaceOf, KernelObserver, Resync
from mptcp_throttler.mptcp.from_wire import WireObserver
from mptcp_throttler.mptcp.limits import TrackerCounters, TrackerLimits
from mptcp_throttler.mptcp.model import (
    Connection,
    Event,
    FourTuple,
    KernelEvent,
    KernelSubflow,
    Segment,
    SubflowState,
)
from mptcp_throttler.mptcp.records import ConnectionRecord

__all__ = ["Tracker", "TrackerCounters", "TrackerLimits"]


class Tracker:
    """Follows the MPTCP connections to the proxy's *listen_ports*."""

    def __init__(self, listen_ports: Iterable[int], limits: TrackerLimits | None = None) -> None:
        ports = frozenset(listen_ports)
        self._table = ConnectionTable(limits or TrackerLimits(), ports)
        self._wire = WireObserver(self._table, ports)
        self._kernel = KernelObserver(self._table, ports)
        self._connections = _Connections(self._table.opened)

    def segment(self, segment: Segment) -> list[Event]:
        """Take in one captured segment."""
        return self._wire.segment(segment)

    def kernel_event(self, event: KernelEvent) -> list[Event]:
        """Take in one path-manager event."""
        return self._kernel.event(event)

    def begin_resync(self, time: float) -> Resync:
        """Begin to take in a dump in pieces; *time* is before the first of them is read. See :mod:`.resync`."""
        return self._kernel.begin_resync(time)

    def resync(self, subflows: Iterable[KernelSubflow], time: float) -> list[Event]:
        """Take in a whole dump of the established MPTCP subflows of the listening ports, begun at *time*.

        What it lists is active and was seen at *time*; what is tracked as active, older than the dump and not
        listed, is closed.
        """
        resync = self.begin_resync(time)
        events = resync.add(subflows)
        for more in resync.finish():
            events += more
        return events

    @property
    def events_arrive(self) -> bool:
        """Path-manager events do. Where they do not, the kernel is asked what became of a subflow."""
        return self._table.events_arrive

    @events_arrive.setter
    def events_arrive(self, arrive: bool) -> None:
        self._table.events_arrive = arrive

    @property
    def interface_of(self) -> InterfaceOf:
        """Says by which interface a subflow leaves whose packets did not show it."""
        return self._kernel.interface_of

    @interface_of.setter
    def interface_of(self, interface_of: InterfaceOf) -> None:
        self._kernel.interface_of = interface_of

    def questions(self, now: float) -> tuple[FourTuple, ...]:
        """Return the subflows that are to be looked up at *now*: few. See :mod:`.questions`."""
        return self._table.questions.take(now)

    def next_question(self, now: float) -> float | None:
        """Return the seconds until :meth:`questions` may have some; None where nothing is to be asked."""
        return self._table.questions.pause(now)

    def answer(self, asked: Iterable[FourTuple], found: Mapping[FourTuple, KernelSubflow], time: float) -> list[Event]:
        """Take in which of the subflows *asked* for were *found* at *time*."""
        return self._kernel.answer(asked, found, time)

    def expire(self, time: float) -> list[Event]:
        """Forget handshakes, closing and idle subflows, and connections without any, that are too old at *time*."""
        events = self._table.expire(time)
        if self._table.silent:
            self._table.silent = False
            self._kernel.want_resync()
        return events

    @property
    def connections(self) -> Mapping[int, Connection]:
        """The open connections by token: a live view. The values are snapshots that do not change."""
        return self._connections

    def get(self, token: int) -> Connection | None:
        """Return a snapshot of the open connection with that token."""
        return self._connections.get(token)

    def states(self) -> Counter[SubflowState]:
        """Return how many subflows the open connections have in each state; costs what is half-open or closing."""
        table = self._table
        found = Counter({SubflowState.ACTIVE: table.live})
        for some in (table.half_open, table.closing):
            for each in some.until(math.inf):
                if each.state is not None and each.connection is not None and each.connection.opened:
                    found[each.state] += 1
        return found

    @property
    def counters(self) -> TrackerCounters:
        """A copy of the counters."""
        return replace(self._table.counters)

    @property
    def wants_resync(self) -> bool:
        """True until a resync that begins later is finished: the kernel named a connection whose beginning was missed,
        or a subflow has been silent for half of ``idle_timeout``. A resync that lists it starts its time anew."""
        return self._kernel.wants_resync

    @property
    def table_sizes(self) -> Mapping[str, int]:
        """How many entries each table has, for the status page and for tests of the bounds."""
        table = self._table
        return {
            "subflows": len(table.subflows),
            "half_open": len(table.half_open),
            "live": table.live,
            "closing": len(table.closing),
            "tokens": len(table.tokens),
            "connections": len(table.opened),
            "lingering": len(table.lingering),
            "unconfirmed": len(table.unconfirmed),
            "questions": len(table.questions),
            "refused": len(table.refused),
            "ended": len(table.ended),
            "turned_away": len(table.turned_away),
        }


class _Connections(Mapping[int, Connection]):
    def __init__(self, opened: Mapping[int, ConnectionRecord]) -> None:
        self._opened = opened

    def __getitem__(self, token: int) -> Connection:
        return self._opened[token].snapshot()

    def __iter__(self) -> Iterator[int]:
        return iter(self._opened)

    def __len__(self) -> int:
        return len(self._opened)
