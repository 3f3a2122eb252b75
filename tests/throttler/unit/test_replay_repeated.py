"""Replay takes in once what was captured on two interfaces, and counts once what TCP sends again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise

import pytest
from capture_files import BOTH, COOKED, LABORATORY, START, Frame, cooked, pcap, tagged
from hypothesis import given
from hypothesis import strategies as st
from mptcp_dialogue import ACK, FIN, PORT, SYN, Host
from mptcp_dialogue import Path as Subflow
from replaying import Run, entries

from mptcp_throttler.mptcp.captured import Captured
from mptcp_throttler.mptcp.model import Segment
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.views.captured_again import REMEMBERED, SOONEST_REPEATED, WITHIN_SECONDS, CapturedAgain
from mptcp_throttler.views.replay import Replay
from mptcp_throttler.views.replayed import LARGEST_LEAP, Carried, Entry

BUDGET = """
version: 1
paths: {ethernet: {clients: [10.77.1.0/24]}}
rules:
  - name: volume
    paths: [ethernet]
    budget: {period: month, steps: [{after: 50 KB, throttle: {rate: 1 Mbit/s}}]}
"""
NOTE = (
    "note: {} segments captured twice, as where an interface lies on another (a bridge, a VLAN, a bond): "
    "shown and counted once\n"
)
TCP_AT = 34
"""Where TCP begins behind Ethernet and IPv4."""


def changed(frame: bytes, at: int, value: bytes) -> bytes:
    return frame[:at] + value + frame[at + len(value) :]


def with_checksum(frame: bytes) -> bytes:
    """Return the frame as it is where the checksum was filled in."""
    return changed(frame, TCP_AT + 16, b"\xab\xcd")


def sent_again(frame: bytes) -> bytes:
    """Return the frame with another identification."""
    return changed(frame, 18, (int.from_bytes(frame[18:20], "big") ^ 0x8000).to_bytes(2, "big"))


def with_data(frame: bytes) -> bool:
    return int.from_bytes(frame[16:18], "big") > 20 + (frame[TCP_AT + 12] >> 4 << 2)


def beside(frames: Iterable[Frame], first: Callable[[bytes], bytes], second: Callable[[bytes], bytes]) -> list[Frame]:
    """Return the frames twice, as two interfaces show them."""
    return [
        (time + late, interface, wrap(frame))
        for time, interface, frame in frames
        for late, wrap in ((0.0, first), (1e-6, second))
    ]


def late(frames: list[Frame]) -> list[Frame]:
    """Return the frames with a copy of each behind the seven that follow it."""
    each: list[tuple[float, float, str, bytes]] = [(number, *frame) for number, frame in enumerate(frames)]
    each += [(number + 7.5, time, interface, frame) for number, (time, interface, frame) in enumerate(frames)]
    return [(time, interface, frame) for _, time, interface, frame in sorted(each, key=lambda copy: copy[0])]


TWICE = {
    "untagged": lambda frames: beside(frames, bytes, bytes),
    "tagged beneath": lambda frames: beside(frames, bytes, tagged(0x8100)),
    "tagged above": lambda frames: beside(frames, tagged(0x8100), bytes),
    "both tagged": lambda frames: beside(frames, tagged(0x88A8, 0x8100), tagged(0x8100)),
    "a checksum filled in": lambda frames: beside(frames, bytes, with_checksum),
    "later": late,
}


@pytest.mark.parametrize("kind", TWICE)
def test_a_capture_with_each_segment_twice_gives_the_same_timeline(replay: Run, kind: str) -> None:
    """Defect: 30,000 bytes were 60.0 KB, a budget of 50 KB was used up, and each line was there twice."""
    _, expected, _ = replay(pcap(LABORATORY), policy=BUDGET)
    assert "30.0 KB of 50.0 KB used" in expected
    frames = TWICE[kind](LABORATORY)
    note = NOTE.format(len(LABORATORY))
    assert replay(pcap(frames), policy=BUDGET) == (0, expected, note)
    reference = entries(replay(pcap(LABORATORY), "--json", policy=BUDGET)[1])
    found = entries(replay(pcap(frames), "--json", policy=BUDGET)[1])
    last = {"time": pytest.approx(reference[-1]["time"], abs=0.001), "notes": [note.removeprefix("note: ").strip()]}
    assert found == [*reference[:-1], {**reference[-1], **last}]


@pytest.mark.parametrize("kind", ["untagged", "tagged beneath", "tagged above", "later"])
def test_so_it_does_over_ipv6(replay: Run, kind: str) -> None:
    _, expected, _ = replay(pcap(BOTH), "--interface", "v1")
    assert replay(pcap(TWICE[kind](BOTH)), "--interface", "v1") == (0, expected, NOTE.format(len(BOTH)))


@pytest.mark.parametrize("after", [0, 3])
def test_what_tcp_sends_again_counts_once(replay: Run, after: int) -> None:
    """Defect: the daemon counts what is acknowledged, and replay counted it as often as it was sent."""
    _, expected, _ = replay(pcap(LABORATORY), policy=BUDGET)
    frames, again = [], 0
    for number, each in enumerate(LABORATORY):
        frames.append(each)
        earlier = LABORATORY[number - after][2] if number >= after else b""
        # What signals something has a line of its own, whenever it is sent again.
        if number > 12 and with_data(earlier):
            frames.append((each[0], each[1], sent_again(earlier)))
            again += 1
    assert again > 10
    _, out, err = replay(pcap(frames), policy=BUDGET)
    assert out == expected.replace(f"{len(LABORATORY)} segments", f"{len(LABORATORY) + again} segments")
    assert err == ""


def test_what_comes_in_another_order_or_behind_a_gap_is_counted(replay: Run) -> None:
    data = [number for number, each in enumerate(LABORATORY) if number > 12 and with_data(each[2])]
    shuffled = list(LABORATORY)
    order = random.Random(9293).sample(data, len(data))
    for place, number in zip(data, order, strict=True):
        shuffled[place] = (LABORATORY[place][0], "v0", LABORATORY[number][2])
    _, expected, _ = replay(pcap(LABORATORY), policy=BUDGET)
    assert replay(pcap(shuffled), policy=BUDGET)[1].splitlines()[-1] == expected.splitlines()[-1]
    lost = [each for number, each in enumerate(LABORATORY) if number not in data[1:4]]
    assert "30.0 KB down" in replay(pcap(lost), policy=BUDGET)[1]


def test_a_handshake_that_is_sent_again_is_shown_again(replay: Run) -> None:
    syn = BOTH[0][2]
    by_identification = (START + 0.3, "v0", sent_again(syn))
    after_a_second = (START + WITHIN_SECONDS + 0.001, "v0", syn)
    _, out, err = replay(pcap([BOTH[0], by_identification, after_a_second]), "--interface", "v0")
    assert out.count("SYN: MP_CAPABLE") == 3
    assert err == ""
    _, out, err = replay(pcap([BOTH[0], (START + 0.3, "v0", syn)]), "--interface", "v0")
    assert out.count("SYN: MP_CAPABLE") == 1
    assert "note: 1 segment captured twice" in err


def test_where_the_host_forwards_the_copy_counts_that_went_the_right_way(replay: Run) -> None:
    """A proxy in a container: what it sends comes in first, and goes out afterwards."""

    def as_type(frame: bytes, packet_type: int) -> bytes:
        return bytes([0, packet_type]) + cooked(frame)[2:]

    frames = [
        (time + late, interface, as_type(frame, packet_type))
        for time, interface, frame in LABORATORY
        for late, packet_type in ((0.0, 0), (1e-6, 4))
    ]
    _, expected, _ = replay(pcap(LABORATORY), policy=BUDGET)
    _, out, err = replay(pcap(frames, COOKED), policy=BUDGET)
    assert out.splitlines()[-1] == expected.splitlines()[-1]
    assert sorted(line[17:] for line in out.splitlines()) == sorted(line[17:] for line in expected.splitlines())
    assert NOTE.format(len(LABORATORY)) in err


# What one subflow carried


def of(host: Host, subflow: Subflow, size: int, sequence: int, from_client: bool = False) -> Captured:
    send = subflow.from_client if from_client else subflow.from_proxy
    return captured(send(ACK, sequence=sequence), size)


def captured(segment: Segment, size: int = 0) -> Captured:
    """Return the segment with *size* bytes of data, never captured twice."""
    identity = f"{segment.time} {segment.sequence} {segment.source_port}".encode()
    return Captured(segment, bytes(20), size, identity)


def ends(found: Iterable[Entry]) -> list[str]:
    return [each.text.partition("; ")[2] for each in found if each.kind == "closed" and each.four_tuple is not None]


def test_a_port_that_is_used_again_starts_anew() -> None:
    """Its sequence numbers are others; neither connection's end was captured."""
    run = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT])
    first, second = Host("first"), Host("second", time=1100.0)
    one, two = first.initial(), second.initial()
    found = [entry for each in one.handshake() for entry in run.take(captured(each))]
    found += run.take(of(first, one, 1_000, 1))
    found += run.take(of(first, one, 1_000, 1_001))
    found += [entry for each in two.handshake() for entry in run.take(captured(each))]
    assert ends(found) == ["2.00 KB down, 0 B up"]
    found += run.take(of(second, two, 300, 1))
    found += run.take(of(second, two, 40, 1, from_client=True))
    found += run.take(captured(two.from_client(FIN | ACK, sequence=41)))
    found += run.take(captured(two.from_proxy(FIN | ACK, sequence=301)))
    assert ends(found)[1:] == ["300 B down, 40 B up"]


