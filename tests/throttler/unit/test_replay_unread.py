"""What replay does not read of a capture, it names."""

from __future__ import annotations

import struct

import pytest
from capture_files import ETHERNET, LABORATORY, RAW, Frame, pcap
from replaying import Run

from mptcp_throttler.mptcp.captured import Captured, Unread, read_record

# Fragments


def in_fragments(frame: bytes) -> list[bytes]:
    """Return an Ethernet frame of IPv4 as two fragments: 32 bytes behind TCP's header, and the rest."""
    total = int.from_bytes(frame[16:18], "big")
    first = 20 + (frame[46] >> 4 << 2) + 32

    def fragment(length: int, offset: int, rest: bytes) -> bytes:
        return frame[:16] + struct.pack("!HHH", length, 1, offset) + frame[22:34] + rest

    return [
        fragment(first, 0x2000, frame[34 : 14 + first]),
        fragment(20 + total - first, (first - 20) // 8, bytes(total - first)),
    ]


def test_later_fragments_are_counted_and_their_data_with_what_follows(replay: Run) -> None:
    """Defect: nobody was told of them, and their bytes were nowhere."""
    data = [number for number, (_, _, frame) in enumerate(LABORATORY) if frame[16:18] > b"\x04\x00"]
    assert len(data) > 4
    frames: list[Frame] = []
    for number, (time, interface, frame) in enumerate(LABORATORY):
        parts = in_fragments(frame) if number in data[:-1] else [frame]
        frames += [(time, interface, part) for part in parts]
    _, expected, _ = replay(pcap(LABORATORY))
    code, out, err = replay(pcap(frames))
    assert (code, out) == (0, expected)
    assert "30.0 KB down" in out
    assert err.startswith(
        f"note: {len(data) - 1} later fragments of TCP segments not read, for only the first has ports"
    )


def ipv4(offset: int, protocol: int = 6) -> bytes:
    return struct.pack("!BBHHHBBH8s", 0x45, 0, 60, 1, offset, 64, protocol, 0, bytes(8)) + bytes(40)


def ipv6(*headers: bytes, first: int) -> bytes:
    body = b"".join(headers) + bytes(40)
    return struct.pack("!IHBB", 6 << 28, len(body), first, 64) + bytes(32) + body


def fragment_header(following: int, offset: int) -> bytes:
    return struct.pack("!BBHI", following, 0, offset << 3, 1)


ROUTING = bytes([44, 0]) + bytes(6)
AUTHENTICATION = bytes([44, 4]) + bytes(22)


@pytest.mark.parametrize(
    ("packet", "found"),
    [
        (ipv4(1), Unread.FRAGMENT),
        (ipv4(0x2000 + 256), Unread.FRAGMENT),
        (ipv4(1, protocol=17), Unread.OTHER),
        (ipv6(fragment_header(6, 1), first=44), Unread.FRAGMENT),
        (ipv6(fragment_header(6, 32), first=44), Unread.FRAGMENT),
        (ipv6(ROUTING, fragment_header(6, 1), first=43), Unread.FRAGMENT),
        (ipv6(AUTHENTICATION, fragment_header(6, 1), first=51), Unread.FRAGMENT),
        (ipv6(fragment_header(17, 1), first=44), Unread.OTHER),
        (ipv6(fragment_header(17, 0), first=44), Unread.OTHER),
        (ipv6(first=17), Unread.OTHER),
    ],
)
def test_a_fragment_is_one_of_tcp_and_not_the_first(packet: bytes, found: Unread) -> None:
    assert read_record(packet, len(packet), RAW, (3128,), 1.0, "") is found
    for size in range(len(packet)):
        cut = read_record(packet[:size], len(packet), RAW, (3128,), 1.0, "")
        assert cut in (found, Unread.CUT)


def test_the_first_fragment_is_read() -> None:
    frame = in_fragments(next(frame for _, _, frame in LABORATORY if frame[16:18] > b"\x04\x00"))[0]
    found = read_record(frame, len(frame), ETHERNET, (3128,), 1.0, "")
    assert isinstance(found, Captured)
    assert found.payload == 32
