# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a joining subflow gets its cap: ``python -m … COUNT FILE PORT CLIENT``, in the proxy's namespace.

The probe accepts MPTCP connections to PORT and sends on each. It captures signalling segments, and the packets that it
sends to the address CLIENT, with netfilter's marks: when a subflow has an entry in the kernel's set, its packets have
our bits in their marks. For each join it writes a sample to FILE. All times are the kernel's time stamps, so the probe
need not be quick, and takes little processor time from the throttler that is measured. The kernel filters out packets
of other ports, which may have thousands of tunnels. ``join_client`` opens the connections, one after another.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from scapy.arch.linux import attach_filter

from mptcp_throttler.kernel.capture import Capture
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck
from mptcp_throttler.shaping.model import Ownership

GIVE_UP_SECONDS = 3.0
"""Seconds after a join after which its entry counts as missing."""
_LAST_SECONDS = 30.0
"""Seconds after the last decided join after which the probe ends."""
_IDLE_SECONDS = 0.05
"""Seconds between two readings. The socket's buffer can hold the packets of this time."""
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE, _SO_RCVMARK = 35, 33, 75
_SO_MARK = 36
_HEADERS = 14 + 20


class Sent(NamedTuple):
    """A data packet that left the proxy."""

    time: float
    port: int
    """The client's port."""
    length: int
    """Bytes of payload."""
    marked: bool


class Join(NamedTuple):
    """The third ACK of a joining second subflow."""

    initial_port: int
    """The client's port of the connection's first subflow, which is the one to be capped."""
    time: float
    age: float
    """Seconds from the connection's first segment to the join."""


class Joins:
    """Find the joins of connections to *port*, and for each the first throttled packet after it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._initial_port = self._joined_port = 0
        self._opened = 0.0
        self._waiting: list[Join] = []
        self._sent: dict[int, list[Sent]] = {}
        """Packets of a connection since it began, by the client's port of its first subflow."""

    def segment(self, segment: Segment) -> None:
        """Process a segment that has an MPTCP option for signalling."""
        if segment.destination_port != self._port:
            return
        kinds = {type(option) for option in segment.options}
        # Both the SYN and, a round trip later, the third ACK carry the option. Only the SYN begins a connection.
        if MpCapable in kinds and segment.source_port != self._initial_port:
            self._initial_port, self._opened = segment.source_port, segment.time
            self._sent[self._initial_port] = []
        # The client repeats the third ACK until it is acknowledged (RFC 8684, 3.2). Only the first one counts.
        if MpJoinAck in kinds and self._initial_port != self._joined_port:
            self._joined_port = self._initial_port
            self._waiting.append(Join(self._initial_port, segment.time, segment.time - self._opened))

    def packet(self, sent: Sent) -> None:
        """Process a data packet to a client; ignore it if its connection is decided, or its SYN was not seen."""
        if sent.port in self._sent:
            self._sent[sent.port].append(sent)

    def decided(self, now: float) -> Iterator[dict[str, float]]:
        """Yield a sample for each join after which a throttled packet came, or too much time has passed."""
        still = []
        for join in self._waiting:
            sent = self._sent[join.initial_port]
            if any(packet.marked for packet in sent) or now > join.time + GIVE_UP_SECONDS:
                del self._sent[join.initial_port]
                yield sample(join, sent)
            else:
                still.append(join)
        self._waiting = still
        wanted = {self._initial_port, *(join.initial_port for join in still)}
        self._sent = {port: sent for port, sent in self._sent.items() if port in wanted}


def sample(join: Join, sent: Sequence[Sent]) -> dict[str, float]:
    """Return the sample of a join, from the packets of its connection's first subflow in order of time.

    ``delay_ms`` is the time from the join to the first throttled packet. It is infinite if none came, and negative if
    one came before the join, which then did not cause the entry. ``bytes`` is the unthrottled payload in that time,
    ``age_ms`` the connection's age at the join.
    """
    before = list(takewhile(lambda packet: not packet.marked, sent))
    first = sent[len(before)].time if len(before) < len(sent) else math.inf
    return {
        "delay_ms": 1000 * (first - join.time),
        "bytes": sum(packet.length for packet in before if packet.time > join.time),
        "age_ms": 1000 * join.age,
    }


class Wire:
    """The data packets that leave wan0 from *port* to *client*: IPv4 over Ethernet. Needs Linux 5.19 (SO_RCVMARK)."""

    def __init__(self, port: int, client: str) -> None:
        self._port = port
        self._ahead = time.time() - time.monotonic()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self._socket.bind(("wan0", 0))
        attach_filter(self._socket, f"outbound and tcp src port {port} and dst host {client}", "wan0")
        for option, value in ((_SO_TIMESTAMPNS, 1), (_SO_RCVMARK, 1), (_SO_RCVBUFFORCE, 32 << 20)):
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)
        self._socket.setblocking(False)

    def read(self) -> Iterator[Sent]:
        """Yield the packets that were captured since the last call, with monotonic times."""
        while True:
            try:
                frame, ancillary, _, address = self._socket.recvmsg(128, 128)
            except BlockingIOError:
                return
            if address[2] != socket.PACKET_OUTGOING or len(frame) < _HEADERS + 20 or frame[12:14] != b"\x08\x00":
                continue  # captured before the filter was attached
            source_port, client_port = struct.unpack_from("!HH", frame, _HEADERS)
            length = struct.unpack_from("!H", frame, 16)[0] - 20 - (frame[_HEADERS + 12] >> 4) * 4
            if source_port == self._port and length > 0:
                data = {kind: body for _, kind, body in ancillary}
                seconds, nanoseconds = struct.unpack("=qq", data[_SO_TIMESTAMPNS])
                marked = bool(int.from_bytes(data[_SO_MARK], sys.byteorder) & Ownership().mark_mask)
                yield Sent(seconds + nanoseconds / 1e9 - self._ahead, client_port, length, marked)


def serve(port: int) -> None:
    """Accept connections and send on each, in its own thread, until the client closes it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", port))
    listener.listen()

    def send(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            while True:
                connection.sendall(bytes(16384))

    while True:
        threading.Thread(target=send, args=(listener.accept()[0],), daemon=True).start()


def watch(signals: Capture, wire: Wire, count: int, port: int) -> list[dict[str, float]]:
    """Return one sample for each join that was seen, until there are *count*."""
    samples: list[dict[str, float]] = []
    joins, deadline = Joins(port), time.monotonic() + _LAST_SECONDS
    while len(samples) < count and time.monotonic() < deadline:
        time.sleep(_IDLE_SECONDS)
        for segment in signals.read():
            joins.segment(segment)
        for sent in wire.read():
            joins.packet(sent)
        decided = list(joins.decided(time.monotonic()))
        if decided:
            samples += decided
            deadline = time.monotonic() + _LAST_SECONDS
    return samples


def main(count: int, output: Path, port: int, client: str) -> None:
    signals, wire = Capture("wan0", [port]), Wire(port, client)
    # Serve in a separate process: a thread would make the watch wait for the interpreter, 5 ms at a time.
    multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True).start()
    output.write_text(json.dumps(watch(signals, wire, count, port)))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
