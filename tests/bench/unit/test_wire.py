# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for captures: connections, the time of each segment in a proxy, and the start of a download.

A :class:`Talk` has the segments of one connection, as the proxy's host captures them. Times are in nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_bench.experiments.vpn_figures import start_of
from mptcp_bench.wire.capture import ACK, SYN, CaptureError, Packet, dropped_packets
from mptcp_bench.wire.exchanges import Body, Exchange, exchanges
from mptcp_bench.wire.streams import Connection, Leg, Stream, follow
from mptcp_lab.testbed import TestbedError
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
MAX_NUMBER = (1 << 32) - 1
"""Greatest sequence number."""
End = tuple[bytes, int]
"""Address and port."""


def dss(key: bytes, offset: int, subflow: int, length: int, *, octets: int = 8) -> Dss:
    """Return a DSS mapping of *length* bytes at *offset* of the data stream whose sender has *key*."""
    sequence = initial_data_sequence(key) + 1 + offset
    return Dss(False, None, sequence & ((1 << 8 * octets) - 1), octets, subflow, length)


@dataclass
class Talk:
    """One TCP connection, and its captured segments."""

    client: End
    server: End
    client_isn: int = 0xFFFF_FF00
    """Initial sequence number close to the maximum, so that the sequence numbers of most connections wrap around."""
    server_isn: int = 7
    packets: list[Packet] = field(default_factory=list)

    def up(
        self, time: int, number: int, payload: bytes = b"", *options: MptcpOption, flags: int = ACK, received: int = 0
    ) -> None:
        """Let the client send *payload* and acknowledge *received*. Both numbers are counted from the SYN."""
        numbers = self.client_isn + number, self.server_isn + received
        self._add(Packet(time, *self.client, *self.server, flags, *numbers, options, len(payload), payload[:200]))

    def down(self, time: int, number: int, payload: bytes = b"", *options: MptcpOption, flags: int = ACK) -> None:
        numbers = self.server_isn + number, 0
        self._add(Packet(time, *self.server, *self.client, flags, *numbers, options, len(payload), payload[:200]))

    def _add(self, packet: Packet) -> None:
        """Add *packet* with sequence numbers of 32 bits. Its payload is cut, as in a capture."""
        sequence, acknowledgment = packet.sequence & MAX_NUMBER, packet.acknowledgment & MAX_NUMBER
        self.packets.append(replace(packet, sequence=sequence, acknowledgment=acknowledgment))

    def open(self, syn: int, syn_ack: int, ack: int, *options: MptcpOption) -> Talk:
        """Make a handshake with these times, and with one of *options* in each segment, if there are any."""
        self.up(syn, 0, b"", *options[:1], flags=SYN)
        self.down(syn_ack, 0, b"", *options[1:2], flags=SYN | ACK)
        self.up(ack, 1, b"", *options[2:])
        return self

    def open_mptcp(self, syn: int, syn_ack: int, ack: int) -> Talk:
        keys = ((), (PROXY_KEY,), (CLIENT_KEY, PROXY_KEY))
        return self.open(syn, syn_ack, ack, *(MpCapable(1, 1, *each) for each in keys))

    def join(self, syn: int, syn_ack: int, ack: int) -> Talk:
        token = token_of_key(PROXY_KEY)
        options = MpJoinSyn(False, 2, token, bytes(4)), MpJoinSynAck(False, 1, bytes(8), bytes(4)), MpJoinAck(bytes(20))
        return self.open(syn, syn_ack, ack, *options)


def client_talk(port: int = 40_000, address: bytes = CLIENT) -> Talk:
    return Talk((address, port), (PROXY, PROXY_PORT))


def origin_talk(port: int = 50_000) -> Talk:
    return Talk((PROXY, port), (ORIGIN, ORIGIN_PORT), client_isn=99, server_isn=MAX_NUMBER - 3)


def connections(*talks: Talk) -> list[Connection]:
    leg = Leg(PROXY_PORT)
    follow([packet for talk in talks for packet in talk.packets], leg)
    return leg.connections


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), max_size=30))
def test_stream_has_the_time_at_which_each_byte_was_first_captured(segments: list[tuple[int, int]]) -> None:
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


def exchanges_of(*talks: Talk, bodies: dict[str, Body] | None = None) -> tuple[Exchange, ...]:
    legs = Leg(PROXY_PORT), Leg(ORIGIN_PORT, ORIGIN)
    follow([packet for talk in talks for packet in talk.packets], *legs)
    return exchanges(legs[0].connections, legs[1].connections, bodies or {TARGET: Body(0, 1000)})


def client_side(request: bytes = REQUEST) -> Talk:
    """Return a client connection with SYN 1000, SYN/ACK 1010, ACK 1040, and a request at 1100 (microseconds)."""
    talk = client_talk().open_mptcp(1_000_000, 1_010_000, 1_040_000)
    talk.up(1_100_000, 1, request, MpCapable(1, 1, CLIENT_KEY, PROXY_KEY, len(request)))
    return talk


def origin_side(request: bytes = RELAYED) -> Talk:
    """Return an origin connection with SYN 1500, SYN/ACK 1700, ACK 1701, and a request at 1750 (microseconds)."""
    talk = origin_talk().open(1_500_000, 1_700_000, 1_701_000)
    talk.up(1_750_000, 1, request)
    return talk


