# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for captures on both sides of a proxy: segments, connections, and each segment's time in the proxy.

Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paper_conversion_dialogue import (
    CLIENT_KEY,
    CLIENT_WIFI,
    ORIGIN,
    ORIGIN_PORT,
    PROXY_KEY,
    PROXY_PORT,
    Talk,
    client_talk,
    dss,
    origin_talk,
)

from mptcp_bench.wire.capture import dropped
from mptcp_bench.wire.exchanges import Body, Exchange, exchanges
from mptcp_bench.wire.packets import SYN, CaptureError, read_capture
from mptcp_bench.wire.streams import Connection, Leg, Stream, follow
from mptcp_throttler.mptcp.options import Dss, MpCapable


def connections(*talks: Talk) -> list[Connection]:
    leg = Leg(PROXY_PORT)
    follow([packet for talk in talks for packet in talk.packets], leg)
    return leg.connections


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=30))
def test_stream_knows_when_each_byte_was_first_seen(segments: list[tuple[int, int]]) -> None:
    stream = Stream()
    first: dict[int, int] = {}
    ends = []
    for time, (start, length) in enumerate(segments):
        stream.add(start, start + length, time)
        if start + length - 1 not in first:
            ends.append(start + length)
        for offset in range(start, start + length):
            first.setdefault(offset, time)
    total = max(first, default=-1) + 1
    assert stream.total == total
    assert stream.ends(0) == sorted(ends)
    assert {offset: stream.seen(offset) for offset in first} == first
    gaps = sorted(set(range(total + 1)) - first.keys())
    for offset in gaps:
        with pytest.raises(CaptureError, match=f"byte {offset} is missing"):
            stream.seen(offset)
    if gaps == [total]:
        assert [stream.arrived(offset) for offset in range(total)] == [
            max(first[before] for before in range(offset + 1)) for offset in range(total)
        ]
    else:
        with pytest.raises(CaptureError, match=f"byte {gaps[0]} is missing"):
            stream.arrived(total - 1)


def test_repeated_syn_counts_once_and_a_reused_port_is_a_new_connection() -> None:
    talk = client_talk()
    talk.up(5, 0, flags=SYN)
    talk.open(10, 20, 30)
    reused = replace(client_talk(), client_isn=12345).open(100, 110, 120)
    reused.up(130, 1, b"abc")
    reused.up(140, 1, b"abc")  # a retransmission
    first, second = connections(talk, reused)
    assert (first.syn, first.syn_ack, first.ack, first.up.total) == (5, 20, 30, 0)
    assert (second.syn, second.multipath, second.up.total, second.up.seen(2)) == (100, False, 3, 130)


TARGET = "/1000.bin?a-1"
REQUEST = f"GET http://10.77.9.2{TARGET} HTTP/1.1\r\nHost: 10.77.9.2\r\n\r\n".encode()
RELAYED = f"GET {TARGET} HTTP/1.1\r\nHost: 10.77.9.2\r\nVia: 1.1 mptcpproxy\r\n\r\n".encode()


def measured(*talks: Talk, bodies: dict[str, Body] | None = None) -> tuple[Exchange, ...]:
    legs = Leg(PROXY_PORT), Leg(ORIGIN_PORT, ORIGIN)
    follow([packet for talk in talks for packet in talk.packets], *legs)
    return exchanges(legs[0].connections, legs[1].connections, bodies or {TARGET: Body(0, 1000)})


def client_side(request: bytes = REQUEST, *, key: bytes = PROXY_KEY, number: int = 0) -> Talk:
    """Return a client connection with SYN 1000, SYN/ACK 1010, ACK 1040, and a request at 1100 (microseconds)."""
    talk = client_talk(40_000 + 2 * number).open_mptcp(1_000_000, 1_010_000, 1_040_000, key)
    talk.up(1_100_000, 1, request, MpCapable(1, 1, CLIENT_KEY, key, len(request)))
    return talk


def origin_side(request: bytes = RELAYED, *, number: int = 0) -> Talk:
    """Return an origin connection with SYN 1500, SYN/ACK 1700, ACK 1701, and a request at 1750 (microseconds)."""
    talk = origin_talk(50_000 + number).open(1_500_000, 1_700_000, 1_701_000)
    talk.up(1_750_000, 1, request)
    return talk


def both_sides(number: int = 0) -> tuple[Talk, Talk, Talk]:
    """Return an exchange whose response has 200 bytes of header from the origin, and 300 to the client."""
    key = bytes([number]) * 8
    label = b"a-%d" % (number + 1)
    client = client_side(REQUEST.replace(b"a-1", label), key=key, number=number)
    wifi = client_talk(40_001 + 2 * number, CLIENT_WIFI).join(1_200_000, 1_210_000, 1_300_000, key)
    origin = origin_side(RELAYED.replace(b"a-1", label), number=number)
    origin.down(2_000_000, 1, bytes(700))  # header and 500 bytes of the body
    origin.down(2_100_000, 701, bytes(500))
    client.down(2_250_000, 1, bytes(300), dss(key, 0, 1, 300))  # only the header
    wifi.down(2_400_000, 1, bytes(250), dss(key, 300, 1, 500, octets=4))
    wifi.down(2_400_000, 251, bytes(250))  # covered by the mapping of the previous segment
    client.down(2_900_000, 301, bytes(500), dss(key, 800, 301, 500))
    wifi.down(3_300_000, 501, bytes(500), dss(key, 800, 501, 500))  # reinjected
    return client, wifi, origin


