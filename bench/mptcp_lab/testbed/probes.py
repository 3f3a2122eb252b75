# SPDX-License-Identifier: GPL-2.0-or-later
"""Measure what a path does to packets, by the kernel's clock at both ends and independently of the emulator.

- ``Ping`` sends ICMP echo requests (RFC 792), which the far kernel answers. A round trip is the time between the
  kernel's time stamps of sending and receiving (SO_TIMESTAMPING, Documentation/networking/timestamping.rst), so that
  Python's slowness does not matter.
- ``Receiver`` receives numbered datagrams and keeps their order of arrival.
- As a program in a namespace, this module sends a load at a given rate.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .host import Program
from .node import LiveNode

SO_TIMESTAMPING = 37
"""From asm-generic/socket.h. SCM_TIMESTAMPING has the same number."""
TX_SOFTWARE, RX_SOFTWARE, REPORT_SOFTWARE, WITH_ID, STAMP_ONLY = 1 << 1, 1 << 3, 1 << 4, 1 << 7, 1 << 11
"""From linux/net_tstamp.h, SOF_TIMESTAMPING_…"""
SO_RCVBUFFORCE, UDP_SEGMENT = 33, 103
IP_RECVERR = 11
ECHO_REQUEST, ECHO_REPLY = 8, 0
RECEIVE_BUFFER = 64 << 20
POLL = 0.05
"""Seconds between two checks whether a sender has ended."""
DISCARD = 9
"""Port for the load (RFC 863), on which no program listens."""
DATAGRAM = 1472
"""Most payload bytes in an MTU of 1500. Such a packet has 1514 bytes as the shapers count."""
FRAME = 1514
_NUMBER = struct.Struct("!Q")


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def _echo_request(identifier: int, number: int) -> bytes:
    # The 56 bytes of data are as many as ping(8) sends.
    rest = struct.pack("!HH", identifier, number) + bytes(56)
    return struct.pack("!BBH", ECHO_REQUEST, 0, _checksum(bytes((ECHO_REQUEST, 0, 0, 0)) + rest)) + rest


def _stamp(ancillary: Sequence[tuple[int, int, bytes]]) -> int | None:
    """Return the time stamp in nanoseconds since the epoch, or None."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING):
            seconds, nanoseconds = struct.unpack_from("@qq", data)
            return int(seconds) * 1_000_000_000 + int(nanoseconds)
    return None


@dataclass(slots=True)
class Ping:
    """Echo requests from *source* on *node* to *target*, both IPv4 addresses."""

    node: LiveNode
    source: str
    target: str
    sent: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)

    def run(self, count: int, interval: float, linger: float = 0.5) -> list[float]:
        """Return the round trips, in ms and in order, of the requests (of *count*) answered within *linger* s."""
        if not 0 < count <= 1 << 16:
            raise ValueError(f"{count} echo requests: their numbers have 16 bits")
        identifier = os.getpid() & 0xFFFF
        with self.node.entered():
            channel = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        with channel:
            flags = TX_SOFTWARE | RX_SOFTWARE | REPORT_SOFTWARE | WITH_ID | STAMP_ONLY
            channel.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, flags)
            channel.bind((self.source, 0))
            channel.setblocking(False)
            start = time.monotonic()
            for number in range(count):
                channel.sendto(_echo_request(identifier, number), (self.target, 0))
                self._read(channel, identifier, start + (number + 1) * interval)
            self._read(channel, identifier, time.monotonic() + linger)
        answered = (n for n in range(count) if n in self.sent and n in self.received)
        return [(self.received[n] - self.sent[n]) / 1e6 for n in answered]

    def _read(self, channel: socket.socket, identifier: int, until: float) -> None:
        # Also read packets that arrived while this process did not run.
        while select.select([channel], [], [], max(0.0, until - time.monotonic()))[0]:
            self._take_sent(channel)
            try:
                packet, ancillary, _, _ = channel.recvmsg(256, 256)
            except BlockingIOError:
                continue
            icmp = packet[(packet[0] & 0x0F) * 4 :]
            kind, _, _, ident, number = struct.unpack_from("!BBHHH", icmp)
            stamp = _stamp(ancillary)
            if kind == ECHO_REPLY and ident == identifier and stamp is not None:
                self.received[number] = stamp

    def _take_sent(self, channel: socket.socket) -> None:
        while True:
            try:
                _, ancillary, _, _ = channel.recvmsg(1, 512, socket.MSG_ERRQUEUE)
            except BlockingIOError:
                return
            stamp = _stamp(ancillary)
            for level, kind, data in ancillary:
                if (level, kind) == (socket.IPPROTO_IP, IP_RECVERR) and stamp is not None:
                    # In struct sock_extended_err, ee_data follows eight bytes and ee_info. It counts the packets sent.
                    self.sent[struct.unpack_from("@IBBBBII", data)[6]] = stamp


class Receiver:
    """Numbered datagrams that *node* receives, in order of arrival."""

    def __init__(self, node: LiveNode, address: str) -> None:
        with node.entered():
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        # Use a large buffer, so that no burst is lost here: only losses on the path may count.
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        self._socket.bind((address, 0))
        self.address, self.port = self._socket.getsockname()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def numbers(self, sender: Program, silence: float = 2.0) -> list[int]:
        """Return the received numbers when *sender* has ended and none came for *silence* seconds."""
        self._socket.settimeout(POLL)
        numbers: list[int] = []
        silent_since = time.monotonic()
        while True:
            # Take the time before waiting, so that packets that arrived while this process did not run are still found.
            now = time.monotonic()
            try:
                numbers.append(_NUMBER.unpack_from(self._socket.recv(2048))[0])
                silent_since = now
            except TimeoutError:
                if sender.running:
                    silent_since = now
                elif now - silent_since >= silence:
                    return numbers


def load_command(source: str, target: str, rate: int, burst: int, seconds: float) -> list[str]:
    """Return the command of a load of full packets: *rate* bits/s as the shapers count, *burst* packets at a time."""
    return [sys.executable, "-I", "-m", __name__, source, target, str(rate), str(burst), str(seconds)]


def _load(source: str, target: str, rate: int, burst: int, seconds: float) -> None:
    channel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    channel.bind((source, 0))
    # Send many datagrams in one call, udp(7), so that the sender's own cost is not measured.
    channel.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, DATAGRAM)
    channel.connect((target, DISCARD))
    data = bytes(DATAGRAM * burst)
    interval = burst * FRAME * 8 / rate
    start = time.monotonic()
    sent = 0
    while (elapsed := time.monotonic() - start) < seconds:
        for _ in range(int(elapsed / interval) + 1 - sent):
            with suppress(ConnectionRefusedError):
                channel.send(data)
            sent += 1
        time.sleep(max(0.0, start + sent * interval - time.monotonic()))


def main(arguments: list[str]) -> None:
    source, target, rate, burst, seconds = arguments
    _load(source, target, int(rate), int(burst), float(seconds))


if __name__ == "__main__":
    main(sys.argv[1:])
