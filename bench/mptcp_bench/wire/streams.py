# SPDX-License-Identifier: GPL-2.0-or-later
"""Combine captured segments into connections, each with the times of its handshake and of each byte.

All subflows of a client's MPTCP connection belong to one connection here. A join's SYN carries the proxy's token
(RFC 8684, 3.2). A byte's offset in the stream is its data sequence number, by the mapping of its subflow (3.3.1), or
TCP's sequence number in a plain connection. Only MPTCP version 1 is supported. Retransmissions and reinjections are
ignored: only the first time that a byte is seen counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mptcp_throttler.mptcp.options import Dss, MpCapable, MpJoinSyn, MpJoinSynAck, initial_data_sequence, token_of_key

from .capture import ACK, SYN, CaptureError, Packet

_MASK_32, _MASK_64 = (1 << 32) - 1, (1 << 64) - 1
UP, DOWN = 0, 1
"""Direction of a stream: from the end that opened the connection, or to this end."""


class Stream:
    """The bytes of one direction of a connection, numbered from 0. Times are nanoseconds since the epoch."""

    def __init__(self) -> None:
        self._segments: list[tuple[int, int, int]] = []
        """Start, end (the number after the last byte) and time of each segment, in order of time."""
        self._arrivals: list[tuple[int, int]] = []
        """Offsets in steps through the stream, each with the time at which all bytes before it had arrived."""

    @property
    def total(self) -> int:
        """Number of bytes up to and including the last one that was seen."""
        return max((end for _, end, _ in self._segments), default=0)

    def add(self, start: int, end: int, time: int) -> None:
        """Add the bytes of a segment, *start* to before *end*. Segments must be added in order of time."""
        self._segments.append((start, end, time))
        self._arrivals = []

    def first_time(self, offset: int) -> int:
        """Return the time at which the byte at *offset* was first seen. Raises CaptureError if it is missing."""
        return self._first_segment(offset)[1]

    def readable_time(self, offset: int) -> int:
        """Return the time from which a reader can have the byte at *offset* and all before it. Raises CaptureError."""
        if not self._arrivals:
            end = latest = 0
            while end < self.total:
                end, time = self._first_segment(end)
                latest = max(latest, time)
                self._arrivals.append((end, latest))
        self._first_segment(offset)
        return next(time for end, time in self._arrivals if offset < end)

    def segment_ends(self, offset: int) -> list[int]:
        """Return the ends after *offset* of all segments, except of those whose last byte was seen before."""
        return sorted(end for _, end, time in self._segments if end > offset and self.first_time(end - 1) == time)

    def _first_segment(self, offset: int) -> tuple[int, int]:
        """Return end and time of the first segment with the byte at *offset*. Raises CaptureError."""
        for start, end, time in self._segments:
            if start <= offset < end:
                return end, time
        raise CaptureError(f"the stream has gaps: byte {offset} is missing")


@dataclass(slots=True)
class Connection:
    """One connection with all its subflows. Times are nanoseconds since the epoch."""

    syn: int
    requested: bool
    """Whether the first SYN requested MPTCP."""
    syn_ack: int | None = None
    ack: int | None = None
    """Time of the handshake's third segment."""
    multipath: bool = False
    """Whether both sides agreed on MPTCP."""
    fell_back: bool = False
    """Whether the connection later fell back to plain TCP: data without a mapping, or an infinite mapping (3.7)."""
    subflows: int = 1
    """Number of subflows whose SYN was answered."""
    head: bytes = b""
    """The captured beginning of the client's data."""
    up: Stream = field(default_factory=Stream)
    down: Stream = field(default_factory=Stream)
    _first_sequences: list[int | None] = field(default_factory=lambda: [None, None])
    """Data sequence number of each direction's first byte."""

    def learn_key(self, direction: int, option: MpCapable) -> None:
        if option.sender_key is not None and self._first_sequences[direction] is None:
            self._first_sequences[direction] = (initial_data_sequence(option.sender_key) + 1) & _MASK_64

    def offset(self, direction: int, sequence: int, octets: int) -> int | None:
        """Return the stream offset of a data sequence number of 4 or 8 *octets*; None if the key is not known yet."""
        origin = self._first_sequences[direction]
        return None if origin is None else (sequence - origin) & (_MASK_64 if octets == 8 else _MASK_32)


@dataclass(frozen=True, slots=True)
class _Mapping:
    """*length* bytes of a subflow from byte *first* on (its SYN is 0), and the stream offset of the first byte."""

    first: int
    length: int
    offset: int