def test_intervals_are_measured_from_segment_to_segment() -> None:
    (got,) = measured(*both_sides())
    assert (got.target, got.multipath, got.origin_requested, got.subflows) == (TARGET, True, False, 2)
    times = {f.name: getattr(got, f.name) for f in fields(got) if isinstance(getattr(got, f.name), float)}
    assert {name: round(seconds * 1e6) for name, seconds in times.items()} == {
        "answer": 10,
        "syn": 460,
        "syn_whole": 500,
        "syn_own": 400,
        "request": 650,
    }
    assert got.up == ()
    assert got.down == pytest.approx((400e-6, 800e-6))


def test_delay_of_uploaded_bytes_begins_when_all_bytes_before_have_arrived() -> None:
    head = b"POST http://10.77.9.2/1000.bin?a-1 HTTP/1.1\r\n\r\n"
    relayed = b"POST /1000.bin?a-1 HTTP/1.1\r\nVia: x\r\n\r\n"
    client, origin = client_side(head), origin_side(relayed)
    size = len(head)
    client.up(1_200_000, 1 + size, bytes(100), dss(CLIENT_KEY, size, 1 + size, 100))
    client.up(1_400_000, 201 + size, bytes(50), dss(CLIENT_KEY, size + 200, 201 + size, 50))
    # retransmission of lost data
    client.up(1_600_000, 101 + size, bytes(100), dss(CLIENT_KEY, size + 100, 101 + size, 100))
    origin.up(1_800_000, 1 + len(relayed), bytes(250))
    origin.down(1_900_000, 1, bytes(20))
    client.down(1_950_000, 1, bytes(30), dss(PROXY_KEY, 0, 1, 30))
    (got,) = measured(client, origin, bodies={TARGET: Body(250, 0)})
    # Bytes after a gap cannot be read before the gap is filled.
    assert got.up == pytest.approx((600e-6, 200e-6, 200e-6))
    assert got.request == pytest.approx(650e-6)


def test_exchanges_at_the_same_time_are_distinguished_by_their_targets() -> None:
    bodies = {f"/1000.bin?a-{number}": Body(0, 1000) for number in (3, 1, 2)}
    talks = [talk for number in range(4) for talk in both_sides(number)]
    got = measured(*talks, bodies=bodies)
    (single,) = measured(*both_sides())
    assert got == tuple(replace(single, target=name) for name in bodies)


Spoil = Callable[[Talk, Talk, Talk], Sequence[Talk]]


def _requested_twice(client: Talk, wifi: Talk, origin: Talk) -> Sequence[Talk]:
    second = origin_talk(50_001).open(5_000_000, 5_000_001, 5_000_002)
    second.up(5_000_003, 1, RELAYED)
    return client, wifi, origin, second


def _reused(client: Talk, wifi: Talk, origin: Talk) -> Sequence[Talk]:
    first = b"GET /1000.bin?a-0 HTTP/1.1\r\n\r\n"
    talk = origin_side(first)
    talk.up(1_760_000, 1 + len(first), RELAYED)
    return client, wifi, talk


def _gap(client: Talk, wifi: Talk, origin: Talk) -> Sequence[Talk]:
    origin.packets = [packet for packet in origin.packets if packet.length != 700]
    return client, wifi, origin


def _falls_back(*options: Dss) -> Spoil:
    def spoil(client: Talk, wifi: Talk, origin: Talk) -> Sequence[Talk]:
        client.down(4_000_000, 801, b"x", *options)
        return client, wifi, origin

    return spoil


def _early(client: Talk, wifi: Talk, origin: Talk) -> Sequence[Talk]:
    wifi.packets = [replace(p, time=p.time - 1_000_000) if p.length else p for p in wifi.packets]
    return client, wifi, origin


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda client, wifi, _: (client, wifi), "1 of 1 requests, such as .*, open no connection of their own"),
        (_requested_twice, "on two connections with the origin"),
        (_reused, "open no connection of their own with the origin"),
        (_gap, "gaps"),
        (_falls_back(), "fell back"),
        (_falls_back(Dss(False, None, 1, 8, 1, 0)), "fell back"),
        (_early, "was sent 0.0006.* s before it arrived"),
    ],
)
def test_exchange_that_is_not_a_data_point_is_refused(spoil: Spoil, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as error:
        measured(*spoil(*both_sides()))
    assert "\n" not in str(error.value)


def test_capture_that_cannot_be_read_is_reported_in_one_line() -> None:
    with pytest.raises(CaptureError, match=r"^wan0: .*not a pcap or") as error:
        list(read_capture(b"\x1f\x8b\x08\x00abcdefgh", "wan0"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("output", "lost"),
    [
        ("listening on wan0\n12 packets captured\n12 packets received by filter\n0 packets dropped by kernel\n", 0),
        ("9 packets captured\n2 packets dropped by kernel\n3 packets dropped by interface\n", 5),
        ("tcpdump: wan0: No such device exists\n", None),
    ],
)
def test_lost_packets_are_read_from_the_output_of_tcpdump(output: str, lost: int | None) -> None:
    assert dropped(output) == lost
