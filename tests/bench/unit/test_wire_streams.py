# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for turning segments into connections and the bytes of their streams."""

from __future__ import annotations

from dataclasses import replace

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

from mptcp_bench.wire.packets import SYN, Packet
from mptcp_bench.wire.streams import Connection, Leg, Stream, follow
from mptcp_throttler.mptcp.options import AddAddr, Dss, MpCapable

segments = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=30)


def connections(*talks: Talk, leg: Leg | None = None) -> list[Connection]:
    leg = leg or Leg(PROXY_PORT)
    follow([packet for talk in talks for packet in talk.packets], leg)
    return leg.connections


@given(segments)
def test_a_stream_knows_when_each_byte_was_first_seen(sent: list[tuple[int, int]]) -> None:
    stream = Stream()
    first: dict[int, float] = {}
    for time, (start, length) in enumerate(sent):
        stream.add(start, start + length, time)
        for offset in range(start, start + length):
            first.setdefault(offset, time)
    total = max(first, default=-1) + 1
    assert stream.total == total
    assert stream.whole is (len(first) == total)
    assert [stream.seen(offset) for offset in range(80)] == [first.get(offset) for offset in range(80)]
    for piece in stream.pieces:
        assert {first[offset] for offset in range(piece.start, piece.end)} == {piece.time}
    if stream.whole:
        assert [stream.arrived(offset) for offset in range(total)] == [
            max(first[before] for before in range(offset + 1)) for offset in range(total)
        ]


def test_a_plain_connection_across_the_end_of_the_sequence_numbers() -> None:
    talk = client_talk().open(10, 20, 30)
    talk.up(40, 1, b"GET / HTTP/1.1\r\n\r\n" + bytes(400))
    talk.down(50, 1, bytes(300))
    talk.down(60, 301, bytes(10))
    talk.down(70, 301, bytes(10))  # a retransmission
    (got,) = connections(talk)
    assert (got.syn, got.syn_ack, got.ack) == (10, 20, 30)
    assert not got.asked
    assert not got.multipath
    assert (got.up.total, got.up.seen(417)) == (418, 40)
    assert (got.down.total, got.down.seen(305), got.down.whole) == (310, 60, True)
    assert got.head.startswith(b"GET /")


@pytest.mark.parametrize("octets", [4, 8])
def test_bytes_of_two_subflows_are_one_stream(octets: int) -> None:
    first, second = client_talk().open_mptcp(10, 20, 30), client_talk(40_001, CLIENT_WIFI).join(31, 32, 33)
    first.up(40, 1, b"request", MpCapable(1, 1, CLIENT_KEY, PROXY_KEY, 7))
    second.down(50, 1, bytes(100), dss(PROXY_KEY, 1000, 1, 200, octets=octets))
    first.down(51, 1, bytes(1000), dss(PROXY_KEY, 0, 1, 1000, octets=octets))
    second.down(52, 101, bytes(100))  # covered by the mapping of the previous segment
    first.down(60, 1001, bytes(100), dss(PROXY_KEY, 1100, 1001, 100, octets=octets))  # reinjected
    (got,) = connections(first, second)
    assert (got.asked, got.multipath, got.fallen, got.subflows) == (True, True, False, 2)
    assert got.head == b"request"
    assert (got.up.total, got.up.seen(6)) == (7, 40)
    assert [(p.start, p.end, p.time) for p in got.down.pieces] == [(0, 1000, 51), (1000, 1100, 50), (1100, 1200, 52)]
    assert got.down.arrived(1050) == 51


def test_a_data_fin_and_other_options_carry_no_bytes() -> None:
    talk = client_talk().open_mptcp(10, 20, 30)
    talk.down(40, 1, b"", AddAddr(1, False, 3, bytes(4), None, bytes(8)))
    talk.down(50, 1, b"x", dss(PROXY_KEY, 0, 1, 1))
    talk.down(60, 2, b"", replace(dss(PROXY_KEY, 1, 0, 1), data_fin=True))
    (got,) = connections(talk)
    assert (got.down.total, got.fallen) == (1, False)