@dataclass(slots=True)
class _Flow:
    """One TCP connection, which is a subflow or a plain connection."""

    connection: Connection
    is_initial: bool
    """Whether this is the connection's first subflow."""
    sequences: list[int]
    """Initial sequence number of each direction; -1 while it is not known."""
    acknowledged: bool = False
    mappings: tuple[list[_Mapping], list[_Mapping]] = field(default_factory=lambda: ([], []))

    def add(self, direction: int, packet: Packet) -> None:
        """Process a segment after the SYNs."""
        connection = self.connection
        if direction == UP and not self.acknowledged and packet.flags & ACK and self.sequences[DOWN] >= 0:
            self.acknowledged = True
            if self.is_initial:
                connection.ack = packet.time
        if connection.multipath:
            self._learn_mapping(direction, packet)
        if not packet.length or self.sequences[direction] < 0:
            return
        # Numbers count from the SYN, which is 0, so that the first byte is 1.
        number = (packet.sequence - self.sequences[direction]) & _MASK_32
        start = self._stream_offset(direction, number) if connection.multipath else number - 1
        connection.fell_back |= start is None
        if start is None or start < 0:  # A keep-alive probe is before the first byte.
            return
        if direction == UP and start == 0 and not connection.head:
            connection.head = packet.payload
        stream = connection.up if direction == UP else connection.down
        stream.add(start, start + packet.length, packet.time)

    def _learn_mapping(self, direction: int, packet: Packet) -> None:
        connection, mappings = self.connection, self.mappings[direction]
        new = None
        for option in packet.options:
            if isinstance(option, MpCapable):
                connection.learn_key(direction, option)
                if option.data_length:
                    new = _Mapping(1, option.data_length, 0)
            elif isinstance(option, Dss) and option.data_sequence is not None:
                offset = connection.offset(direction, option.data_sequence, option.data_sequence_octets)
                if not option.data_length:
                    connection.fell_back = True
                elif offset is not None and option.subflow_sequence is not None:
                    new = _Mapping(option.subflow_sequence, option.data_length, offset)
        if new is not None and (not mappings or mappings[-1] != new):
            mappings.append(new)

    def _stream_offset(self, direction: int, number: int) -> int | None:
        """Return the offset of the subflow's byte *number* in the connection's stream; None if no mapping covers it."""
        for mapping in reversed(self.mappings[direction]):
            distance = (number - mapping.first) & _MASK_32
            if distance < mapping.length:
                return mapping.offset + distance
        return None


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
            key, direction = (packet.source, packet.source_port, packet.destination), UP
        elif packet.source_port == self._port and self._address in (None, packet.source):
            key, direction = (packet.destination, packet.destination_port, packet.source), DOWN
        else:
            return
        if direction == UP and packet.flags & (SYN | ACK) == SYN:
            self._process_syn(key, packet)
        elif (flow := self._flows.get(key)) is not None:
            if direction == DOWN and packet.flags & SYN:
                self._process_syn_ack(flow, packet)
            else:
                flow.add(direction, packet)

    def _process_syn(self, key: tuple[bytes, int, bytes], packet: Packet) -> None:
        earlier = self._flows.get(key)
        if earlier is not None and earlier.sequences[UP] == packet.sequence:
            return  # The SYN was retransmitted.
        self._flows.pop(key, None)
        join = next((option for option in packet.options if isinstance(option, MpJoinSyn)), None)
        if join is None:
            requested = any(isinstance(option, MpCapable) for option in packet.options)
            self.connections.append(Connection(packet.time, requested))
        connection = self.connections[-1] if join is None else self._tokens.get(join.token)
        if connection is not None:  # Otherwise, the connection was opened before the capture.
            self._flows[key] = _Flow(connection, join is None, [packet.sequence, -1])

    def _process_syn_ack(self, flow: _Flow, packet: Packet) -> None:
        if flow.sequences[DOWN] >= 0:
            return
        flow.sequences[DOWN] = packet.sequence
        connection = flow.connection
        if not flow.is_initial:
            connection.subflows += any(isinstance(option, MpJoinSynAck) for option in packet.options)
            return
        connection.syn_ack = packet.time
        for option in packet.options:
            if isinstance(option, MpCapable) and option.sender_key is not None and connection.requested:
                connection.multipath = True
                connection.learn_key(DOWN, option)
                self._tokens[token_of_key(option.sender_key)] = connection


def follow(packets: Iterable[Packet], *legs: Leg) -> None:
    """Sort *packets* by time and add them to each of *legs*."""
    for packet in sorted(packets, key=lambda packet: packet.time):
        for leg in legs:
            leg.add(packet)


def forwarded_packets(packets: Iterable[Packet]) -> list[tuple[Packet, float]]:
    """Return each segment of *packets* that was captured before and after a router, with the seconds in between."""
    waiting: dict[tuple[object, ...], Packet] = {}
    found = []
    for packet in sorted(packets, key=lambda packet: packet.time):
        ends = packet.source, packet.source_port, packet.destination, packet.destination_port
        key = (*ends, packet.flags, packet.sequence, packet.acknowledgment, packet.length)
        first = waiting.pop(key, None)
        if first is None:
            waiting[key] = packet
        else:
            found.append((packet, (packet.time - first.time) * 1e-9))
    return found
