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
from collections.abc import Iterable, Iterator, Sequence
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
LAST_SECONDS = 30.0
"""Seconds after the last join after which the probe ends, if fewer came than were asked."""
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


def is_join(segment: Segment, port: int) -> bool:
    """Return whether *segment* to *port* is the third ACK of a joining subflow."""
    return segment.destination_port == port and any(isinstance(option, MpJoinAck) for option in segment.options)


def samples(segments: Iterable[Segment], packets: Iterable[Sent], port: int) -> list[dict[str, float]]:
    """Return a sample for each join of connections to *port*, which follow one another.

    A connection is known by the client's port of its first subflow, which is the one to be capped. *packets* are those
    of all first subflows, in order of time.
    """
    sent: dict[int, list[Sent]] = {}
    for packet in packets:
        sent.setdefault(packet.port, []).append(packet)
    found: dict[int, dict[str, float]] = {}
    first = None
    for segment in segments:
        begins = segment.destination_port == port and any(isinstance(each, MpCapable) for each in segment.options)
        # Both the SYN and, a round trip later, the third ACK carry the option. Only the SYN begins a connection.
        if begins and (first is None or segment.source_port != first.source_port):
            first = segment
        # The client repeats the third ACK until it is acknowledged (RFC 8684, 3.2). Only the first one counts.
        if is_join(segment, port) and first is not None and first.source_port not in found:
            of_first = sent.get(first.source_port, ())
            found[first.source_port] = sample(of_first, segment.time, segment.time - first.time)
    return list(found.values())


def sample(sent: Sequence[Sent], joined: float, age: float) -> dict[str, float]:
    """Return the sample of a connection that was *joined* at the *age* of some seconds.

    ``delay_ms`` is the time from the join to the first throttled packet. It is infinite if none came, and negative if
    one came before the join, which then did not cause the entry. ``bytes`` is the unthrottled payload in that time,
    ``age_ms`` the connection's age at the join.
    """
    within = [packet for packet in sent if packet.time <= joined + GIVE_UP_SECONDS]
    before = list(takewhile(lambda packet: not packet.marked, within))
    throttled = within[len(before)].time if len(before) < len(within) else math.inf
    return {
        "delay_ms": 1000 * (throttled - joined),
        "bytes": sum(packet.length for packet in before if packet.time > joined),
        "age_ms": 1000 * age,
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
    """Return one sample for each join that was seen, when there were *count*, or no more come."""
    segments: list[Segment] = []
    packets: list[Sent] = []
    joins, last = 0, time.monotonic()
    while time.monotonic() < last + (GIVE_UP_SECONDS if joins >= count else LAST_SECONDS):
        time.sleep(_IDLE_SECONDS)
        new = list(signals.read())
        segments += new
        packets += wire.read()
        if more := sum(is_join(segment, port) for segment in new):
            joins, last = joins + more, time.monotonic()
    return samples(segments, packets, port)


def main(count: int, output: Path, port: int, client: str) -> None:
    signals, wire = Capture("wan0", [port]), Wire(port, client)
    # Serve in a separate process: a thread would make the watch wait for the interpreter, 5 ms at a time.
    multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True).start()
    output.write_text(json.dumps(watch(signals, wire, count, port)))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
