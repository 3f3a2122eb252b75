"""From captured segments to signals: which subflow a segment belongs to, and what it signals.

Sources: RFC 8684, 3.3.8 (MP_PRIO), 3.4.2 (REMOVE_ADDR), 3.5 (MP_FASTCLOSE); RFC 9293, 3.10.

What counts as evidence, and why:

- Handshakes: see ``handshake``.
- A segment cannot be checked as the kernel checks it: handshakes do not show the sequence window, offloading leaves
  checksums unfinished, and the kernel takes less than the wire shows. What the kernel has, no segment ends or changes
  therefore, be it FIN, RST, MP_FASTCLOSE or MP_PRIO: the kernel's event tells, or the kernel is asked
  (:meth:`~.connection_table.ConnectionTable.doubt`). Else a client lifted its cap by a segment that its peer drops.
- What packets alone have shown, packets may end: FIN, RST, and MP_FASTCLOSE that names the receiver's key.
- A handshake is ended by the proxy's segments alone. REMOVE_ADDR has no proof and ends nothing.
- A segment has one direction. One that came in with the proxy's address, or went out with a client's, is none of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest

from mptcp_throttler.mptcp.connection_table import PROXY_RESET, ConnectionTable
from mptcp_throttler.mptcp.handshake import Handshakes, first_option
from mptcp_throttler.mptcp.model import Event, FourTuple, Segment, SubflowState, TcpFlag, unmap
from mptcp_throttler.mptcp.options import (
    Malformed,
    MpCapable,
    MpFastclose,
    MpJoinAck,
    MpPrio,
    MptcpOption,
    MpTcprst,
)
from mptcp_throttler.mptcp.records import SubflowRecord
from mptcp_throttler.mptcp.tracker_table import HALF_OPEN, LIVE, Signal

_FIN, _SYN, _RST, _ACK = (int(flag) for flag in (TcpFlag.FIN, TcpFlag.SYN, TcpFlag.RST, TcpFlag.ACK))


class WireObserver:
    """Applies segments of the connections to *listen_ports* to *table*."""

    def __init__(self, table: ConnectionTable, listen_ports: frozenset[int]) -> None:
        self._table = table
        self._ports = listen_ports
        self._handshakes = Handshakes(table)
        self._readers: dict[type, Callable[[SubflowRecord, Segment, MptcpOption, bool], list[Event]]] = {
            MpCapable: self._handshakes.capable_ack,
            MpJoinAck: self._handshakes.join_ack,
            MpPrio: self._priority,
            MpFastclose: self._fast_close,
        }

    def segment(self, segment: Segment) -> list[Event]:
        table, counters, options = self._table, self._table.counters, segment.options
        counters.segments += 1
        for option in options:
            if type(option) is Malformed:
                counters.malformed += 1
        classified = self._classify(segment)
        if classified is None:
            counters.ignored += 1
            return []
        four_tuple, from_client = classified
        if segment.outgoing is from_client:
            counters.misdirected += 1
            return []
        subflow = table.subflows.get(four_tuple)
        flags = segment.flags
        if flags & _SYN and not flags & (_RST | _FIN):
            if flags & _ACK:
                return self._ignore() if from_client else self._handshakes.proxy_syn_ack(four_tuple, subflow, segment)
            return self._handshakes.client_syn(four_tuple, subflow, segment) if from_client else self._ignore()
        if subflow is None:
            return self._ignore()
        subflow.touch(segment.time)
        events: list[Event] = []
        for option in options:
            if subflow.state is SubflowState.CLOSED:
                break
            reader = self._readers.get(type(option))
            if reader is not None:
                events += reader(subflow, segment, option, from_client)
        if flags & (_RST | _FIN):
            events += self._end(subflow, segment, from_client)
        return events

    def _classify(self, segment: Segment) -> tuple[FourTuple, bool] | None:
        """Return the segment's four-tuple and whether it comes from the client; None if it is of no subflow of ours."""
        source, destination = segment.source, segment.destination
        if len(source) == 16:
            source, destination = unmap(source), unmap(destination)
        to_proxy, to_client = segment.destination_port in self._ports, segment.source_port in self._ports
        inward = FourTuple(destination, segment.destination_port, source, segment.source_port)
        if to_proxy and not to_client:
            return inward, True
        outward = FourTuple(source, segment.source_port, destination, segment.destination_port)
        if to_client and not to_proxy:
            return outward, False
        # Either the client, too, uses a port of ours, or (by a kernel event) the proxy opened the subflow itself.
        if inward in self._table.subflows:
            return inward, True
        if outward in self._table.subflows:
            return outward, False
        return (inward, True) if to_proxy and segment.flags & (_SYN | _ACK) == _SYN else None

    def _ignore(self) -> list[Event]:
        self._table.counters.ignored += 1
        return []

    def _repeated(self) -> list[Event]:
        self._table.counters.duplicates += 1
        return []

    # After the handshake

    def _priority(
        self, subflow: SubflowRecord, segment: Segment, option: MptcpOption, from_client: bool
    ) -> list[Event]:
        return self._table.doubt(subflow) if from_client else []

    def _fast_close(
        self, subflow: SubflowRecord, segment: Segment, option: MptcpOption, from_client: bool
    ) -> list[Event]:
        assert isinstance(option, MpFastclose)
        connection = subflow.connection
        key = None if connection is None else connection.proxy_key if from_client else connection.client_key
        if connection is None or key is None or not compare_digest(option.receiver_key, key):
            return self._ignore()
        connection.given_up = True
        if connection.confirmed or not self._table.events_arrive:
            for each in connection.subflows:
                self._table.doubt(each, reset=True)
            return []
        return self._table.close(connection, segment.time, f"MP_FASTCLOSE from the {_side(from_client)}")

    def _end(self, subflow: SubflowRecord, segment: Segment, from_client: bool) -> list[Event]:
        live = subflow.state in LIVE
        if subflow.known_to_kernel or (live and not self._table.events_arrive):
            return self._table.doubt(subflow, reset=bool(segment.flags & _RST))
        if subflow.state in HALF_OPEN and from_client:
            return self._ignore()
        end = self._reset if segment.flags & _RST else self._fin
        return end(subflow, segment, from_client)

    def _fin(self, subflow: SubflowRecord, segment: Segment, from_client: bool) -> list[Event]:
        if subflow.client_fin if from_client else subflow.proxy_fin:
            return self._repeated()
        if from_client:
            subflow.client_fin = True
        else:
            subflow.proxy_fin = True
        signal = Signal.FINS if subflow.client_fin and subflow.proxy_fin else Signal.FIN
        return self._table.apply(subflow, signal, segment.time, f"FIN from the {_side(from_client)}")

    def _reset(self, subflow: SubflowRecord, segment: Segment, from_client: bool) -> list[Event]:
        reason = first_option(segment, MpTcprst)
        detail = PROXY_RESET if not from_client else "RST from the client"
        if reason is not None and subflow.state in LIVE:
            detail += f", MP_TCPRST reason {reason.reason}"
        return self._table.apply(subflow, Signal.RST, segment.time, detail)


def _side(from_client: bool) -> str:
    return "client" if from_client else "proxy"
