# SPDX-License-Identifier: GPL-2.0-or-later
"""Combine captured segments to connections: when each connection opened, and when each byte was first sent.

All subflows of a client's MPTCP connection belong to one connection here. A join's SYN carries the proxy's token
(RFC 8684, 3.2). A byte's offset in the stream is its data sequence number, by the mapping of its subflow (3.3.1). In a
plain connection, TCP's sequence numbers are used instead. Only version 1 is supported, since no kernel of this testbed
speaks version 0. Retransmissions and reinjections are ignored: only the first time that a byte is seen counts.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from mptcp_throttler.mptcp.options import Dss, MpCapable, MpJoinSyn, MpJoinSynAck, initial_data_sequence, token_of_key

from .packets import ACK, SYN, Packet

_32, _64 = (1 << 32) - 1, (1 << 64) - 1
UP, DOWN = 0, 1
"""Direction of a stream: from the end that opened the connection, and to this end."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """Bytes of a stream, from *start* to before *end*, that were first seen in one segment."""

    start: int
    end: int
    time: int
    """Time at which the bytes were first seen, in nanoseconds since the epoch."""


class Stream:
    """The bytes of one direction of a connection, numbered from 0, with the time at which each was first seen."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._arrived: list[int] | None = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces in stream order. They do not overlap."""
        return tuple(self._pieces)

    @property
    def total(self) -> int:
        """Number of bytes up to and including the last one that was seen."""
        return self._pieces[-1].end if self._pieces else 0

    @property
    def whole(self) -> bool:
        """Whether all bytes up to the last one were seen."""
        return sum(piece.end - piece.start for piece in self._pieces) == self.total

    def add(self, start: int, end: int, time: int) -> None:
        """Add the bytes of a segment, *start* to before *end*, in order of time. Bytes seen before keep their time."""
        self._arrived = None
        index = self._index(start)
        at = max(start, self._pieces[index].end) if index >= 0 else start
        new = []
        for piece in self._pieces[index + 1 :]:
            if piece.start >= end:
                break
            if at < piece.start:
                new.append(Piece(at, piece.start, time))
            at = piece.end
        if at < end:
            new.append(Piece(at, end, time))
        for piece in new:
            insort(self._pieces, piece)

    def seen(self, offset: int) -> int | None:
        """Return the time at which the byte at *offset* was first seen, or None."""
        index = self._index(offset)
        return self._pieces[index].time if index >= 0 and offset < self._pieces[index].end else None

    def arrived(self, offset: int) -> int | None:
        """Return the time from which a reader can have the byte at *offset* and all before it, or None."""
        if self._arrived is None:
            self._arrived = list(accumulate((piece.time for piece in self._pieces), max))
        index = self._index(offset)
        return self._arrived[index] if index >= 0 and offset < self._pieces[index].end else None

    def _index(self, offset: int) -> int:
        return bisect_right(self._pieces, offset, key=lambda piece: piece.start) - 1


@dataclass(slots=True)
class Connection:
    """One connection with all its subflows. Times are nanoseconds since the epoch."""

    syn: int
    asked: bool
    """Whether the first SYN requested MPTCP."""
    syn_ack: int | None = None
    ack: int | None = None
    """Time of the handshake's third segment."""
    multipath: bool = False
    """Whether both sides agreed on MPTCP."""
    fallen: bool = False
    """Whether the connection later fell back to plain TCP, by data without a mapping, or by an infinite mapping
    (3.7)."""
    subflows: int = 1
    """Number of subflows whose SYN was answered."""
    head: bytes = b""
    """The captured beginning of the client's data."""
    streams: tuple[Stream, Stream] = field(default_factory=lambda: (Stream(), Stream()))
    _origins: list[int | None] = field(default_factory=lambda: [None, None])
    """Data sequence number of each direction's first byte."""

    @property
    def up(self) -> Stream:
        return self.streams[UP]

    @property
    def down(self) -> Stream:
        return self.streams[DOWN]

    def learn_key(self, direction: int, option: MpCapable) -> None:
        if option.sender_key is not None and self._origins[direction] is None:
            self._origins[direction] = (initial_data_sequence(option.sender_key) + 1) & _64

    def offset(self, direction: int, sequence: int, octets: int) -> int | None:
        """Return the stream offset of a data sequence number of 4 or 8 *octets*; None if the key is not known yet."""
        origin = self._origins[direction]
        return None if origin is None else (sequence - origin) & (_64 if octets == 8 else _32)


@dataclass(frozen=True, slots=True)
class _Mapping:
    """Bytes of a subflow, numbered from its SYN, and their offset in the connection's stream."""

    subflow: int
    length: int
    offset: int


@dataclass(slots=True)
class _Flow:
    """One TCP connection, which is a subflow or a plain connection."""

    connection: Connection
    initial: bool
    sequences: list[int]
    """Initial sequence number of each direction; -1 while it is not known."""
    acknowledged: bool = False
    mappings: tuple[list[_Mapping], list[_Mapping]] = field(default_factory=lambda: ([], []))