def test_data_count_of_the_segment_by_which_a_subflow_is_active() -> None:
    """The third ACK itself was lost, by the path or by the capture."""
    run, host = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT]), Host()
    path = host.initial()
    syn, syn_ack, ack = path.handshake()
    found = [*run.take(captured(syn)), *run.take(captured(syn_ack)), *run.take(captured(ack, 70))]
    found += [*run.take(captured(path.fin())), *run.take(captured(path.proxy_fin()))]
    assert ends(found) == ["0 B down, 70 B up"]


def test_data_count_from_the_handshake_on_in_whatever_order_they_come() -> None:
    run, host = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT]), Host()
    path = host.initial()
    found = [entry for each in path.handshake() for entry in run.take(captured(each))]
    for sequence in (1_001, 1):
        found += [*run.take(of(host, path, 1_000, sequence)), *run.take(of(host, path, 1_000, sequence, True))]
    found += [*run.take(captured(path.fin())), *run.take(captured(path.proxy_fin()))]
    assert ends(found) == ["2.00 KB down, 2.00 KB up"]


def test_what_went_the_wrong_way_carries_nothing() -> None:
    """Else its sequence number hid what the client sends afterwards."""
    run, host = Replay(load_policy("version: 1\npaths: {}\nrules: []\n", "policy"), [PORT]), Host()
    path = host.initial()
    found = [entry for each in path.handshake() for entry in run.take(captured(each))]
    forged = replace(path.from_client(ACK, sequence=1_000_000), outgoing=True)
    found += [*run.take(captured(forged, 100)), *run.take(of(host, path, 50, 1, from_client=True))]
    found += [*run.take(captured(path.fin())), *run.take(captured(path.proxy_fin()))]
    assert ends(found) == ["0 B down, 50 B up"]


