# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for turning capture files, made by Scapy, into segments."""

from __future__ import annotations

from contextlib import suppress
from io import BytesIO
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mptcp_capture import IPV4
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapWriter

from mptcp_bench.wire.capture import drained, dropped
from mptcp_bench.wire.packets import CaptureError, Packet, read_capture
from mptcp_throttler.mptcp.options import MpCapable

ETHERNET = 1
START = 1_700_000_000
LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
"""Both addresses are given, because Scapy would otherwise ask the network for them."""
ADDRESSES = {4: ("10.77.1.2", "10.77.8.2"), 6: ("fd77:1::2", "fd77:8::2")}


def capture(*frames: tuple[int, bytes], link_type: int = ETHERNET, snapshot: int = 65535, nano: bool = True) -> bytes:
    """Return a pcap file of *frames*, each with its time in nanoseconds after START."""
    file = BytesIO()
    writer = RawPcapWriter(file, linktype=link_type, nano=nano)
    writer.write_header(b"")
    for time, frame in frames:
        within = time if nano else time // 1000
        kept = frame[:snapshot]
        writer.write_packet(kept, sec=START, usec=within, caplen=len(kept), wirelen=len(frame))
    return file.getvalue()


def frame(payload: bytes = b"", *, family: int = 4, **fields: object) -> bytes:
    source, destination = ADDRESSES[family]
    ip = IP(src=source, dst=destination) if family == 4 else IPv6(src=source, dst=destination)
    return bytes(LINK / ip / TCP(sport=40_000, dport=3128, **fields) / payload)


@pytest.mark.parametrize("family", [4, 6])
@given(
    payload=st.binary(max_size=1400),
    snapshot=st.integers(150, 1600),
    padding=st.binary(max_size=6),
    sequence=st.integers(0, (1 << 32) - 1),
    time=st.integers(0, 999_999_999),
)
def test_length_on_the_wire_is_read_whatever_was_captured(
    family: int, payload: bytes, snapshot: int, padding: bytes, sequence: int, time: int
) -> None:
    sent = frame(payload, family=family, seq=sequence, flags="A")
    headers = len(sent) - len(payload)
    (got,) = read_capture(capture((time, sent + padding), snapshot=snapshot))
    source, destination = (ip_address(text).packed for text in ADDRESSES[family])
    kept = payload[: snapshot - headers]
    assert got == Packet(
        START * 10**9 + time, source, 40_000, destination, 3128, 0x10, sequence, 0, (), len(payload), kept
    )


def test_options_are_read() -> None:
    syn = frame(flags="S", options=[("MSS", 1460), (30, bytes.fromhex("0101"))])
    (got,) = read_capture(capture((0, syn)))
    assert got.options == (MpCapable(1, 1),)


def test_microseconds_are_read_too() -> None:
    (got,) = read_capture(capture((5_000, frame()), nano=False))
    assert got.time == START * 10**9 + 5_000


@pytest.mark.parametrize(
    ("link_type", "header"), [(101, b""), (113, bytes(14) + b"\x08\x00"), (ETHERNET, bytes(12) + b"\x08\x00")]
)
def test_link_types(link_type: int, header: bytes) -> None:
    packet = frame(b"abc")[14:]
    (got,) = read_capture(capture((0, header + packet), link_type=link_type))
    assert got.payload == b"abc"


def test_what_is_not_a_whole_tcp_header_is_passed_over() -> None:
    udp = bytes(LINK / IP() / UDP() / b"abc")
    fragment = bytes(LINK / IP(frag=3) / TCP())
    first_fragment = bytes(LINK / IP(flags="MF") / TCP() / b"abc")
    other = bytes(12) + b"\x08\x06" + bytes(40)
    short = frame(flags="S")[:40]
    found = read_capture(capture(*enumerate([udp, fragment, first_fragment, other, short, frame(b"last")])))
    assert [packet.payload for packet in found] == [b"abc", b"last"]


def test_a_real_connection() -> None:
    found = list(read_capture(capture(*((round(time * 1e9), sent) for time, device, sent in IPV4 if device == "v0"))))
    assert found[0].options == (MpCapable(1, 1),)
    assert b"".join(packet.payload for packet in found if packet.destination_port == 3128) == b"hello"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is no capture file"),
        (b"\x1f\x8b\x08\x00abcdefgh", "is no capture file"),
        (bytes.fromhex("0a0d0d0a") + bytes(40), "is no capture file"),
        (capture()[:20], "is no capture file"),
        (capture((0, frame(b"abc")), link_type=127), "link type 127"),
        (capture((0, frame(b"abc")))[:-1], "ends in the middle of a packet"),
    ],
)
def test_what_is_wrong_with_a_file_is_reported(data: bytes, said: str) -> None:
    with pytest.raises(CaptureError, match=said) as error:
        list(read_capture(data, "wan0"))
    assert str(error.value).startswith("wan0: ")
    assert "\n" not in str(error.value)


MAGIC = st.sampled_from([bytes.fromhex(text) for text in ("a1b2c3d4", "d4c3b2a1", "a1b23c4d", "4d3cb2a1")])


@given(MAGIC | st.just(b""), st.binary(max_size=300))
def test_arbitrary_bytes_raise_nothing_else(magic: bytes, rest: bytes) -> None:
    with suppress(CaptureError):
        list(read_capture(magic + rest))


@given(st.sampled_from([1, 12, 101, 113, 228]), st.lists(st.binary(max_size=120), max_size=4))
def test_arbitrary_frames_raise_nothing(link_type: int, frames: list[bytes]) -> None:
    for packet in read_capture(capture(*enumerate(frames), link_type=link_type)):
        assert 0 <= len(packet.payload) <= packet.length


@given(st.data())
def test_a_damaged_capture_raises_nothing_else(data: st.DataObject) -> None:
    whole = bytearray(capture((0, frame(b"abc", flags="S", options=[(30, bytes.fromhex("0101"))]))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CaptureError):
        list(read_capture(bytes(whole)))


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("listening on wan0\n12 packets captured\n12 packets received by filter\n0 packets dropped by kernel\n", 0),
        ("1 packet captured\n3 packets received by filter\n1 packet dropped by kernel\n", 1),
        ("9 packets captured\n2 packets dropped by kernel\n3 packets dropped by interface\n", 5),
        ("tcpdump: wan0: No such device exists\n", None),
        ("9 packets captured\n", None),
    ],
)
def test_packets_lost_are_read_from_what_tcpdump_said(said: str, lost: int | None) -> None:
    assert dropped(said) == lost


def progress(captured: int, received: int, lost: int = 0) -> str:
    return (
        f"tcpdump: {captured} packet{'s' * (captured != 1)} captured, "
        f"{received} packet{'s' * (received != 1)} received by filter, "
        f"{lost} packet{'s' * (lost != 1)} dropped by kernel\n"
    )


@pytest.mark.parametrize(
    ("said", "has_all"),
    [
        ([], False),
        ([(0, 0)], True),
        ([(1, 3)], False),
        ([(1, 3), (2, 4)], False),
        ([(1, 3), (3, 4)], True),
        ([(1, 3), (2, 3, 1)], True),
    ],
)
def test_it_is_read_whether_tcpdump_has_what_the_kernel_held(said: list[tuple[int, ...]], has_all: bool) -> None:
    """Packets that came after the first question are not waited for, and dropped ones never come."""
    assert drained("listening on wan0\n" + "".join(progress(*each) for each in said)) is has_all
