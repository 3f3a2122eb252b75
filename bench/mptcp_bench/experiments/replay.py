"""Sends the signalling of connections that never were: ``python -m … DEVICE PROXY OUT RATE SECONDS SEED FILE``.

Each connection has two subflows, opened by true MP_CAPABLE and MP_JOIN handshakes (RFC 8684, 3.1 and 3.2) with keys,
nonces and HMACs of its own, and closed by FINs half a second later. What the client says comes in by DEVICE, what the
proxy says goes out by OUT, a device of the network namespace PROXY: the throttler believes a segment in its own
direction alone. Frames are made before the clock starts.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from mptcp_lab.testbed.node import entered
from mptcp_throttler.mptcp.keys import join_ack_hmac, join_syn_ack_hmac, token
from mptcp_throttler.shaping.model import Ownership

PORT = Ownership().listen_ports[0]
PROXY = bytes([10, 77, 8, 2])
LIFETIME = 0.5
"""Seconds from the opening of a connection to its end."""
CLIENT_ISN, PROXY_ISN = 1000, 5000
_FIN_ACK, _SYN, _SYN_ACK, _ACK = 0x11, 0x02, 0x12, 0x10
_ETHERNET = bytes(12) + b"\x08\x00"


Frame = tuple[bool, bytes]
"""Whether the client sends it, and the frame."""


def frame(client: bytes, port: int, to_proxy: bool, flags: int, option: bytes = b"") -> Frame:
    """Return an Ethernet frame with a TCP segment; checksums are zero, as on a NIC that would fill them in."""
    option += b"\x01" * (-len(option) % 4)
    source, destination = (client, PROXY) if to_proxy else (PROXY, client)
    ports = (port, PORT) if to_proxy else (PORT, port)
    number = CLIENT_ISN if to_proxy else PROXY_ISN
    answered = (PROXY_ISN if to_proxy else CLIENT_ISN) + 1 if flags & _ACK else 0
    sequence = number if flags & _SYN else number + 1
    tcp = struct.pack("!HHIIBBHHH", *ports, sequence, answered, (20 + len(option)) << 2, flags, 65535, 0, 0) + option
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + source + destination
    return to_proxy, _ETHERNET + ip + tcp


def connection(number: int, draw: random.Random) -> tuple[list[Frame], list[Frame]]:
    """Return the frames that open connection *number* and those that close it."""
    first, second = (bytes([10, net, number >> 8 & 255, number & 255]) for net in (81, 82))
    port = 20000 + (number >> 16)
    key_a, key_b = draw.randbytes(8), draw.randbytes(8)
    nonce_a, nonce_b = draw.randbytes(4), draw.randbytes(4)
    join = struct.pack("!BBBBI", 30, 12, 0x10, 2, token(key_b)) + nonce_a
    join_answer = struct.pack("!BBBB", 30, 16, 0x10, 0) + join_syn_ack_hmac(key_a, key_b, nonce_a, nonce_b) + nonce_b
    join_proof = struct.pack("!BBBB", 30, 24, 0x10, 0) + join_ack_hmac(key_a, key_b, nonce_a, nonce_b)
    capable = (b"\x1e\x04\x01\x01", b"\x1e\x0c\x01\x01" + key_b, b"\x1e\x14\x01\x01" + key_a + key_b)
    opening = [
        frame(first, port, True, _SYN, capable[0]),
        frame(first, port, False, _SYN_ACK, capable[1]),
        frame(first, port, True, _ACK, capable[2]),
        frame(second, port, True, _SYN, join),
        frame(second, port, False, _SYN_ACK, join_answer),
        frame(second, port, True, _ACK, join_proof),
    ]
    closing = [frame(client, port, way, _FIN_ACK) for client in (first, second) for way in (True, False)]
    return opening, closing


def schedule(rate: int, seconds: int, seed: int) -> Iterator[tuple[float, list[Frame]]]:
    """Yield when to send, in seconds from the start, and what."""
    draw = random.Random(seed)
    moments = []
    for number in range(rate * seconds):
        opening, closing = connection(number, draw)
        moments += [(number / rate, opening), (number / rate + LIFETIME, closing)]
    yield from sorted(moments, key=lambda moment: moment[0])


def main(device: str, proxy: str, out: str, rate: int, seconds: int, seed: int, report: Path) -> None:
    moments = list(schedule(rate, seconds, seed))
    with ExitStack() as stack:
        wires = {True: stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))}
        wires[True].bind((device, 0))
        with entered(proxy):
            wires[False] = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            wires[False].bind((out, 0))
        started = time.monotonic()
        for moment, frames in moments:
            ahead = started + moment - time.monotonic()
            if ahead > 0.001:
                time.sleep(ahead)
            for to_proxy, data in frames:
                wires[to_proxy].send(data)
        took = time.monotonic() - started
    report.write_text(json.dumps({"connections": rate * seconds, "seconds": took - LIFETIME}))


if __name__ == "__main__":
    words = sys.argv
    main(words[1], words[2], words[3], int(words[4]), int(words[5]), int(words[6]), Path(words[7]))