def segment(sequence: int, flags: int = ACK, acknowledgment: int = 0) -> Segment:
    number = sequence % 2**32
    return Segment(1.0, "v0", bytes(4), PORT, bytes(4), 40_000, flags, number, acknowledgment % 2**32, ())


@given(
    begin=st.one_of(st.integers(0, 2**32 - 1), st.integers(2**32 - 3_000, 2**32 - 1)),
    cuts=st.sets(st.integers(1, 4_999), max_size=20),
    more=st.lists(st.tuples(st.integers(0, 4_999), st.integers(1, 3_000)), max_size=20),
    order=st.randoms(use_true_random=False),
)
def test_each_byte_counts_once_in_whatever_order_and_however_often_it_comes(
    begin: int, cuts: set[int], more: list[tuple[int, int]], order: random.Random
) -> None:
    """Sequence numbers begin anew behind 2^32; a repetition may have other bounds than what it repeats."""
    bounds = [0, *sorted(cuts), 5_000]
    pieces = [(at, end - at) for at, end in pairwise(bounds)]
    pieces += [(at, min(size, 5_000 - at)) for at, size in more]
    order.shuffle(pieces)
    carried = Carried()
    carried.begin(segment(7, acknowledgment=begin), from_client=True)
    seen = 0
    for at, size in pieces:
        assert carried.data(segment(begin + at), size, from_client=False) is (at + size > seen)
        seen = max(seen, at + size)
        assert carried.down == seen, "what is missing before it is late, or the capture lost it"
    assert (carried.down, carried.up) == (5_000, 0)


