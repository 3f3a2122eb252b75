"""From the kernel's own records to signals: path-manager events, and dumps of its sockets.

Sources: linux/mptcp_pm.h (events), linux/inet_diag.h and linux/mptcp.h (dumps).

The kernel is the endpoint, so what it says is so. Whoever speaks first, packet or event, is normal and no news; a
``DISAGREEMENT`` is only what cannot be both: another token or address identifier for the same subflow, a join
established that failed its proof, a subflow that one has and the other closed.

- Events of the kernel's MPTCP clients on this host come by the same way. A subflow is ours if its local port is one
  we listen on, or if its token is tracked (a proxy, too, may open a subflow to its client).
- CREATED follows the check of MP_CAPABLE's third ACK, SUB_ESTABLISHED that of a join's HMAC; both prove.
- When a whole connection ends, the kernel says CLOSED, and no SUB_CLOSED for its subflows.
- A dump takes time: what changed since shortly before it began is left alone. It lists established sockets of the
  listening ports, so that a subflow of another local port says nothing by its absence.
"""

from __future__ import annotations

from collections.abc import Iterable

from .book import Book
from .model import Event, FourTuple, KernelEvent, KernelEventKind, KernelSubflow, SubflowState, unmap
from .records import SubflowRecord
from .tracker_table import HALF_OPEN, LIVE, Signal

_ESTABLISHING = frozenset({KernelEventKind.CREATED, KernelEventKind.ESTABLISHED, KernelEventKind.SUBFLOW_ESTABLISHED})


