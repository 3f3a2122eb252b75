"""The guard's judgement: what is harm, what is not, when caps come back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.model import Guard
from mptcp_throttler.shaping.harm import HarmWatch, Look

MBIT = 1_000_000
STEP = 0.1
GUARD = Guard()


def four_tuple(path: int, connection: int = 1) -> FourTuple:
    return FourTuple(b"\x0a\x4d\x08\x02", 3128, bytes((10, 77, path, 2)), 40000 + connection)


@dataclass
class Flow:
    """A subflow whose rate and backlog the test sets."""

    look: Look
    rate: float
    """Bits/s."""
    waiting: int = 300_000
    """Bytes."""

    def go_on(self) -> Look:
        self.look = replace(self.look, delivered=self.look.delivered + int(self.rate / 8 * STEP), not_sent=self.waiting)
        return self.look


def capped(rate: float = 5 * MBIT, connection: int = 1) -> Flow:
    return Flow(Look(four_tuple(1, connection), True, 0, 0, 10), rate)


def free(rate: float = 30 * MBIT, connection: int = 1) -> Flow:
    return Flow(Look(four_tuple(2, connection), False, 0, 0, 10), rate)


@dataclass
class Scene:
    """Connections that are looked at every ``STEP`` seconds."""

    connections: Mapping[int, list[Flow]]
    guard: Guard = GUARD
    now: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = HarmWatch(self.guard)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += STEP
            looks = {token: [flow.go_on() for flow in flows] for token, flows in self.connections.items()}
            self.changes += [(self.now, token) for token in self.watch.see(self.now, looks)]

    def relaxed(self, token: int = 1) -> bool:
        return self.watch.relaxation(token) is not None


def test_a_healthy_connection_is_left_alone() -> None:
    scene = Scene({1: [capped(), free()]})
    scene.run(60)
    assert not scene.changes


@pytest.mark.parametrize("rate", [0, 1 * MBIT, 10 * MBIT])
def test_a_path_that_degrades_relaxes_the_cap_within_a_second_and_a_half(rate: float) -> None:
    wifi = free()
    scene = Scene({1: [capped(), wifi]})
    scene.run(5)
    wifi.rate = rate
    scene.run(1.5)
    assert scene.relaxed()
    relaxation = scene.watch.relaxation(1)
    assert relaxation is not None
    assert relaxation.path == wifi.look.path
    assert relaxation.yardstick == pytest.approx(30 * MBIT, rel=0.05)
    assert relaxation.rate < 0.8 * relaxation.yardstick


def test_the_cap_comes_back_when_the_path_is_seen_to_be_well() -> None:
    wifi, ethernet = free(), capped()
    scene = Scene({1: [ethernet, wifi]})
    scene.run(5)
    wifi.rate = 1 * MBIT
    scene.run(1.5)
    ethernet.rate = 95 * MBIT
    scene.run(1)
    assert scene.relaxed()
    wifi.rate = 30 * MBIT
    scene.run(2)
    assert not scene.relaxed()


def test_a_path_that_stays_ill_is_tried_ever_less_often() -> None:
    """It cannot be seen to be ill while little is sent over it: the cap has to be tried."""
    wifi, ethernet = free(), capped()
    scene = Scene({1: [ethernet, wifi]}, Guard(retry=2, longest_retry=8))
    scene.run(5)
    for _ in range(4):
        wifi.rate, wifi.waiting = 1 * MBIT, 300_000
        while not scene.relaxed() and scene.now < 100:
            scene.run(STEP)
        wifi.waiting = 0
        while scene.relaxed():
            scene.run(STEP)
    times = [time for time, _ in scene.changes]
    pauses = [round(after - before) for before, after in zip(times[::2], times[1::2], strict=True)]
    assert pauses == [2, 4, 8, 8]


def test_a_path_that_is_plainly_ill_is_not_tried() -> None:
    wifi = free()
    scene = Scene({1: [capped(), wifi]}, Guard(retry=2, longest_retry=8))
    scene.run(5)
    wifi.rate = 1 * MBIT
    scene.run(30)
    assert [token for _, token in scene.changes] == [1]
    assert scene.relaxed()


def test_what_another_leaves_free_takes_a_while_to_be_taken() -> None:
    first, second = free(15 * MBIT), free(15 * MBIT, 2)
    scene = Scene({1: [capped(), first], 2: [capped(connection=2), second]})
    scene.run(5)
    scene.connections = {1: scene.connections[1]}
    scene.run(1.5)
    first.rate = 30 * MBIT
    scene.run(5)
    assert not scene.changes


def test_a_start_after_a_pause_takes_a_while() -> None:
    wifi = free()
    scene = Scene({1: [capped(), wifi]})
    scene.run(5)
    wifi.rate, wifi.waiting = 10 * MBIT, 0
    scene.run(5)
    wifi.waiting = 300_000
    scene.run(1.5)
    wifi.rate = 30 * MBIT
    scene.run(5)
    assert not scene.changes


def test_a_path_that_stays_worse_sets_a_new_yardstick() -> None:
    wifi = free()
    scene = Scene({1: [capped(), wifi]}, Guard(retry=2, longest_retry=8))
    scene.run(5)
    wifi.rate = 10 * MBIT
    scene.run(200)
    assert not scene.relaxed()
    scene.changes.clear()
    scene.run(100)
    assert not scene.changes


def test_idle_is_no_harm() -> None:
    ethernet, wifi = capped(), free()
    scene = Scene({1: [ethernet, wifi]})
    scene.run(5)
    for flow in (ethernet, wifi):
        flow.rate, flow.waiting = 0, 0
        flow.look = replace(flow.look, unacked=0)
    scene.run(30)
    assert not scene.changes


@given(rate=st.floats(0.1, 20), waiting=st.floats(0, 0.049))
def test_an_application_that_is_slow_is_no_harm(rate: float, waiting: float) -> None:
    wifi = free()
    scene = Scene({1: [capped(1 * MBIT), wifi]})
    scene.run(5)
    wifi.rate, wifi.waiting = rate * MBIT, int(rate * MBIT / 8 * waiting)
    scene.run(5)
    assert not scene.changes


def test_sharing_a_path_is_no_harm() -> None:
    first, second = free(), free(0.0, 2)
    scene = Scene({1: [capped(), first], 2: [capped(connection=2), second]})
    scene.run(5)
    first.rate = second.rate = 15 * MBIT
    scene.run(30)
    assert not scene.changes


def test_a_short_pause_is_no_harm() -> None:
    """BBR stops for 0.2 s every ten seconds (PROBE_RTT)."""
    wifi = free()
    scene = Scene({1: [capped(), wifi]})
    for _ in range(5):
        wifi.rate = 30 * MBIT
        scene.run(5)
        wifi.rate = 0
        scene.run(0.2)
    assert not scene.changes


def test_a_path_that_never_gave_much_is_no_yardstick() -> None:
    wifi = free(0.3 * MBIT)
    scene = Scene({1: [capped(), wifi]})
    scene.run(5)
    wifi.rate = 0
    scene.run(5)
    assert not scene.changes


def test_where_everything_is_capped_nothing_is_compared() -> None:
    scene = Scene({1: [capped()]})
    scene.run(5)
    scene.connections[1][0].rate = 0
    scene.run(5)
    assert not scene.changes


def test_a_connection_that_ends_while_relaxed_is_said_to_have_changed_and_forgotten() -> None:
    wifi = free()
    scene = Scene({1: [capped(), wifi]})
    scene.run(5)
    wifi.rate = 0
    scene.run(2)
    assert scene.relaxed()
    assert scene.watch.see(scene.now + STEP, {}) == {1}
    assert scene.watch.relaxation(1) is None
