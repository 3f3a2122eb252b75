# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads captured handshakes: the egress interfaces of subflows, and the joins that the proxy refuses.

Sources: RFC 8684, 3.1 (MP_CAPABLE, version negotiation), 3.2 (MP_JOIN), 3.5 (MP_FASTCLOSE); RFC 9293, 3.10.

Segments never add, change or end a subflow: any host can send them, and the kernel drops many of them. Rules:

- The proxy's SYN/ACK shows the egress interface of the subflow. A SYN with a client's address may come from any host.
- A join that the proxy answers with a RST or in plain TCP counts as refused.
- A RST causes a look-up of its subflow, MP_FASTCLOSE of all subflows of its connection: no event may report their end.
- A segment that came in with the proxy's address, or went out with a client's, is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from mptcp_throttler.mptcp import options
from mptcp_throttler.mptcp.connection_table import ConnectionTable, TimedTable
from mptcp_throttler.mptcp.model import Event, EventKind, FourTuple, Segment, unmap


@dataclass(slots=True)
class Handshake:
    token: int | None  # from the client's MP_JOIN; None for MP_CAPABLE, or if the SYN was not captured
    interface: str | None = None  # the interface through which the proxy answered


class WireObserver:
    """Reads the segments of the connections; *table* has the kernel's view."""

    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self.handshakes: TimedTable[FourTuple, Handshake] = TimedTable(table.limits.max_remembered)
        self.refused: TimedTable[FourTuple, None] = TimedTable()  # recently refused joins, to report each once

    def observe(self, segment: Segment) -> list[Event]:
        table, counters = self._table, self._table.counters
        counters.segments += 1
        for option in segment.options:
            if type(option) is options.Malformed:
                counters.malformed += 1
        four_tuple, from_client = self._classify(segment)
        if segment.outgoing is from_client:
            counters.misdirected += 1
            return []
        flags = segment.flags
        if flags & options.SYN and not flags & (options.RST | options.FIN):
            if from_client and not flags & options.ACK:
                return self._read_syn(four_tuple, segment)
            if flags & options.ACK and not from_client:
                return self._read_syn_ack(four_tuple, segment)
            counters.ignored += 1
            return []
        record = table.subflows.get(four_tuple)
        if record is None:
            if flags & options.RST and not from_client:
                return self._reset_handshake(four_tuple, segment)
            counters.ignored += four_tuple not in self.handshakes
            return []
        if segment.option(options.MpFastclose) is not None:
            for each in table.connections[record.token].subflows:
                table.lookups.add(each.four_tuple, segment.time)
        elif flags & options.RST:
            table.lookups.add(four_tuple, segment.time)
        return []

    def expire(self, time: float) -> None:
        cutoff = time - self._table.limits.handshake_timeout
        self._table.counters.expired += self.handshakes.drop_until(cutoff)
        self.refused.drop_until(cutoff)

    def _classify(self, segment: Segment) -> tuple[FourTuple, bool]:
        """Return the segment's four-tuple and whether the client sent it. Both ports may be listening ports."""
        source, destination, ports = unmap(segment.source), unmap(segment.destination), self._table.listen_ports
        if segment.destination_port in ports and not (segment.source_port in ports and segment.outgoing):
            return FourTuple(destination, segment.destination_port, source, segment.source_port), True
        return FourTuple(source, segment.source_port, destination, segment.destination_port), False

    def _read_syn(self, four_tuple: FourTuple, segment: Segment) -> list[Event]:
        join, capable = segment.option(options.MpJoinSyn), segment.option(options.MpCapable)
        record = self._table.subflows.get(four_tuple)
        if join is None and (capable is None or capable.version == 0):
            self._table.counters.version_0 += capable is not None
            self._table.counters.ignored += 1
        elif record is None or segment.time > record.subflow.since:  # otherwise the kernel's event came first
            previous = self.handshakes.get(four_tuple)
            # The proxy answers each attempt through the same interface.
            new = Handshake(None if join is None else join.token, None if previous is None else previous.interface)
            self._table.counters.handshakes_evicted += self.handshakes.put(four_tuple, new, segment.time)
        return []

    def _read_syn_ack(self, four_tuple: FourTuple, segment: Segment) -> list[Event]:
        """Note the interface of the proxy's answer: shaping acts on egress."""
        handshake, record = self.handshakes.get(four_tuple), self._table.subflows.get(four_tuple)
        join, capable = segment.option(options.MpJoinSynAck), segment.option(options.MpCapable)
        if join is None and (capable is None or capable.version != 1):
            if handshake is None:
                self._table.counters.ignored += 1
                return []
            self.handshakes.pop(four_tuple)
            if handshake.token is not None:
                return self._refusal(four_tuple, handshake.token, segment.time, "the proxy's SYN/ACK has no MP_JOIN")
            self._table.counters.fallbacks += 1
            return []
        if record is not None and segment.time <= record.subflow.since:
            # The kernel's event came first.
            interface = segment.interface
            if record.subflow.interface == interface:
                return []
            return self._table.change(record, segment.time, f"leaves through {interface}", interface=interface)
        if handshake is None:
            new = Handshake(None, segment.interface)
            self._table.counters.handshakes_evicted += self.handshakes.put(four_tuple, new, segment.time)
        else:
            handshake.interface = segment.interface
        return []

    def _reset_handshake(self, four_tuple: FourTuple, segment: Segment) -> list[Event]:
        handshake = self.handshakes.pop(four_tuple)
        if handshake is None or handshake.token is None:
            self._table.counters.ignored += 1
            return []
        reason = segment.option(options.MpTcprst)
        detail = "RST from the proxy" if reason is None else f"RST from the proxy, MP_TCPRST reason {reason.reason}"
        if handshake.token not in self._table.connections:
            detail = "unknown token"
        return self._refusal(four_tuple, handshake.token, segment.time, detail)

    def _refusal(self, four_tuple: FourTuple, token: int, time: float, detail: str) -> list[Event]:
        self._table.counters.joins_refused += 1
        if four_tuple in self.refused or len(self.refused) >= self._table.limits.max_refused:
            return []
        self.refused.put(four_tuple, None, time)
        return [Event(EventKind.JOIN_REFUSED, time, token, four_tuple, detail)]