class KernelObserver:
    """Reads the kernel's records of the connections to *listen_ports* into *book*."""

    def __init__(self, book: Book, listen_ports: frozenset[int]) -> None:
        self._book = book
        self._ports = listen_ports
        self.wants_resync = False
        """The kernel spoke of a connection whose beginning nobody saw, so that other subflows of it may be unknown;
        or a subflow was not heard of for half the time after which it would be forgotten."""

    def event(self, event: KernelEvent) -> list[Event]:
        self._book.counters.kernel_events += 1
        self._book.kernel_speaks = True
        connection = self._book.tokens.get(event.token)
        if event.kind is KernelEventKind.CLOSED:
            if connection is None:
                return self._ignore()
            return self._book.close(connection, event.time, "closed, says the kernel")
        if event.four_tuple is None:
            return self._ignore()
        four_tuple = _unmapped(event.four_tuple)
        if event.kind in _ESTABLISHING:
            if connection is None and four_tuple.local_port not in self._ports:
                return self._ignore()
            return self._established(event, four_tuple)
        subflow = self._book.subflows.get(four_tuple)
        if subflow is None or subflow.connection is None or subflow.connection.token != event.token:
            return self._ignore()
        if event.kind is KernelEventKind.SUBFLOW_CLOSED:
            return self._book.apply(subflow, Signal.KERNEL_CLOSED, event.time)
        return self._prioritise(subflow, event.backup, event.time)

    def resync(self, dump: Iterable[KernelSubflow], time: float) -> list[Event]:
        """Take the truth from a dump that began at *time*."""
        book, events = self._book, list[Event]()
        book.counters.resyncs += 1
        self.wants_resync = False
        listed = {_unmapped(entry.four_tuple): entry for entry in dump}
        strangers = []
        for four_tuple, entry in listed.items():
            if four_tuple.local_port in self._ports or entry.token in book.tokens:
                events += self._listed(four_tuple, entry, time)
            else:
                strangers.append((four_tuple, entry))
        for four_tuple, entry in strangers:
            if entry.token in book.tokens:
                events += self._listed(four_tuple, entry, time)
        settled = time - book.limits.resync_grace
        for subflow in list(book.subflows.values()):
            if (
                subflow.state is SubflowState.ACTIVE
                and subflow.four_tuple not in listed
                and subflow.four_tuple.local_port in self._ports
                and subflow.since <= settled
            ):
                events += book.apply(subflow, Signal.NOT_DUMPED, time)
        return events

    def _ignore(self) -> list[Event]:
        self._book.counters.kernel_events_ignored += 1
        return []

    def _established(self, event: KernelEvent, four_tuple: FourTuple) -> list[Event]:
        book, joined = self._book, event.kind is KernelEventKind.SUBFLOW_ESTABLISHED
        subflow, events = self._ours(four_tuple, event.token, event.time)
        self.wants_resync |= joined and event.token not in book.tokens
        if subflow is None:
            new = SubflowRecord(four_tuple, not joined, event.time)
            new.backup = event.backup
            _set_ids(new, event.local_id, event.remote_id)
            return events + self._enter(new, event.token, Signal.KERNEL_ESTABLISHED, event.time)
        events += self._attach_and_apply(subflow, event.token, Signal.KERNEL_ESTABLISHED, event.time)
        if subflow.state is SubflowState.CLOSED:
            return events
        subflow.kernel_knows = True
        events += self._identify(subflow, event.local_id, event.remote_id, event.time)
        if joined and subflow.backup is not event.backup:
            if subflow.syn_seen and not subflow.prioritised:
                events.append(book.disagree(subflow, event.time, f"backup is {event.backup}, says the kernel"))
            events += self._prioritise(subflow, event.backup, event.time)
        return events

    def _listed(self, four_tuple: FourTuple, entry: KernelSubflow, time: float) -> list[Event]:
        book = self._book
        settled = time - book.limits.resync_grace
        ended = book.ended.get(four_tuple)
        subflow = book.subflows.get(four_tuple)
        if subflow is None:
            if ended is not None and ended[1] > settled:
                return []
        elif subflow.since > (time if subflow.state is SubflowState.ACTIVE else settled) and subflow.state in LIVE:
            book.see(subflow, time)
            return []
        subflow, events = self._ours(four_tuple, entry.token, time)
        if subflow is None:
            new = SubflowRecord(four_tuple, entry.initial, time)
            new.backup, new.interface = entry.backup, entry.interface
            _set_ids(new, entry.local_id, entry.remote_id)
            events += self._enter(new, entry.token, Signal.DUMPED, time)
            if ended is not None and new.state is SubflowState.ACTIVE:
                events.append(book.disagree(new, time, "closed by its packets, but the kernel has it"))
            return events
        events += self._attach_and_apply(subflow, entry.token, Signal.DUMPED, time)
        if subflow.state is SubflowState.CLOSED:
            return events
        subflow.kernel_knows = True
        subflow.client_fin = subflow.proxy_fin = False
        if subflow.interface is None and entry.interface is not None:
            subflow.interface = entry.interface
            events += book.change(subflow, time, f"leaves by {entry.interface}")
        events += self._identify(subflow, entry.local_id, entry.remote_id, time)
        if subflow.last_seen <= time:
            events += self._prioritise(subflow, entry.backup, time)
        book.see(subflow, time)
        subflow.changed()
        return events

    def _ours(self, four_tuple: FourTuple, token: int, time: float) -> tuple[SubflowRecord | None, list[Event]]:
        """Return what is tracked of the subflow; one that belongs to another connection has to go."""
        book = self._book
        subflow = book.subflows.get(four_tuple)
        if subflow is None or subflow.connection is None or subflow.connection.token == token:
            return subflow, []
        events = []
        if subflow.state not in HALF_OPEN and subflow.successor is None:
            events.append(book.disagree(subflow, time, f"its token is {token:#010x}, says the kernel"))
        return None, events + book.apply(subflow, Signal.REPLACED, time)

    def _enter(self, subflow: SubflowRecord, token: int, signal: Signal, time: float) -> list[Event]:
        """Track a subflow of which no packet was seen, or none that counted."""
        book = self._book
        subflow.kernel_knows = True
        if not book.attach(subflow, book.connection(token, 1, time)):
            return []
        events = book.enter(subflow, signal, time)
        refused = book.refused.pop(subflow.four_tuple)
        if refused is not None and refused[1] and subflow.state is SubflowState.ACTIVE:
            events.append(book.disagree(subflow, time, "established, says the kernel, though its HMAC was wrong"))
        return events

    def _attach_and_apply(self, subflow: SubflowRecord, token: int, signal: Signal, time: float) -> list[Event]:
        if subflow.connection is None and not self._book.attach(subflow, self._book.connection(token, 1, time)):
            return self._book.apply(subflow, Signal.EXPIRED, time)
        return self._book.apply(subflow, signal, time)

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
                events.append(self._book.disagree(subflow, time, f"{name} is {value}, not {known}, says the kernel"))
            setattr(subflow, name, value)
            subflow.changed()
        if events:
            events += self._book.change(subflow, time, "address identifier corrected")
        return events

    def _prioritise(self, subflow: SubflowRecord, backup: bool, time: float) -> list[Event]:
        subflow.prioritised = True
        if subflow.backup is backup:
            return []
        subflow.backup = backup
        return self._book.change(subflow, time, "backup flag, says the kernel")


def _set_ids(subflow: SubflowRecord, local_id: int | None, remote_id: int | None) -> None:
    if local_id is not None:
        subflow.local_id = local_id
    if remote_id is not None:
        subflow.remote_id = remote_id


def _unmapped(four_tuple: FourTuple) -> FourTuple:
    if len(four_tuple.remote) != 16:
        return four_tuple
    local, local_port, remote, remote_port = four_tuple
    return FourTuple(unmap(local), local_port, unmap(remote), remote_port)
