# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that replay counts each byte once, even if it was sent repeatedly."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from capture_files import CAPTURED_FRAMES, pcap
from hypothesis import given
from hypothesis import strategies as st
from mptcp_dialogue import ACK, FIN, PORT, SYN, ClientSubflow, Host
from replaying import Run

from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.replay.capture import CapturedSegment
from mptcp_throttler.replay.replay import ByteCounts, Entry, Replay

BUDGET = """
version: 1
paths: {ethernet: {clients: [10.77.1.0/24]}}
rules:
  - name: volume
    paths: [ethernet]
    budget: {period: month, steps: [{after: 50 KB, throttle: {rate: 1 Mbit/s}}]}
"""
TCP_OFFSET = 34
"""Offset of the TCP header, after Ethernet and IPv4."""


def replace_bytes(frame: bytes, offset: int, value: bytes) -> bytes:
    return frame[:offset] + value + frame[offset + len(value) :]


def retransmission_of(frame: bytes) -> bytes:
    """Return the frame with a different IP identification."""
    return replace_bytes(frame, 18, (int.from_bytes(frame[18:20], "big") ^ 0x8000).to_bytes(2, "big"))


def has_data(frame: bytes) -> bool:
    return int.from_bytes(frame[16:18], "big") > 20 + (frame[TCP_OFFSET + 12] >> 4 << 2)


@pytest.mark.parametrize("distance", [0, 3])
def test_retransmitted_data_count_once(replay: Run, distance: int) -> None:
    """Defect: replay counted retransmitted data again, but the daemon counts only acknowledged bytes."""
    _, expected, _ = replay(pcap(CAPTURED_FRAMES), policy=BUDGET)
    frames, repeated = [], 0
    for number, each in enumerate(CAPTURED_FRAMES):
        frames.append(each)
        earlier_frame = CAPTURED_FRAMES[number - distance][2] if number >= distance else b""
        # Segments with MPTCP signals are not repeated, because each causes a line of output.
        if number > 12 and has_data(earlier_frame):
            frames.append((each[0], each[1], retransmission_of(earlier_frame)))
            repeated += 1
    assert repeated > 10
    _, out, err = replay(pcap(frames), policy=BUDGET)
    assert out == expected.replace(f"{len(CAPTURED_FRAMES)} segments", f"{len(CAPTURED_FRAMES) + repeated} segments")
    assert err == ""


def test_reordered_data_and_data_after_a_gap_are_counted(replay: Run) -> None:
    data = [number for number, each in enumerate(CAPTURED_FRAMES) if number > 12 and has_data(each[2])]
    shuffled = list(CAPTURED_FRAMES)
    order = random.Random(9293).sample(data, len(data))
    for position, number in zip(data, order, strict=True):
        shuffled[position] = (CAPTURED_FRAMES[position][0], "v0", CAPTURED_FRAMES[number][2])
    _, expected, _ = replay(pcap(CAPTURED_FRAMES), policy=BUDGET)
    assert replay(pcap(shuffled), policy=BUDGET)[1].splitlines()[-1] == expected.splitlines()[-1]
    with_gap = [each for number, each in enumerate(CAPTURED_FRAMES) if number not in data[1:4]]
    assert "30.0 KB down" in replay(pcap(with_gap), policy=BUDGET)[1]


# Bytes carried by one subflow


def captured_data(
    host: Host, subflow: ClientSubflow, size: int, sequence: int, from_client: bool = False
) -> CapturedSegment:
    send = subflow.from_client if from_client else subflow.from_proxy
    return captured_segment(send(ACK, sequence=sequence), size)


def captured_segment(segment: Segment, size: int = 0) -> CapturedSegment:
    """Return the segment with *size* bytes of data."""
    return CapturedSegment(segment, round(segment.time * 1e9), size, b"")


def byte_counts(entries: Iterable[Entry]) -> list[str]:
    return [each.text.partition("; ")[2] for each in entries if each.kind == "closed" and each.four_tuple is not None]


def test_counting_restarts_if_a_port_is_reused() -> None:
    """The new connection has other sequence numbers. Neither connection's end was captured."""
    run = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT])
    first, second = Host("first"), Host("second", time=1100.0)
    one, two = first.initial(), second.initial()
    entries = [entry for each in one.handshake() for entry in run.process(captured_segment(each))]
    entries += run.process(captured_data(first, one, 1_000, 1))
    entries += run.process(captured_data(first, one, 1_000, 1_001))
    entries += [entry for each in two.handshake() for entry in run.process(captured_segment(each))]
    assert byte_counts(entries) == ["2.00 KB down, 0 B up"]
    entries += run.process(captured_data(second, two, 300, 1))
    entries += run.process(captured_data(second, two, 40, 1, from_client=True))
    entries += run.process(captured_segment(two.from_client(FIN | ACK, sequence=41)))
    entries += run.process(captured_segment(two.from_proxy(FIN | ACK, sequence=301)))
    assert byte_counts(entries)[1:] == ["300 B down, 40 B up"]