class Leg:
    """The connections to one server, captured on one side of the proxy. Segments must be added in order of time."""

    def __init__(self, port: int, address: bytes | None = None) -> None:
        """Follow connections to *address* (packed) at *port*; None matches every server."""
        self.connections: list[Connection] = []
        self._port, self._address = port, address
        self._flows: dict[tuple[bytes, int, bytes], _Flow] = {}
        self._tokens: dict[int, Connection] = {}

    def add(self, packet: Packet) -> None:
        """Process a segment. Segments of other connections are ignored."""
        if packet.destination_port == self._port and self._address in (None, packet.destination):
            key = (packet.source, packet.source_port, packet.destination)
            if packet.flags & (SYN | ACK) == SYN:
                self._open(key, packet)
            elif (flow := self._flows.get(key)) is not None:
                self._follow(flow, UP, packet)
        elif packet.source_port == self._port and self._address in (None, packet.source):
            flow = self._flows.get((packet.destination, packet.destination_port, packet.source))
            if flow is None:
                return
            if packet.flags & SYN:
                self._answer(flow, packet)
            else:
                self._follow(flow, DOWN, packet)

    def _open(self, key: tuple[bytes, int, bytes], packet: Packet) -> None:
        known = self._flows.get(key)
        if known is not None and known.sequences[UP] == packet.sequence:
            return  #  # a retransmitted SYN
        self._flows.pop(key, None)
        join = next((o for o in packet.options if isinstance(o, MpJoinSyn)), None)
        if join is None:
            asked = any(isinstance(option, MpCapable) for option in packet.options)
            connection: Connection | None = Connection(packet.time, asked)
        else:
            connection = self._tokens.get(join.token)
        if connection is None:
            return  #  # a join to a connection opened before the capture
        if join is None:
            self.connections.append(connection)
        self._flows[key] = _Flow(connection, join is None, [packet.sequence, -1])

    def _answer(self, flow: _Flow, packet: Packet) -> None:
        if flow.sequences[DOWN] >= 0:
            return
        flow.sequences[DOWN] = packet.sequence
        connection = flow.connection
        if not flow.initial:
            connection.subflows += any(isinstance(option, MpJoinSynAck) for option in packet.options)
            return
        connection.syn_ack = packet.time
        for option in packet.options:
            if isinstance(option, MpCapable) and option.sender_key is not None and connection.asked:
                connection.multipath = True
                connection.learn_key(DOWN, option)
                self._tokens[token_of_key(option.sender_key)] = connection

    def _follow(self, flow: _Flow, direction: int, packet: Packet) -> None:
        connection = flow.connection
        if direction == UP and not flow.acknowledged and packet.flags & ACK and flow.sequences[DOWN] >= 0:
            flow.acknowledged = True
            if flow.initial:
                connection.ack = packet.time
        if connection.multipath:
            self._map(flow, direction, packet)
        if not packet.length or flow.sequences[direction] < 0:
            return
        # Numbers count from the SYN, which is 0, so that the first byte is 1.
        number = (packet.sequence - flow.sequences[direction]) & _32
        start: int | None = number - 1
        if connection.multipath:
            start = _offset(flow.mappings[direction], number)
            if start is None:
                connection.fallen = True
        if start is None or start < 0:  # before the first byte: a keep-alive probe
            return
        if direction == UP and start == 0 and not connection.head:
            connection.head = packet.payload
        connection.streams[direction].add(start, start + packet.length, packet.time)

    @staticmethod
    def _map(flow: _Flow, direction: int, packet: Packet) -> None:
        connection, mappings = flow.connection, flow.mappings[direction]
        new = None
        for option in packet.options:
            if isinstance(option, MpCapable):
                connection.learn_key(direction, option)
                if option.data_length:
                    new = _Mapping(1, option.data_length, 0)
            elif isinstance(option, Dss) and option.data_sequence is not None:
                if not option.data_length:
                    connection.fallen = True
                    continue
                offset = connection.offset(direction, option.data_sequence, option.data_sequence_octets)
                if offset is not None and option.subflow_sequence is not None:
                    new = _Mapping(option.subflow_sequence, option.data_length, offset)
        if new is not None and (not mappings or mappings[-1] != new):
            mappings.append(new)


def _offset(mappings: list[_Mapping], number: int) -> int | None:
    """Return the offset of the subflow's byte *number* in the connection's stream; None if no mapping covers it."""
    for mapping in reversed(mappings):
        within = (number - mapping.subflow) & _32
        if within < mapping.length:
            return mapping.offset + within
    return None


def follow(packets: Iterable[Packet], *legs: Leg) -> None:
    """Sort *packets* by time and add them to each of *legs*."""
    for packet in sorted(packets, key=lambda packet: packet.time):
        for leg in legs:
            leg.add(packet)


def passages(packets: Iterable[Packet]) -> list[tuple[Packet, float]]:
    """Return each segment of *packets* that was captured on both sides of a router, with the seconds between."""
    seen: dict[tuple[object, ...], Packet] = {}
    found = []
    for packet in sorted(packets, key=lambda packet: packet.time):
        ends = packet.source, packet.source_port, packet.destination, packet.destination_port
        key = (*ends, packet.flags, packet.sequence, packet.acknowledgment, packet.length)
        first = seen.pop(key, None)
        if first is None:
            seen[key] = packet
        else:
            found.append((packet, (packet.time - first.time) * 1e-9))
    return found
