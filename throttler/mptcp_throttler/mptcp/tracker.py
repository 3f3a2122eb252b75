"""The tracker: which subflow belongs to which connection, and which of them are active.

    segments ──▶ from_wire ───┐
    kernel events ─┐          ├──▶ signals ──▶ book (tracker_table) ──▶ events
    socket dumps ──┴▶ from_kernel ┘

No I/O, no clock: everything comes as an argument, times as seconds since the epoch, and every call returns the
events that it caused. A connection is made known (``CONNECTION_OPENED``) by its first active subflow.

An active subflow is one whose handshake was proven: by the third ACK's keys (MP_CAPABLE), its HMAC (MP_JOIN), or by
the kernel, which has checked either. A SYN, a repeated or a forged third ACK make none.

Every table has a bound, whatever arrives; see :class:`~.limits.TrackerLimits`. A step of the wall clock by hours looks
like idleness: the next resync brings back what :meth:`Tracker.expire` then forgot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from .book import Book
from .from_kernel import KernelObserver
from .from_wire import WireObserver
from .limits import TrackerCounters, TrackerLimits
from .model import Connection, Event, KernelEvent, KernelSubflow, Segment
from .records import ConnectionRecord

__all__ = ["Tracker", "TrackerCounters", "TrackerLimits"]


class Tracker:
    """Follows the MPTCP connections to the proxy's *listen_ports*."""

    def __init__(self, listen_ports: Iterable[int], limits: TrackerLimits | None = None) -> None:
        ports = frozenset(listen_ports)
        self._book = Book(limits or TrackerLimits())
        self._wire = WireObserver(self._book, ports)
        self._kernel = KernelObserver(self._book, ports)
        self._connections = _Connections(self._book.opened)

    def segment(self, segment: Segment) -> list[Event]:
        """Take in one captured segment."""
        return self._wire.segment(segment)

    def kernel_event(self, event: KernelEvent) -> list[Event]:
        """Take in one path-manager event."""
        return self._kernel.event(event)

    def resync(self, subflows: Iterable[KernelSubflow], time: float) -> list[Event]:
        """Take in a whole dump of the established MPTCP subflows of the listening ports, begun at *time*.

        What it lists is active and was seen at *time*; what is tracked as active, older than the dump and not
        listed, is closed.
        """
        return self._kernel.resync(subflows, time)

    def expire(self, time: float) -> list[Event]:
        """Forget handshakes, closing and idle subflows, and connections without any, that are too old at *time*."""
        events = self._book.expire(time)
        oldest = self._book.live.oldest_time()
        if oldest is not None and oldest <= time - self._book.limits.idle_timeout / 2:
            self._kernel.wants_resync = True
        return events

    @property
    def connections(self) -> Mapping[int, Connection]:
        """The open connections by token: a live view. The values are snapshots that do not change."""
        return self._connections

    def get(self, token: int) -> Connection | None:
        """Return a snapshot of the open connection with that token."""
        return self._connections.get(token)

    @property
    def counters(self) -> TrackerCounters:
        """A copy of the counters."""
        return replace(self._book.counters)

    @property
    def wants_resync(self) -> bool:
        """True until the next resync, after the kernel spoke of a connection whose beginning was missed, or when a
        subflow has been silent for half of ``idle_timeout``. A resync that lists it starts its time anew."""
        return self._kernel.wants_resync

    @property
    def table_sizes(self) -> Mapping[str, int]:
        """How many entries each table has, for the status page and for tests of the bounds."""
        book = self._book
        return {
            "subflows": len(book.subflows),
            "half_open": len(book.half_open),
            "live": len(book.live),
            "closing": len(book.closing),
            "tokens": len(book.tokens),
            "connections": len(book.opened),
            "lingering": len(book.lingering),
            "refused": len(book.refused),
            "ended": len(book.ended),
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