def both_sides() -> tuple[Talk, Talk, Talk]:
    """Return an exchange whose response has 200 bytes of header from the origin, and 300 to the client."""
    client, origin = client_side(), origin_side()
    wifi = client_talk(40_001, CLIENT_WIFI).join(1_200_000, 1_210_000, 1_300_000)
    origin.down(2_000_000, 1, bytes(700))  # header and 500 bytes of the body
    origin.down(2_100_000, 701, bytes(500))
    client.down(2_250_000, 1, bytes(300), dss(PROXY_KEY, 0, 1, 300))  # only the header
    wifi.down(2_400_000, 1, bytes(250), dss(PROXY_KEY, 300, 1, 500, octets=4))
    wifi.down(2_400_000, 251, bytes(250))  # covered by the mapping of the previous segment
    client.down(2_900_000, 301, bytes(500), dss(PROXY_KEY, 800, 301, 500))
    wifi.down(3_300_000, 501, bytes(500), dss(PROXY_KEY, 800, 501, 500))  # reinjected
    return client, wifi, origin


def test_intervals_are_measured_from_segment_to_segment() -> None:
    (exchange,) = exchanges_of(*both_sides())
    assert (exchange.target, exchange.subflows) == (TARGET, 2)
    times = {
        f.name: getattr(exchange, f.name) for f in fields(exchange) if isinstance(getattr(exchange, f.name), float)
    }
    micro = {name: round(seconds * 1e6) for name, seconds in times.items()}
    assert micro == {"answer": 10, "syn": 460, "syn_after_syn": 500, "syn_after_request": 400, "request": 650}
    assert exchange.up == ()
    assert exchange.down == pytest.approx((400e-6, 800e-6))


def test_delay_of_uploaded_bytes_begins_when_all_earlier_bytes_have_arrived() -> None:
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
    (exchange,) = exchanges_of(client, origin, bodies={TARGET: Body(250, 0)})
    # Bytes after a gap cannot be read before the gap is filled.
    assert exchange.up == pytest.approx((600e-6, 200e-6, 200e-6))
    assert exchange.request == pytest.approx(650e-6)


def faulty_exchange(fault: str) -> list[Talk]:
    """Return the connections of an exchange with a fault, which is named in the next test."""
    client, wifi, origin = both_sides()
    talks = [client, wifi, origin]
    if fault == "no request to the origin":
        talks.remove(origin)
    elif fault == "two connections with the origin":
        talks.append(origin_talk(50_001).open(5_000_000, 5_000_001, 5_000_002))
        talks[-1].up(5_000_003, 1, RELAYED)
    elif fault == "a segment is missing":
        origin.packets = [packet for packet in origin.packets if packet.length != 700]
    elif fault == "data without a mapping":
        client.down(4_000_000, 801, b"x")
    elif fault == "an infinite mapping":
        client.down(4_000_000, 801, b"x", Dss(False, None, 1, 8, 1, 0))
    elif fault == "data leave before they arrive":
        wifi.packets = [replace(p, time=p.time - 1_000_000) if p.length else p for p in wifi.packets]
    return talks


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no request to the origin", "1 of 1 requests, such as .*, have no connection of their own"),
        ("two connections with the origin", "on two connections with the origin"),
        ("a segment is missing", "gaps"),
        ("data without a mapping", "fell back"),
        ("an infinite mapping", "fell back"),
        ("data leave before they arrive", "was sent 0.0006.* s before it arrived"),
    ],
)
def test_exchange_that_is_not_a_data_point_is_refused(fault: str, message: str) -> None:
    with pytest.raises(CaptureError, match=message) as error:
        exchanges_of(*faulty_exchange(fault))
    assert "\n" not in str(error.value)


def test_start_of_a_download_has_the_bytes_sent_and_acknowledged_at_each_step() -> None:
    """The sequence numbers of the download wrap around. The trace has steps of 10 ms."""
    talk, other = origin_talk(), origin_talk(40_001)
    talk.up(1_000_000_000, 0, flags=SYN)
    talk.down(1_000_100_000, 0, flags=SYN | ACK)
    talk.down(1_015_000_000, 1, bytes(1360))
    talk.down(1_015_100_000, 1361, bytes(1360))
    talk.up(1_045_000_000, 1, received=1361)
    talk.down(1_200_000_000, 1, bytes(1360))
    other.down(500_000_000, 0, flags=SYN | ACK)
    other.down(600_000_000, 0, bytes(100))
    sent, acknowledged = start_of([*other.packets, *reversed(talk.packets)])
    assert (sent[1], sent[2], sent[-1]) == (0, 2720, 2720)
    assert (acknowledged[4], acknowledged[5], acknowledged[-1]) == (0, 1360, 1360)
    for incomplete in (talk.packets[1:], [talk.packets[0], *talk.packets[2:]], []):
        with pytest.raises(TestbedError, match="no start"):
            start_of(incomplete)


@pytest.mark.parametrize(
    ("output", "lost"),
    [
        ("listening on wan0\n12 packets captured\n0 packets dropped by kernel\n", 0),
        ("9 packets captured\n2 packets dropped by kernel\n3 packets dropped by interface\n", 5),
        ("tcpdump: wan0: No such device exists\n", None),
    ],
)
def test_lost_packets_are_read_from_the_output_of_tcpdump(output: str, lost: int | None) -> None:
    assert dropped_packets(output) == lost