def test_data_of_the_segment_that_activates_a_subflow_count() -> None:
    """The third ACK was lost on the path, or was not captured."""
    run, host = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT]), Host()
    subflow = host.initial()
    syn, syn_ack, ack = subflow.handshake()
    entries = [
        *run.process(captured_segment(syn)),
        *run.process(captured_segment(syn_ack)),
        *run.process(captured_segment(ack, 70)),
    ]
    entries += [*run.process(captured_segment(subflow.fin())), *run.process(captured_segment(subflow.proxy_fin()))]
    assert byte_counts(entries) == ["0 B down, 70 B up"]


def test_data_in_any_order_count_from_the_handshake() -> None:
    run, host = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT]), Host()
    subflow = host.initial()
    entries = [entry for each in subflow.handshake() for entry in run.process(captured_segment(each))]
    for sequence in (1_001, 1):
        entries += [
            *run.process(captured_data(host, subflow, 1_000, sequence)),
            *run.process(captured_data(host, subflow, 1_000, sequence, True)),
        ]
    entries += [*run.process(captured_segment(subflow.fin())), *run.process(captured_segment(subflow.proxy_fin()))]
    assert byte_counts(entries) == ["2.00 KB down, 2.00 KB up"]


def test_segment_in_the_wrong_direction_carries_no_data() -> None:
    """Otherwise the segment's sequence number would hide data that the client sends later."""
    run, host = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT]), Host()
    subflow = host.initial()
    entries = [entry for each in subflow.handshake() for entry in run.process(captured_segment(each))]
    forged = replace(subflow.from_client(ACK, sequence=1_000_000), outgoing=True)
    entries += [
        *run.process(captured_segment(forged, 100)),
        *run.process(captured_data(host, subflow, 50, 1, from_client=True)),
    ]
    entries += [*run.process(captured_segment(subflow.fin())), *run.process(captured_segment(subflow.proxy_fin()))]
    assert byte_counts(entries) == ["0 B down, 50 B up"]


def segment(sequence: int, flags: int = ACK, acknowledgment: int = 0) -> Segment:
    number = sequence % 2**32
    return Segment(1.0, "v0", bytes(4), PORT, bytes(4), 40_000, flags, number, acknowledgment % 2**32, ())


@given(
    begin=st.one_of(st.integers(0, 2**32 - 1), st.integers(2**32 - 3_000, 2**32 - 1)),
    cuts=st.sets(st.integers(1, 4_999), max_size=20),
    retransmissions=st.lists(st.tuples(st.integers(0, 4_999), st.integers(1, 3_000)), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_each_byte_counts_once_in_any_order(
    begin: int, cuts: set[int], retransmissions: list[tuple[int, int]], order: random.Random
) -> None:
    """Sequence numbers wrap at 2^32. A retransmission may have other boundaries than the original."""
    bounds = [0, *sorted(cuts), 5_000]
    segments = [(offset, end - offset) for offset, end in pairwise(bounds)]
    segments += [(offset, min(size, 5_000 - offset)) for offset, size in retransmissions]
    order.shuffle(segments)
    counts = ByteCounts(1, highest={False: begin})
    highest_end = 0
    for offset, size in segments:
        assert counts.count(segment(begin + offset), size, from_client=False) is (offset + size > highest_end)
        highest_end = max(highest_end, offset + size)
        # Missing earlier bytes count, too: they arrive later, or were not captured.
        assert counts.down == highest_end
    assert (counts.down, counts.up) == (5_000, 0)


def test_counting_starts_at_the_first_segment_without_a_handshake() -> None:
    counts = ByteCounts(1)
    assert counts.count(segment(2**32 - 10), 30, from_client=True)
    assert not counts.count(segment(2**32 - 40), 60, from_client=True)
    assert counts.count(segment(0), 30, from_client=True)
    assert counts.count(segment(5, SYN | ACK), 4, from_client=False)
    assert not counts.count(segment(6), 4, from_client=False)
    assert (counts.down, counts.up) == (4, 40)
