# SPDX-License-Identifier: GPL-2.0-or-later
"""The probe of the experiment ``reaction``: ``python -m … COUNT FILE PORT CLIENT``, in the proxy's namespace.

The probe accepts MPTCP connections to PORT and sends on each. It captures signalling segments, and the packets that it
sends to the address CLIENT, with netfilter's marks. For each join it writes a sample to FILE. All times are the
kernel's, so the probe need not be quick, and takes little processor time from the throttler that is measured. The
kernel filters out packets of other ports, which may have thousands of tunnels.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from scapy.arch.linux import attach_filter

from mptcp_throttler.kernel.capture import Capture
from mptcp_throttler.shaping.model import Ownership

from .reaction_joins import Joins, Sent

_LAST_SECONDS = 30.0
"""Seconds after the last decided join after which the probe ends."""
_IDLE_SECONDS = 0.05
"""Seconds between two readings. The socket's buffer can hold the packets of this time."""
_SO_TIMESTAMPNS, _SO_RCVBUFFORCE, _SO_RCVMARK = 35, 33, 75
_SO_MARK = 36
_HEADERS = 14 + 20


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
        """Yield the packets that were captured since the last call."""
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
                mark = int.from_bytes(data[_SO_MARK], sys.byteorder)
                yield Sent(
                    seconds + nanoseconds / 1e9 - self._ahead, client_port, length, bool(mark & Ownership().mark_mask)
                )


def serve(port: int) -> None:
    """Accept connections and send on each, in its own thread, until the client closes it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
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
