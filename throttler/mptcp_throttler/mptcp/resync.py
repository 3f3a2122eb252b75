"""A comparison of the tracker with a dump of the kernel's sockets, in pieces that each take a few hundred microseconds.

    resync = tracker.begin_resync(time)        # before the first piece is read
    for piece in dump:
        events = resync.add(piece)
    for events in resync.finish():             # only after a dump that is complete
        ...

Segments and kernel events may be taken in between any two steps. What they change after the dump began is left alone,
because the dump may or may not show it. A dump that fails is not finished, and then closes nothing. A dump that begins
while another is taken in makes the other void: what the other adds from then on counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from mptcp_throttler.mptcp.model import Event, KernelSubflow, SubflowState, unmapped
from mptcp_throttler.mptcp.records import SubflowRecord
from mptcp_throttler.mptcp.tracker_table import Signal

if TYPE_CHECKING:
    from mptcp_throttler.mptcp.from_kernel import KernelObserver

FINISH_STEP: Final = 500
"""Subflows that one step of :meth:`Resync.finish` checks: at most some 5 ms if all of them have to be closed."""


class Resync:
    """One dump, begun at *time*."""

    def __init__(self, observer: KernelObserver, time: float, finished: Callable[[], None]) -> None:
        self.time = time
        self._observer = observer
        self._table = observer.table
        self._finished = finished
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
        subflows, ports, tokens = self._table.subflows, self._observer.ports, self._table.tokens
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
            elif four_tuple.local_port in ports or entry.token in tokens:
                events += self._take(entry, time if read is None else read)
            else:
                self._unassigned.append(entry)
        return events

    def finish(self, limit: int = FINISH_STEP) -> Iterator[list[Event]]:
        """Close what the dump did not list, in steps of *limit* subflows. Each step yields its events."""
        unassigned, self._unassigned = iter(self._unassigned), []
        while (batch := list(islice(unassigned, limit))) and not self._is_void():
            known = [entry for entry in batch if entry.token in self._table.tokens]
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
            self._finished()

    def _is_void(self) -> bool:
        return self._table.dumps != self._number

    def _take(self, entry: KernelSubflow, read: float) -> list[Event]:
        four_tuple = unmapped(entry.four_tuple)
        waits = self._observer.may_lack_share(four_tuple, entry)
        events = [] if waits else self._observer.listed(four_tuple, entry, self.time, read)
        subflow = self._table.subflows.get(four_tuple)
        if subflow is not None:
            subflow.listed = self._number
        if waits or (subflow is None and entry.token in self._table.tokens):
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
            subflow.state is SubflowState.ACTIVE
            and subflow.listed != self._number
            and subflow.since <= self.time - self._table.limits.resync_grace
            and subflow.four_tuple.local_port in self._observer.ports
        )

    def _close(self, subflow: SubflowRecord) -> list[Event]:
        return self._table.apply(subflow, Signal.NOT_DUMPED, self.time)
