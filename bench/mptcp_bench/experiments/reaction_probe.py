"""The probe of the experiment ``reaction``: ``python -m … BACKEND COUNT FILE PORT``, in the proxy's namespace.

Accepts MPTCP connections to PORT and sends on each; watches the wire and the set; writes one sample for each
connection. What goes to other ports, thousands of tunnels perhaps, the kernel keeps from it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import select
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from scapy.arch.linux import attach_filter

from mptcp_throttler.kernel.capture import Capture
from mptcp_throttler.kernel.netfilter.iptables import IptablesNetfilter
from mptcp_throttler.kernel.netlink import messages
from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.mptcp.options import MpCapable, MpJoinAck
from mptcp_throttler.shaping.model import Ownership

from .announcement import announced_ports

_GIVE_UP_SECONDS = 3.0
_IDLE_SECONDS = 0.1
"""In which what the wire brings has room in its buffer."""
_SO_TIMESTAMPNS = 35
_HEADERS = 14 + 20
_NICE = -9
"""Before everybody but the daemon."""
_POLL_SECONDS = 0.0001
"""Between two looks at the set: a loop without a pause would take a processor from who is measured."""
_NETLINK_NETFILTER, _SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES = 12, 270, 1, 7
_NEWSETELEM = 10 << 8 | 12


class Wire:
    """Length and time of each packet that leaves wan0 from *port*, headers aside; IPv4 over Ethernet."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        self._socket.bind(("wan0", 0))
        attach_filter(self._socket, f"tcp src port {port}", "wan0")
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)
        self._socket.setblocking(False)

    def drain(self) -> list[tuple[float, int, int]]:
        """Return time, client port and TCP payload length of the packets since last time."""
        found = []
        with suppress(BlockingIOError):
            while True:
                frame, ancillary, _, address = self._socket.recvmsg(128, 64)
                if address[2] != socket.PACKET_OUTGOING or len(frame) < _HEADERS + 20 or frame[12:14] != b"\x08\x00":
                    continue
                source_port, client_port = struct.unpack_from("!HH", frame, _HEADERS)
                if source_port != self._port:  # from before the filter
                    continue
                seconds, nanoseconds = struct.unpack("=qq", ancillary[0][2][:16])
                payload = struct.unpack_from("!H", frame, 16)[0] - 20 - (frame[_HEADERS + 12] >> 4) * 4
                found.append((seconds + nanoseconds / 1e9, client_port, payload))
        return found


def serve(port: int) -> None:
    """Accept and send until the client closes, each connection in its thread."""
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


class PolledSets:
    """Entries of the ipsets. Listing a set of few entries takes some 50 microseconds and disturbs nobody."""

    def __init__(self, port: int) -> None:
        self._netfilter = IptablesNetfilter(Ownership(listen_ports=(port,)))
        self._seen: set[FourTuple] = set()
        self._loop = asyncio.new_event_loop()

    def appeared(self, client_port: int) -> float | None:
        """Return the time if an entry is there, and was not before, whose subflow has *client_port*."""
        fresh = self._loop.run_until_complete(self._netfilter.read_entries()).keys() - self._seen
        self._seen |= fresh
        return time.time() if any(entry.remote_port == client_port for entry in fresh) else None


class AnnouncedElements:
    """Elements of nftables maps, as the kernel announces each commit. Listing would hold up the daemon's own."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        self._socket.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _NFNLGRP_NFTABLES)
        self._socket.setblocking(False)

    def appeared(self, client_port: int) -> float | None:
        """Return the time if an element was announced whose subflow has *client_port*."""
        with suppress(BlockingIOError):
            while True:
                for kind, _, body in messages(self._socket.recv(1 << 16)):
                    if kind == _NEWSETELEM and client_port in announced_ports(body):
                        return time.time()
        return None


def watch(
    entries: PolledSets | AnnouncedElements, signals: Capture, wire: Wire, count: int, port: int
) -> list[dict[str, float]]:
    """Return one sample for each of *count* connections."""
    samples: list[dict[str, float]] = []
    initial_port, joined_port, opened, deadline = 0, 0, 0.0, time.time() + 30
    while len(samples) < count and time.time() < deadline:
        # Not a tight loop here: it would take a core from those whose reaction is measured.
        select.select([signals], [], [], _IDLE_SECONDS)
        for segment in signals.read():
            kinds = {type(option) for option in segment.options}
            # The SYN and, a round trip later, the third ACK carry the option: the first of the two counts.
            if MpCapable in kinds and segment.destination_port == port and segment.source_port != initial_port:
                initial_port, opened = segment.source_port, segment.time
            # Sent again until it is acknowledged (RFC 8684, 3.2); only the first can be waited for.
            if MpJoinAck in kinds and initial_port != joined_port:
                joined_port, found = initial_port, None
                while found is None and time.time() < segment.time + _GIVE_UP_SECONDS:
                    time.sleep(_POLL_SECONDS)
                    found = entries.appeared(initial_port)
                if found is None:
                    continue
                passed = [n for t, p, n in wire.drain() if p == initial_port and segment.time < t <= found]
                sample = {"delay_ms": 1000 * (found - segment.time), "bytes": sum(passed)}
                samples.append({**sample, "age_ms": 1000 * (segment.time - opened)})
                deadline = time.time() + 30
        wire.drain()
    return samples


def main(backend: str, count: int, output: Path, port: int) -> None:
    signals, wire = Capture("wan0", [port]), Wire(port)
    entries = PolledSets(port) if backend == "iptables" else AnnouncedElements()
    # A process of its own: threads would make the watch wait for the interpreter, 5 ms at a time.
    multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True).start()
    # It must not wait for a processor itself when the entry comes; the sender, started before, does as others do.
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    output.write_text(json.dumps(watch(entries, signals, wire, count, port)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
