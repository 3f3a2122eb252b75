# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the resequencer's C code: the order in which it releases packets."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

SOURCE = Path(__file__).parents[3] / "tunnel/mptcp_tunnel/resequencer"
MS = 1_000_000
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32)
HOLD_TIME = 50 * MS


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    file = tmp_path_factory.mktemp("order") / "order.so"
    flags = [
        "-O1",
        "-g",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=undefined",
        "-fno-sanitize-recover",
        "-shared",
        "-fPIC",
    ]
    subprocess.run(["gcc", *flags, "-o", file, SOURCE / "order.c"], check=True)
    loaded = ctypes.CDLL(str(file))
    loaded.order_expire.restype = ctypes.c_uint64
    return loaded


class Order:
    """The resequencer's state of one flow, and the packets that it has released."""

    def __init__(self, library: ctypes.CDLL, hold_time: int = HOLD_TIME) -> None:
        self._library = library
        self._order = ctypes.create_string_buffer(1 << 16)
        self.released: list[int] = []
        self._callback = RELEASE(lambda _, packet: self.released.append(packet))
        library.order_begin(self._order, ctypes.c_uint64(hold_time))

    def accept(self, number: int, path: int, now: int, packet: int | None = None) -> None:
        packet = number if packet is None else packet
        arrival = ctypes.c_uint64(now)
        self._library.order_accept(
            self._order,
            ctypes.c_uint16(1 + (number - 1) % 65_535),
            path,
            ctypes.c_uint32(packet),
            arrival,
            self._callback,
            None,
        )

    def expire(self, now: int) -> int:
        return int(self._library.order_expire(self._order, ctypes.c_uint64(now), self._callback, None))


@pytest.fixture
def order(library: ctypes.CDLL) -> Order:
    return Order(library)


def test_packets_in_order_are_released_at_once(order: Order) -> None:
    for number in range(65_530, 65_550):
        order.accept(number, number % 2, MS)
    assert order.released == list(range(65_530, 65_550))


def test_packets_wait_until_a_gap_is_filled(order: Order) -> None:
    order.accept(1, 0, MS)
    order.accept(2, 1, MS)
    for number in (4, 5, 6):
        order.accept(number, 0, 2 * MS)
    assert order.released == [1, 2]
    order.accept(3, 1, 3 * MS)
    assert order.released == [1, 2, 3, 4, 5, 6]


def test_gap_counts_as_lost_when_each_path_has_delivered_a_later_packet(order: Order) -> None:
    order.accept(1, 0, MS)
    order.accept(2, 1, MS)
    order.accept(4, 0, 2 * MS)
    assert order.released == [1, 2]
    order.accept(5, 1, 2 * MS)
    assert order.released == [1, 2, 4, 5], "packet 3 was not given up after both paths had delivered later packets"
    order.accept(3, 1, 3 * MS)
    assert order.released[-1] == 3, "the late packet was dropped"


def test_packet_is_held_only_for_the_hold_time(order: Order) -> None:
    order.accept(1, 0, MS)
    order.accept(2, 1, MS)
    order.accept(4, 0, 2 * MS)
    assert order.expire(10 * MS) == 2 * MS + HOLD_TIME
    assert order.expire(2 * MS + HOLD_TIME) == 0
    assert order.released == [1, 2, 4]


def test_loss_on_a_single_path_is_detected_at_once(order: Order) -> None:
    order.accept(1, 0, MS)
    order.accept(3, 0, MS)
    assert order.released == [1, 3]


def test_long_idle_path_does_not_delay_packets(order: Order) -> None:
    order.accept(1, 1, MS)
    order.accept(2, 0, 2000 * MS)
    order.accept(4, 0, 2001 * MS)
    assert order.released == [1, 2, 4]


def test_number_far_ahead_restarts_the_order(order: Order) -> None:
    order.accept(1, 0, MS)
    order.accept(2, 1, MS)
    order.accept(4, 0, MS)
    order.accept(30_000, 0, MS)
    assert order.released == [1, 2, 4, 30_000]


@st.composite
def arrivals(draw: st.DrawFn) -> tuple[list[tuple[int, int, int]], bool]:
    """Draw the number, path and arrival time of packets on 2 or 3 paths, and whether packets may be lost. Each path has
    its own delay and keeps the order."""
    delays = draw(st.lists(st.integers(0, 40), min_size=2, max_size=3))
    lossy = draw(st.booleans())
    begin = draw(st.sampled_from([0, 65_500]))
    packets = []
    for number in range(draw(st.integers(1, 80))):
        path = draw(st.integers(0, len(delays) - 1))
        if not (lossy and draw(st.integers(0, 5)) == 0):
            packets.append((begin + number, path, (10 + number + delays[path]) * MS))
    return sorted(packets, key=lambda each: each[2]), lossy


@given(arrivals())
def test_packets_are_released_once_and_in_order_unless_some_are_lost(
    library: ctypes.CDLL, packets_and_loss: tuple[Sequence[tuple[int, int, int]], bool]
) -> None:
    arrived, lossy = packets_and_loss
    order = Order(library)
    held_since: dict[int, int] = {}
    # Each path has carried a packet before, so that all paths are known.
    for path in range(3):
        order.accept((arrived[0][0] if arrived else 0) - 3 + path, path, MS)
    lowest = min((number for number, _, _ in arrived), default=0)
    released_before = len(order.released)
    for number, path, now in arrived:
        order.expire(now)
        order.accept(number, path, now)
        held_since[number] = now
        held = set(held_since) - set(order.released[released_before:])
        assert all(now - held_since[each] < HOLD_TIME for each in held)
        assert order.expire(now) == (min(held_since[each] for each in held) + HOLD_TIME if held else 0)
    order.expire(10_000 * MS)
    released = order.released[released_before:]
    assert sorted(released) == sorted(number for number, _, _ in arrived)
    # Packets with lower numbers than the first arrival count as late, and are released at once.
    if not lossy and arrived and arrived[0][0] == lowest:
        assert released == sorted(released)
