# SPDX-License-Identifier: GPL-2.0-or-later
"""How soon a joining subflow is capped: ``python -m … probe`` in the proxy's namespace, ``client`` in the client's.

The probe accepts MPTCP connections and sends data on each. It captures signalling segments, and the packets that it
sends to the first subflow's address, with netfilter's marks: when a subflow has an entry in the kernel's set, its
packets have our bits in their marks. The probe writes the delay of each join to a file. All times are the kernel's time
stamps, so the probe reads them rarely: the measured throttler needs the processor.

The client opens connections one after another, reads from each until shortly after it has a second subflow, and then
aborts it: a normal close would send the data in the proxy's buffers at the same time as the next connection.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from scapy.arch.linux import attach_filter

from mptcp_throttler.kernel.capture import Capture
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck
from mptcp_throttler.shaping.model import Ownership

GIVE_UP_SECONDS = 3.0
"""A cap's entry that is not visible this many seconds after the join counts as missing."""
_READ_INTERVAL = 0.05
"""Seconds between two readings. The socket's buffer can hold the packets of this period."""
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE, _SO_RCVMARK, _SO_MARK = 35, 33, 75, 36
_ETH_P_ALL = 0x0003
_CLIENT_PORT_OFFSET = 14 + 20 + 2
"""Offset of TCP's destination port in a frame, after the Ethernet header and an IPv4 header without options."""
_JOIN_TIMEOUT, _READ_SECONDS, _PAUSE_SECONDS = 5.0, 0.15, 0.05
"""Seconds that the client waits for a second subflow (a lost SYN is sent again after 1 and 3 seconds), then reads, and
pauses after the connection."""
_SOL_MPTCP, _MPTCP_INFO = 284, 1
_ABORT = struct.pack("ii", 1, 0)
"""A struct linger that makes close(2) abort the connection."""


def is_join(segment: Segment, port: int) -> bool:
    """Return whether *segment* to *port* is the third ACK of a joining subflow."""
    return segment.destination_port == port and any(isinstance(option, MpJoinAck) for option in segment.options)


def delays(segments: Iterable[Segment], marked: Mapping[int, float], port: int) -> list[float]:
    """Return the milliseconds from each join of connections to *port* to the first packet under the cap.

    The client's port of the first subflow, which the policy caps, identifies a connection; *marked* has the time of
    that subflow's first marked packet. A delay is infinite if no packet was marked within ``GIVE_UP_SECONDS``, and
    negative if the mark came before the join, which then did not cause the entry.
    """
    by_port: dict[int, float] = {}
    first = None
    for segment in segments:
        if segment.destination_port == port and any(isinstance(each, MpCapable) for each in segment.options):
            first = segment.source_port
        # The client repeats the third ACK until it is acknowledged (RFC 8684, 3.2). Only the first one counts.
        if is_join(segment, port) and first is not None and first not in by_port:
            delay = marked.get(first, math.inf) - segment.time
            by_port[first] = 1000 * delay if delay <= GIVE_UP_SECONDS else math.inf
    return list(by_port.values())


class MarkedPackets:
    """Reads the IPv4 packets that leave wan0 from *port* to *client*. Needs Linux 5.19 (SO_RCVMARK)."""

    def __init__(self, port: int, client: str) -> None:
        self._clock_offset = time.time() - time.monotonic()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        attach_filter(self._socket, f"outbound and tcp src port {port} and dst host {client}", "wan0")
        for option, value in ((_SO_TIMESTAMPNS, 1), (_SO_RCVMARK, 1), (_SO_RCVBUFFORCE, 32 << 20)):
            self._socket.setsockopt(socket.SOL_SOCKET, option, value)
        self._socket.setblocking(False)
        # Without a protocol, the socket receives no packets before this.
        self._socket.bind(("wan0", _ETH_P_ALL))

    def read(self) -> Iterator[tuple[int, float]]:
        """Yield the client's port and the monotonic time of each marked packet since the last call."""
        while True:
            try:
                frame, ancillary, _, _ = self._socket.recvmsg(128, 128)
            except BlockingIOError:
                return
            data = {kind: body for _, kind, body in ancillary}
            if int.from_bytes(data[_SO_MARK], sys.byteorder) & Ownership().mark_mask:
                [client_port] = struct.unpack_from("!H", frame, _CLIENT_PORT_OFFSET)
                seconds, nanoseconds = struct.unpack("=qq", data[_SO_TIMESTAMPNS])
                yield client_port, seconds + nanoseconds / 1e9 - self._clock_offset


def serve(port: int) -> None:
    """Accept connections and send data on each, in a thread per connection, until the client closes the connection."""
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


def probe(port: int, count: int, client: str, output: str) -> None:
    """Write the delays of *count* joins of connections to *port*, whose first subflow comes from *client*."""
    signals, packets = Capture("wan0", [port]), MarkedPackets(port, client)
    # Serve in a separate process: a thread would make the probe wait for the interpreter, 5 ms at a time.
    multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True).start()
    segments: list[Segment] = []
    marked: dict[int, float] = {}
    joins, last = 0, time.monotonic()
    while joins < count or time.monotonic() < last + GIVE_UP_SECONDS:
        time.sleep(_READ_INTERVAL)
        new_segments = list(signals.read())
        segments += new_segments
        for client_port, seconds in packets.read():
            marked.setdefault(client_port, seconds)
        if new_joins := sum(is_join(segment, port) for segment in new_segments):
            joins, last = joins + new_joins, time.monotonic()
    Path(output).write_text(json.dumps(delays(segments, marked, port)))


def client(port: int, count: int, address: str, second_address: str) -> None:
    """Open *count* connections to *address*; *second_address* is the client's on the second path."""
    endpoint = ["ip", "mptcp", "endpoint"]
    subprocess.run([*endpoint, "flush"], check=True)
    subprocess.run([*endpoint, "add", second_address, "dev", "wlan0", "subflow"], check=True)
    for _ in range(count):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP) as connection:
            connection.settimeout(5)
            # Each connection takes longer than 0.1 s, so that no port is reused: the entry of an ended connection stays
            # for ten seconds, and would cap a new connection with the same port at once.
            connection.bind(("", 10_000 + int(time.monotonic() * 10) % 20_000))
            connection.connect((address, port))
            until = time.monotonic() + _JOIN_TIMEOUT
            # The first byte of linux/mptcp.h's struct mptcp_info is the number of further subflows.
            while time.monotonic() < until and not connection.getsockopt(_SOL_MPTCP, _MPTCP_INFO, 1)[0]:
                connection.recv(65536)
            until = time.monotonic() + _READ_SECONDS
            while time.monotonic() < until:
                connection.recv(65536)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        time.sleep(_PAUSE_SECONDS)


if __name__ == "__main__":
    {"probe": probe, "client": client}[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
