# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for captures on both sides of a proxy: segments, connections, and each segment's time in the proxy.

A :class:`Talk` has the segments of one connection, as the proxy's host would have captured them. Times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_bench.wire.capture import ACK, SYN, CaptureError, Packet, dropped_packets
from mptcp_bench.wire.exchanges import Body, Exchange, exchanges
from mptcp_bench.wire.streams import Connection, Leg, Stream, follow
from mptcp_throttler.mptcp.options import (
    Dss,
    MpCapable,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MptcpOption,
    initial_data_sequence,
    token_of_key,
)

CLIENT, CLIENT_WIFI, PROXY, ORIGIN = (bytes([10, 77, net, 2]) for net in (1, 2, 8, 9))
PROXY_PORT, ORIGIN_PORT = 3128, 80
CLIENT_KEY, PROXY_KEY = b"client's", b"a proxy'"
_32 = (1 << 32) - 1
End = tuple[bytes, int]


def dss(key: bytes, offset: int, subflow: int, length: int, *, octets: int = 8) -> Dss:
    """Return a DSS mapping of *length* bytes at *offset* of the data stream whose sender has *key*."""
    sequence = initial_data_sequence(key) + 1 + offset
    return Dss(False, None, sequence & ((1 << 8 * octets) - 1), octets, subflow, length)


@dataclass
class Talk:
    """One TCP connection. :attr:`packets` contains the captured segments."""

    client: End
    server: End
    client_isn: int = 0xFFFF_FF00
    """Initial sequence number close to the maximum, so that most dialogues wrap around."""
    server_isn: int = 7
    packets: list[Packet] = field(default_factory=list)

    def up(self, time: int, number: int, payload: bytes = b"", *options: MptcpOption, flags: int = ACK) -> None:
        """Let the client send *payload*, whose first byte has the sequence number *number*, counted from the SYN."""
        self._add(Packet(time, *self.client, *self.server, flags, self.client_isn + number, 0, options, 0, payload))

    def down(self, time: int, number: int, payload: bytes = b"", *options: MptcpOption, flags: int = ACK) -> None:
        self._add(Packet(time, *self.server, *self.client, flags, self.server_isn + number, 0, options, 0, payload))

    def _add(self, packet: Packet) -> None:
        """Add *packet* with its length and a sequence number of 32 bits, and cut it as a capture does."""
        length, sequence = len(packet.payload), packet.sequence & _32
        self.packets.append(replace(packet, sequence=sequence, length=length, payload=packet.payload[:200]))

    def open(self, syn: int, syn_ack: int, ack: int, *options: MptcpOption) -> Talk:
        """Make a handshake with these times, and with the option of each segment, if any."""
        self.up(syn, 0, b"", *options[:1], flags=SYN)
        self.down(syn_ack, 0, b"", *options[1:2], flags=SYN | ACK)
        self.up(ack, 1, b"", *options[2:])
        return self

    def open_mptcp(self, syn: int, syn_ack: int, ack: int, key: bytes = PROXY_KEY) -> Talk:
        """Make a handshake with MPTCP; *key* is the server's."""
        return self.open(syn, syn_ack, ack, *(MpCapable(1, 1, *keys) for keys in ((), (key,), (CLIENT_KEY, key))))

    def join(self, syn: int, syn_ack: int, ack: int, key: bytes = PROXY_KEY) -> Talk:
        """Let a subflow join the connection whose server has *key*."""
        first, second = MpJoinSyn(False, 2, token_of_key(key), bytes(4)), MpJoinSynAck(False, 1, bytes(8), bytes(4))
        return self.open(syn, syn_ack, ack, first, second, MpJoinAck(bytes(20)))


def client_talk(port: int = 40_000, address: bytes = CLIENT) -> Talk:
    return Talk((address, port), (PROXY, PROXY_PORT))


def origin_talk(port: int = 50_000) -> Talk:
    return Talk((PROXY, port), (ORIGIN, ORIGIN_PORT), client_isn=99, server_isn=_32 - 3)


def connections(*talks: Talk) -> list[Connection]:
    leg = Leg(PROXY_PORT)
    follow([packet for talk in talks for packet in talk.packets], leg)
    return leg.connections


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=30))
def test_stream_knows_when_each_byte_was_first_seen(segments: list[tuple[int, int]]) -> None:
    stream, first, ends = Stream(), dict[int, int](), list[int]()
    for time, (start, length) in enumerate(segments):
        stream.add(start, start + length, time)
        ends += [start + length] * (start + length - 1 not in first)
        first = dict.fromkeys(range(start, start + length), time) | first
    total = max(first, default=-1) + 1
    assert (stream.total, stream.segment_ends(0)) == (total, sorted(ends))
    assert {offset: stream.first_time(offset) for offset in first} == first
    gap = min(set(range(total + 1)) - first.keys())
    with pytest.raises(CaptureError, match=f"byte {gap} is missing"):
        stream.readable_time(total - 1 if gap < total else total)
    if gap == total:
        latest = list(accumulate([first[offset] for offset in range(total)], max))
        assert [stream.readable_time(offset) for offset in range(total)] == latest


def test_repeated_syn_counts_once_and_a_reused_port_is_a_new_connection() -> None:
    talk = client_talk()
    talk.up(5, 0, flags=SYN)
    talk.open(10, 20, 30)
    reused = replace(client_talk(), client_isn=12345).open(100, 110, 120)
    reused.up(130, 1, b"abc")
    reused.up(140, 1, b"abc")  # a retransmission
    first, second = connections(talk, reused)
    assert (first.syn, first.syn_ack, first.ack, first.up.total) == (5, 20, 30, 0)
    assert (second.syn, second.multipath, second.up.total, second.up.first_time(2)) == (100, False, 3, 130)


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
    assert (got.target, got.subflows) == (TARGET, 2)
    times = {f.name: getattr(got, f.name) for f in fields(got) if isinstance(getattr(got, f.name), float)}
    micro = {name: round(seconds * 1e6) for name, seconds in times.items()}
    assert micro == {"answer": 10, "syn": 460, "syn_after_syn": 500, "syn_after_request": 400, "request": 650}
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
        (lambda client, wifi, _: (client, wifi), "1 of 1 requests, such as .*, have no connection of their own"),
        (_requested_twice, "on two connections with the origin"),
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


@pytest.mark.parametrize(
    ("output", "lost"),
    [
        ("listening on wan0\n12 packets captured\n12 packets received by filter\n0 packets dropped by kernel\n", 0),
        ("9 packets captured\n2 packets dropped by kernel\n3 packets dropped by interface\n", 5),
        ("tcpdump: wan0: No such device exists\n", None),
    ],
)
def test_lost_packets_are_read_from_the_output_of_tcpdump(output: str, lost: int | None) -> None:
    assert dropped_packets(output) == lost