def test_without_a_handshake_the_first_segment_begins() -> None:
    carried = Carried()
    assert carried.data(segment(2**32 - 10), 30, from_client=True)
    assert not carried.data(segment(2**32 - 40), 60, from_client=True)
    assert carried.data(segment(0), 30, from_client=True)
    assert carried.data(segment(5, SYN | ACK), 4, from_client=False)
    assert not carried.data(segment(6), 4, from_client=False)
    assert (carried.down, carried.up) == (4, 40)


@pytest.mark.parametrize("leap", [LARGEST_LEAP + 1, 2**31, 2**32 - LARGEST_LEAP - 100])
def test_a_number_out_of_any_window_begins_anew(leap: int) -> None:
    carried = Carried()
    carried.begin(segment(100, acknowledgment=100), from_client=True)
    assert carried.data(segment(100 + leap), 10, from_client=False)
    assert carried.data(segment(110 + leap), 10, from_client=False)
    assert carried.down == 20


def test_a_copy_of_what_was_not_taken_in_is_taken_in_once() -> None:
    again, one = CapturedAgain(), captured(segment(1), 8)
    found = [again.note(one, taken) for taken in (False, False, True, True, False)]
    assert found == [(False, False), (True, False), (True, False), (True, True), (True, True)]


@pytest.mark.parametrize(
    ("length", "identity", "size", "flags", "copy"),
    [
        (16, b"\0\x2c", 0, ACK, False),
        (16, b"\0\x2c", 0, FIN | ACK, False),
        (16, b"\0\x2c", 8, ACK, True),
        (16, b"\0\x2c", 0, SYN, True),
        (4, b"\0\x40\0\0", 0, ACK, False),
        (4, b"\0\x40\0\1", 0, ACK, True),
    ],
)
def test_an_acknowledgment_alone_does_not_show_that_two_interfaces_were_captured(
    length: int, identity: bytes, size: int, flags: int, copy: bool
) -> None:
    """At the end of a connection Multipath TCP acknowledges twice within 20 microseconds."""
    again = CapturedAgain()
    one = Captured(replace(segment(1, flags), source=bytes(length)), bytes(20), size, identity + bytes(18))
    assert again.note(one, True) == (False, False)
    assert again.note(one, True) == (copy, copy)
    syn = captured(segment(0, SYN))
    assert [again.note(syn, True), again.note(syn, True)][1] == (True, True)
    assert again.note(one, True) == (True, True), "where everything is there twice it is a copy"
    again.forget()
    assert [again.note(one, True), again.note(one, True)] == [(False, False), (copy, copy)]


@pytest.mark.parametrize(("after", "copy"), [(SOONEST_REPEATED / 2, True), (2 * SOONEST_REPEATED, False)])
def test_data_without_an_identification_are_a_copy_where_tcp_does_not_send_again_so_soon(
    after: float, copy: bool
) -> None:
    again = CapturedAgain()
    one = segment(1, ACK)
    for seconds, expected in ((0.0, False), (after, copy)):
        later = replace(one, source=bytes(16), time=one.time + seconds)
        assert again.note(Captured(later, bytes(20), 8, bytes(20)), True) == (expected, expected)


def test_what_is_remembered_is_bounded_and_enough() -> None:
    again, found = CapturedAgain(), 0
    for number in range(5 * REMEMBERED):
        assert again.note(captured(segment(number), 1), True) == (False, False)
        if number >= REMEMBERED:
            found += again.note(captured(segment(number - REMEMBERED + 1), 1), True) == (True, True)
        assert len(again._recent) + len(again._before) <= 2 * REMEMBERED
    assert found == 4 * REMEMBERED