def test_an_answer_without_the_option_is_plain_tcp() -> None:
    talk = client_talk()
    talk.up(10, 0, b"", MpCapable(1, 1), flags=SYN)
    talk.down(20, 0, flags=SYN | 0x10)
    talk.up(30, 1, b"abc")
    (got,) = connections(talk)
    assert (got.asked, got.multipath, got.up.total) == (True, False, 3)


@pytest.mark.parametrize(
    "option", [(), (Dss(False, None, 0, 1, 8, 1, 0, None),)], ids=["no mapping", "infinite mapping"]
)
def test_a_fallback_in_mid_transfer_is_noticed(option: tuple[Dss, ...]) -> None:
    talk = client_talk().open_mptcp(10, 20, 30)
    talk.down(40, 1, b"abc", *option)
    (got,) = connections(talk)
    assert got.multipath
    assert got.fallen


def test_a_repeated_syn_counts_once_and_a_port_that_is_used_again_is_a_new_connection() -> None:
    talk = client_talk()
    talk.up(5, 0, flags=SYN)
    talk.open(10, 20, 30)
    again = replace(client_talk(), client_isn=12345).open(100, 110, 120)
    again.up(130, 1, b"abc")
    one, two = connections(talk, again)
    assert (one.syn, one.up.total) == (5, 0)
    assert (two.syn, two.up.total) == (100, 3)


def test_keep_alive_probes_are_no_data() -> None:
    talk = client_talk().open(10, 20, 30)
    talk.up(40, 0, b"\0")
    (got,) = connections(talk)
    assert got.up.total == 0


def test_each_leg_takes_its_own() -> None:
    legs = Leg(PROXY_PORT), Leg(ORIGIN_PORT, ORIGIN)
    stranger = Talk((b"\x0a\x4d\x08\x02", 1), (b"\x0a\x4d\x09\x03", ORIGIN_PORT)).open(1, 2, 3)
    talks = client_talk().open(10, 20, 30), origin_talk().open(40, 50, 60), stranger
    follow([packet for talk in talks for packet in talk.packets], *legs)
    assert [[c.syn for c in leg.connections] for leg in legs] == [[10], [40]]


def test_what_began_before_the_capture_is_passed_over() -> None:
    talk = client_talk()
    talk.up(10, 500, b"abc")
    talk.down(11, 500, b"abc")
    assert connections(talk, client_talk(40_001, CLIENT_WIFI).join(20, 21, 22)) == []


packets = st.builds(
    Packet,
    time=st.integers(0, 50),
    source=st.just(b"\x0a\0\0\1"),
    source_port=st.sampled_from([1, PROXY_PORT]),
    destination=st.just(b"\x0a\0\0\1"),
    destination_port=st.sampled_from([1, PROXY_PORT]),
    flags=st.integers(0, 255),
    sequence=st.integers(0, 40) | st.integers(0, (1 << 32) - 1),
    acknowledgment=st.just(0),
    options=st.lists(
        st.sampled_from(
            [
                MpCapable(1, 1),
                MpCapable(1, 1, PROXY_KEY),
                MpCapable(1, 1, CLIENT_KEY, PROXY_KEY, 5),
                Dss(False, None, 0, 9, 4, 1, 5, None),
                Dss(False, None, 0, 9, 8, 1, 0, None),
                dss(PROXY_KEY, 3, 1, 20),
            ]
        ),
        max_size=2,
    ).map(tuple),
    length=st.integers(0, 30),
    payload=st.just(b""),
)


@given(st.lists(packets, max_size=25))
def test_arbitrary_segments_raise_nothing(sent: list[Packet]) -> None:
    leg = Leg(PROXY_PORT)
    follow(sent, leg)
    for connection in leg.connections:
        for stream in connection.streams:
            assert sum(piece.end - piece.start for piece in stream.pieces) <= stream.total
