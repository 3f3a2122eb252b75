# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for turning connections of both sides into intervals: how long each segment took through the proxy."""

from __future__ import annotations

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

from mptcp_bench.wire.exchanges import Body, Exchange, exchanges, target
from mptcp_bench.wire.packets import CaptureError
from mptcp_bench.wire.streams import Leg, follow
from mptcp_throttler.mptcp.options import MpCapable

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
    own = b"a-%d" % (number + 1)
    client = client_side(REQUEST.replace(b"a-1", own), key=key, number=number)
    wifi = client_talk(40_001 + 2 * number, CLIENT_WIFI).join(1_200_000, 1_210_000, 1_300_000, key)
    origin = origin_side(RELAYED.replace(b"a-1", own), number=number)
    origin.down(2_000_000, 1, bytes(700))  # header and 500 bytes of the body
    origin.down(2_100_000, 701, bytes(500))
    client.down(2_250_000, 1, bytes(300), dss(key, 0, 1, 300))  # only the header
    wifi.down(2_400_000, 1, bytes(500), dss(key, 300, 1, 500))
    client.down(2_900_000, 301, bytes(500), dss(key, 800, 301, 500))
    wifi.down(3_300_000, 501, bytes(500), dss(key, 800, 501, 500))  # reinjected
    return client, wifi, origin


def test_intervals() -> None:
    (got,) = measured(*both_sides())
    assert (got.target, got.multipath, got.origin_asked, got.subflows) == (TARGET, True, False, 2)
    times = {f.name: getattr(got, f.name) for f in fields(got) if isinstance(getattr(got, f.name), float)}
    assert {name: round(seconds * 1e6) for name, seconds in times.items()} == {
        "handshake": 40,
        "answer": 10,
        "request_wait": 60,
        "syn": 460,
        "syn_whole": 500,
        "syn_own": 400,
        "request": 650,
        "request_own": 450,
        "response": 250,
    }
    assert got.up == ()
    assert got.down == pytest.approx((400e-6, 800e-6))


def test_content_that_goes_up() -> None:
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
    # Bytes behind a gap cannot be read before the gap is filled.
    assert got.up == pytest.approx((600e-6, 200e-6, 200e-6))
    assert got.request == pytest.approx(650e-6)


def test_several_at_once_are_distinguished_by_their_targets() -> None:
    bodies = {f"/1000.bin?a-{number}": Body(0, 1000) for number in (3, 1, 2)}
    talks = [talk for number in range(4) for talk in both_sides(number)]
    got = measured(*talks, bodies=bodies)
    (alone,) = measured(*both_sides())
    assert got == tuple(replace(alone, target=name) for name in bodies)


def _without_origin(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    return [client, wifi]


def _twice(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    again = origin_talk(50_001).open(5_000_000, 5_000_001, 5_000_002)
    again.up(5_000_003, 1, RELAYED)
    return [client, wifi, origin, again]


def _reused(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    first = b"GET /1000.bin?a-0 HTTP/1.1\r\n\r\n"
    talk = origin_side(first)
    talk.up(1_760_000, 1 + len(first), RELAYED)
    return [client, wifi, talk]


def _gap(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    origin.packets = [packet for packet in origin.packets if packet.length != 700]
    return [client, wifi, origin]


def _fallen(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    client.down(4_000_000, 801, b"x")
    return [client, wifi, origin]


def _no_handshake(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    origin.packets = [packet for packet in origin.packets if packet.time != 1_700_000]
    return [client, wifi, origin]


def _more(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    origin.down(2_150_000, 1201, bytes(20_000))
    return [client, wifi, origin]


def _before(client: Talk, wifi: Talk, origin: Talk) -> list[Talk]:
    wifi.packets = [replace(p, time=p.time - 1_000_000) if p.length else p for p in wifi.packets]
    return [client, wifi, origin]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_without_origin, "1 of 1 requests, such as /1000.bin.a-1, open no connection of their own with the origin"),
        (_twice, "on two connections with the origin"),
        (_reused, "open no connection of their own with the origin"),
        (_gap, "gaps"),
        (_fallen, "fell back"),
        (_no_handshake, "a handshake is missing"),
        (_more, "21200 bytes in, which are no header section and 1000 bytes"),
        (_before, "went out 0.0006"),
    ],
)
def test_what_is_no_data_point_is_refused(spoil: object, said: str) -> None:
    assert callable(spoil)
    with pytest.raises(CaptureError, match=said) as error:
        measured(*spoil(*both_sides()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (REQUEST, TARGET),
        (RELAYED, TARGET),
        (b"GET http://[fd77:9::2]/a HTTP/1.1\r\n", "/a"),
        (b"GET /a?b HTTP/1.1", None),
        (b"GET /a\r\n", None),
        (b"\x16\x03\x01\r\n", None),
        (b"GET http://[ HTTP/1.1\r\n", None),
        (b"", None),
    ],
)
def test_target(head: bytes, found: str | None) -> None:
    assert target(head) == found


@given(st.binary(max_size=80), st.binary(max_size=20))
def test_a_target_of_arbitrary_bytes_raises_nothing(line: bytes, host: bytes) -> None:
    target(line)
    target(b"GET " + line + b" HTTP/1.1\r\n")
    target(b"GET http://" + host + b"/" + line + b" HTTP/1.1\r\n")
