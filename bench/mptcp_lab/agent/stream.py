# SPDX-License-Identifier: GPL-2.0-or-later
"""Send and receive numbered UDP packets with their times, to simulate a call, or to count the losses of a path.

``agent.stream send SOURCE ADDRESS PORT PER_SECOND BYTES SECONDS`` sends packets with BYTES bytes of payload at an even
pace.
``agent.stream receive ADDRESS PORT RESULT`` prints ``ready``, and on SIGTERM writes to RESULT a JSON list of the
received packets: number, send time and arrival time, in nanoseconds of this host's monotonic clock.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import sys
import time
from pathlib import Path

SO_RCVBUFFORCE, RECEIVE_BUFFER = 33, 64 << 20
"""Socket option, from asm-generic/socket.h, and a buffer size in bytes with which no burst is lost at the receiver."""
HEADER = struct.Struct("!QQ")
MIN_PAUSE = 0.001
"""Minimum seconds between two sends of packets, because a pause for each packet would take too long."""


def send(source: str, address: str, port: int, per_second: float, size: int, seconds: float) -> None:
    padding = bytes(max(0, size - HEADER.size))
    sent, total = 0, round(per_second * seconds)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((source, 0))
        begin = time.monotonic()
        while sent < total:
            due = min(total, int((time.monotonic() - begin) * per_second) + 1)
            for number in range(sent, due):
                sender.sendto(HEADER.pack(number, time.monotonic_ns()) + padding, (address, port))
            sent = due
            time.sleep(max(MIN_PAUSE, begin + sent / per_second - time.monotonic()))


def receive(address: str, port: int, result: Path) -> None:
    def terminate(*_: object) -> None:
        raise SystemExit

    received: list[tuple[int, int, int]] = []
    signal.signal(signal.SIGTERM, terminate)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        receiver.bind((address, port))
        print("ready", flush=True)
        try:
            while True:
                data = receiver.recv(2048)
                now = time.monotonic_ns()
                received.append((*HEADER.unpack_from(data), now))
        finally:
            result.write_text(json.dumps(received))


def main(arguments: list[str]) -> None:
    match arguments:
        case ["send", source, address, port, per_second, size, seconds]:
            send(source, address, int(port), float(per_second), int(size), float(seconds))
        case ["receive", address, port, result]:
            receive(address, int(port), Path(result))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
