"""What replay does not read of a capture, it names."""

from __future__ import annotations

import struct

import pytest
from capture_files import (
    BOTH,
    COOKED,
    COOKED_2,
    ETHERNET,
    LABORATORY,
    RAW,
    START,
    Frame,
    cooked,
    cooked_2,
    pcap,
    tagged,
)
from hypothesis import given
from hypothesis import strategies as st
from replaying import Run

from mptcp_throttler.mptcp.captured import Captured, Unread, ether_type, read_record

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


# EtherTypes


def in_pppoe(frame: bytes) -> bytes:
    protocol = b"\x00\x21" if frame[12:14] == b"\x08\x00" else b"\x00\x57"
    length = (len(frame) - 14 + 2).to_bytes(2, "big")
    return frame[:12] + b"\x88\x64\x11\x00\x00\x01" + length + protocol + frame[14:]


def of_type(number: int, rest: bytes = bytes(60)) -> bytes:
    return bytes(12) + number.to_bytes(2, "big") + rest


PPPOE = {
    "Ethernet": pcap(BOTH, wrap=in_pppoe),
    "802.1Q": pcap(BOTH, wrap=lambda frame: tagged(0x8100)(in_pppoe(frame))),
    "cooked v1": pcap(BOTH, COOKED, lambda frame: cooked(in_pppoe(frame))),
    "cooked v2": pcap(BOTH, COOKED_2, lambda frame: cooked_2(in_pppoe(frame))),
}


@pytest.mark.parametrize("kind", PPPOE)
def test_packets_of_an_ether_type_that_is_not_read_are_told(replay: Run, kind: str) -> None:
    """Defect: it was said that nothing went to or from port 3128, and that another one could be given."""
    code, out, err = replay(PPPOE[kind], "--interface", "v0")
    assert code == 1, "nothing of it was read"
    assert "0 segments" in out
    assert err == (
        "note: 22 packets of EtherType 0x8864 (PPPoE) not read, whatever is in them; "
        "capture on the interface on which they are IP\n"
        "note: no segment to or from port 3128 in what was read\n"
    )


def test_they_are_told_beside_what_is_read(replay: Run) -> None:
    others = [(START, "v0", of_type(each)) for each in (0x88E5, 0x8847, 0x8847, 0x1234)]
    _, expected, _ = replay(pcap(BOTH), "--interface", "v0")
    code, out, err = replay(pcap([*others, *BOTH]), "--interface", "v0")
    assert (code, out) == (0, expected)
    assert err.startswith(
        "note: 4 packets of EtherType 0x1234, 0x8847 (MPLS), 0x88e5 (MACsec) not read, whatever is in them"
    )
    assert "port" not in err
    many = [(START, "v0", of_type(each)) for each in range(0x7000, 0x7100)]
    _, _, err = replay(pcap([*many, *BOTH]), "--interface", "v0")
    assert err.startswith("note: 256 packets of EtherType 0x7000")
    assert err.count("0x70") == 10


@pytest.mark.parametrize("number", [0x0806, 0x88CC, 0x8863, 0x0800, 0x86DD, 0x05FF, 0x0004])
def test_what_never_has_ip_in_it_is_not_worth_a_word(replay: Run, number: int) -> None:
    code, _, err = replay(pcap([(START, "v0", of_type(number))]), "--interface", "v0")
    assert code == 0
    assert err == "note: no segment to or from port 3128; another one is given by --port\n"


def test_more_tags_than_are_read_are_told_by_that_of_a_tag() -> None:
    for tags, found in ((4, Captured), (5, Unread)):
        frame = tagged(*[0x8100] * tags)(BOTH[0][2])
        assert isinstance(read_record(frame, len(frame), ETHERNET, (3128,), 1.0, ""), found)
    assert read_record(frame, len(frame), ETHERNET, (3128,), 1.0, "") is Unread.ETHER_TYPE
    assert ether_type(frame, ETHERNET) == 0x8100


@given(st.binary(max_size=60), st.sampled_from([ETHERNET, COOKED, COOKED_2]))
def test_nothing_raises(record: bytes, link_type: int) -> None:
    assert 0 <= ether_type(record, link_type) < 1 << 16
    assert read_record(record, 60, link_type, (3128,), 1.0, "") is not None
