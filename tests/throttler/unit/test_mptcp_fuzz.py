# SPDX-License-Identifier: GPL-2.0-or-later
"""Fuzz tests: random, mutated, reordered and forged segments, mixed with kernel events and dumps.

A seeded loop runs many segments. Hypothesis searches rare cases that the loop misses, and shrinks them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from mptcp_capture import IPV4, IPV6
from mptcp_dialogue import ACK, PORT, SYN, ClientSubflow, Host
from mptcp_invariants import SMALL, Subscriber, check_tables

from mptcp_throttler.mptcp.model import KernelEvent, KernelEventKind, KernelSubflow, Segment
from mptcp_throttler.mptcp.options import (
    MpCapable,
    MpFastclose,
    MpJoinAck,
    MpJoinSyn,
    MpJoinSynAck,
    MpPrio,
    MptcpOption,
    MpTcprst,
    RemoveAddr,
    parse_options,
)
from mptcp_throttler.mptcp.segment import ETHERNET, LINUX_COOKED, RAW_IP, parse_frame
from mptcp_throttler.mptcp.tracker import Resync, Tracker

SEGMENTS = examples(120_000)
SEED = 6824


def encode(option: MptcpOption) -> bytes:
    """Return the option's bytes. The encoding follows the RFC's figures, independently of both parsers."""
    match option:
        case MpCapable():
            body = bytes([option.version, option.flags]) + (option.sender_key or b"") + (option.receiver_key or b"")
        case MpJoinSyn():
            body = bytes([0x10 | option.backup, option.address_id]) + option.token.to_bytes(4, "big") + option.nonce
        case MpJoinSynAck():
            body = bytes([0x10 | option.backup, option.address_id]) + option.hmac + option.nonce
        case MpJoinAck():
            body = bytes([0x10, 0]) + option.hmac
        case RemoveAddr():
            body = bytes([0x40, *option.address_ids])
        case MpPrio():
            body = bytes([0x50 | option.backup])
        case MpFastclose():
            body = bytes([0x70, 0]) + option.receiver_key
        case MpTcprst():
            body = bytes([0x80 | option.flags, option.reason])
        case _:
            raise TypeError(option)
    return bytes([30, len(body) + 2]) + body


def frame(segment: Segment) -> bytes:
    options = b"".join(encode(option) for option in segment.options)
    options += bytes(-len(options) % 4)
    header = segment.source_port.to_bytes(2, "big") + segment.destination_port.to_bytes(2, "big")
    header += segment.sequence.to_bytes(4, "big") + segment.acknowledgment.to_bytes(4, "big")
    header += bytes([(20 + len(options)) // 4 << 4, segment.flags]) + bytes(6) + options
    if len(segment.source) == 4:
        ip = bytes([0x45, 0]) + (20 + len(header)).to_bytes(2, "big") + bytes([0, 0, 0, 0, 64, 6, 0, 0])
        kind = b"\x08\x00"
    else:
        ip = bytes([0x60, 0, 0, 0]) + len(header).to_bytes(2, "big") + bytes([6, 64])
        kind = b"\x86\xdd"
    return bytes(12) + kind + ip + segment.source + segment.destination + header


def segments_of_a_connection(host: Host, number: int) -> tuple[list[ClientSubflow], list[Segment]]:
    """Return the subflows and all segments of a connection, in their usual order.

    The connection has three subflows, or more than the tracker has room for. Some joins are forged.
    """
    v6 = number % 3 == 0
    proxy = {"proxy": "2001:db8::1"} if v6 else {}
    addresses = ["2001:db8::2", "2001:db8::3", "2001:db8::4"] if v6 else ["198.51.100.1", "203.0.113.1", "203.0.113.2"]
    if number % 5 == 1:
        addresses += [f"{addresses[-1]}{digit}" for digit in (1, 2)]
    initial = host.initial(addresses[0], 40000 + number % 7, **proxy)
    joins = [host.join(address, 50000 + number % 5, **proxy) for address in addresses[1:]]
    segments = initial.handshake()
    for join in joins:
        segments += [join.syn(), join.syn_ack(), join.ack(forged=number % 4 == 0), join.ack()]
    segments += [
        initial.plain_syn_ack(),
        initial.from_client(ACK, MpPrio(True)),
        joins[0].from_client(ACK, MpPrio(False)),
        initial.from_client(ACK, RemoveAddr((joins[0].remote_id, joins[1].remote_id))),
        joins[0].fin(),
        joins[0].proxy_fin(),
        joins[1].rst(MpTcprst(1, 4)),
        initial.later_attempt().syn(),
        initial.from_client(SYN, MpCapable(0, 1), sequence=9),
        initial.later_attempt().syn_ack(),
        initial.from_client(ACK, MpFastclose(host.proxy_key)),
        initial.proxy_fin(),
    ]
    return [initial, *joins], segments


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Return *data* with random mutations.

    They flip bits, insert or remove bytes anywhere or among the TCP options, or cut off the end.
    """
    mutated = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        position = (
            rng.randrange(len(mutated)) if rng.random() < 0.5 else rng.randrange(len(mutated) * 3 // 4, len(mutated))
        )
        match rng.randrange(4):
            case 0:
                mutated[position] ^= 1 << rng.randrange(8)
            case 1:
                mutated[position] = rng.randrange(256)
            case 2 if len(mutated) > 20:
                del mutated[position : position + rng.randrange(1, 5)]
            case _:
                mutated[position:position] = rng.randbytes(rng.randrange(1, 5))
    return bytes(mutated[: rng.randrange(10, len(mutated) + 1)] if rng.random() < 0.1 else mutated)


def test_mutated_and_reordered_segments_keep_the_tracker_consistent() -> None:
    rng = random.Random(SEED)
    connections = [segments_of_a_connection(Host(f"host {n}"), n) for n in range(60)]
    subflows = [subflow for subflows_of_one, _ in connections for subflow in subflows_of_one]
    frames_of_connections = [[frame(segment) for segment in segments] for _, segments in connections]
    real_frames = [data for _, _, data in IPV4 + IPV6]
    tracker, subscriber = Tracker([PORT], SMALL), Subscriber()
    time, segment_count, event_count = 1000.0, 0, 0
    active_frames: list[list[bytes]] = []
    resync: Resync | None = None
    pieces: list[list[KernelSubflow]] = []
    while segment_count < SEGMENTS:
        if len(active_frames) < 8:
            active_frames.append(list(reversed(rng.choice(frames_of_connections))))
        remaining_frames = rng.choice(active_frames)
        data = remaining_frames.pop()
        if not remaining_frames:
            active_frames.remove(remaining_frames)
        chance = rng.random()
        if chance < 0.3:
            data = mutate(rng, data)
        elif chance < 0.35:
            data = data[:66] + rng.randbytes(len(data) - 66) if len(data) > 66 else rng.randbytes(60)
        elif chance < 0.38:
            data = mutate(rng, rng.choice(real_frames))
        elif chance < 0.40:
            data = rng.randbytes(rng.randrange(100))
        time += rng.expovariate(200.0) - 0.001
        segment_count += 1
        if segment_count % 5_000 == 0:
            time += SMALL.handshake_timeout
        direction = None if rng.random() < 0.9 else rng.random() < 0.5
        segment = parse_frame(data, time, rng.choice(("eth0", "wlan0")), outgoing=direction)
        events = tracker.apply_segment(segment) if segment is not None else []
        if segment_count % 5 == 0:
            subflow = rng.choice(subflows if rng.random() < 0.5 else subflows[3:9])  # Host 1 has too many subflows.
            kind = rng.choice(list(KernelEventKind))
            token = subflow.host.token if rng.random() < 0.9 else rng.getrandbits(32)
            four_tuple = subflow.four_tuple if rng.random() < 0.95 else None
            ids = (rng.choice((None, 0, 3)), rng.choice((None, subflow.remote_id, 9)))
            events += tracker.apply_event(KernelEvent(time, kind, token, four_tuple, *ids, rng.random() < 0.5))
        if segment_count % 500 == 0:
            dump = [
                subflow.kernel_subflow(backup=rng.random() < 0.5) for subflow in rng.sample(subflows, rng.randrange(30))
            ]
            pieces = [dump[start : start + 7] for start in range(0, len(dump), 7)]
            resync = tracker.begin_resync(time - rng.random() * 2)
        elif resync is not None and segment_count % 9 == 0:
            if pieces:
                events += resync.add(pieces.pop())
            else:
                events += [event for step in resync.finish(5) for event in step]
                resync = None
        if segment_count % 50 == 0:
            events += tracker.expire(time)
            requested = tracker.lookups.pop_due(time)
            listed = [rng.choice(subflows).kernel_subflow(four_tuple=each) for each in requested if rng.random() < 0.5]
            events += tracker.apply_lookup(requested, {each.four_tuple: each for each in listed}, time)
        subscriber.receive(events)
        event_count += len(events)
        if segment_count % 100 == 0:
            check_tables(tracker, SMALL)
            subscriber.assert_agrees_with(tracker)
    counters = tracker.counters
    assert counters.segments > SEGMENTS * 0.7, "too few frames contained a segment"
    # The test must reach every counter.
    counters_at_zero = {name for name in counters.__slots__ if not getattr(counters, name)}
    assert counters_at_zero == set()
    assert event_count > SEGMENTS / 12
    subscriber.receive(tracker.resync([], time + 1e6))
    subscriber.receive(tracker.apply_lookup(list(tracker.table.subflows), {}, time + 1e6))
    subscriber.receive(tracker.expire(time + 2e6))
    assert not any(tracker.table_sizes.values())
    assert subscriber.live == {}


@settings(max_examples=examples(400), deadline=None)
@given(data=st.binary(max_size=120), link=st.sampled_from([ETHERNET, RAW_IP, LINUX_COOKED, 4, 300]))
def test_any_frame_is_parsed_without_an_exception(data: bytes, link: int) -> None:
    segment = parse_frame(data, 0.0, "eth0", link)
    assert segment is None or len(segment.source) in {4, 16}


@settings(max_examples=examples(400), deadline=None)
@given(data=st.binary(max_size=40), flags=st.integers(0, 255))
def test_any_bytes_can_be_parsed_as_options(data: bytes, flags: int) -> None:
    assert len(parse_options(data, flags)) <= len(data)


@st.composite
def dialogues(draw: st.DrawFn) -> Sequence[bytes]:
    all_frames = [frame(segment) for segment in segments_of_a_connection(Host(), draw(st.integers(0, 11)))[1]]
    indexes = draw(st.lists(st.integers(0, len(all_frames) - 1), max_size=40))
    frames = []
    for index in indexes:
        data = bytearray(all_frames[index])
        for at, value in draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2)):
            data[at % len(data)] = value
        frames.append(bytes(data))
    return frames


@settings(max_examples=examples(150), deadline=None)
@given(frames=dialogues())
def test_segments_in_any_order_keep_the_tracker_consistent(frames: Sequence[bytes]) -> None:
    tracker, subscriber = Tracker([PORT], SMALL), Subscriber()
    for number, data in enumerate(frames):
        segment = parse_frame(data, 1000.0 + number * 0.01, "eth0")
        if segment is not None:
            subscriber.receive(tracker.apply_segment(segment))
            check_tables(tracker, SMALL)
    subscriber.assert_agrees_with(tracker)
