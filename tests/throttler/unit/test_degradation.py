# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the guard's detector: which rate changes of a path are a degradation, and when caps are restored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling import MBIT, Flow, capped_flow, four_tuple, make_samples, uncapped_flow

from mptcp_throttler.policy.model import Direction, Guard, Share
from mptcp_throttler.policy.verdict import ScopeKey
from mptcp_throttler.stages.baseline import MAX_UNUSED
from mptcp_throttler.stages.degradation import (
    MAX_IDLE_SAMPLES,
    Cap,
    DegradationDetector,
    GuardCounters,
    Relaxation,
)

TICK = 0.05
"""Seconds by which the simulation advances at a time."""
GUARD = Guard()
CAP = Cap(ScopeKey("cap", Share.PATH), 5 * MBIT)
SPACINGS = (0.1, 0.5, 1.0, 2.0)
"""Seconds between two sweeps."""
MIXED_SPACINGS = ((2.0, 0.1), (1.0, 0.1), (1.5, 0.5))
"""Seconds between two sweeps, and seconds between two look-ups of urgent subflows."""


def any_spacing(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with the shortest, the longest and one mixed spacing, and nightly with all spacings."""
    spacings = pytest.mark.parametrize(("spacing", "urgent"), [*((each, None) for each in SPACINGS), *MIXED_SPACINGS])
    nightly = pytest.mark.nightly(except_for=("0.1-None]", "2.0-None]", "2.0-0.1]"))
    marked: Callable[..., None] = nightly(spacings(test))
    return marked


@dataclass
class Scene:
    """Simulated connections. Sweeps sample all connections; look-ups between sweeps sample urgent connections."""

    connections: Mapping[int, list[Flow]]
    guard: Guard = GUARD
    spacing: float = 0.1
    """Seconds between two sweeps."""
    urgent: float | None = None
    """Seconds between two look-ups of urgent connections, or None for no look-ups."""
    now: float = 0.0
    changes: list[tuple[float, int]] = field(default_factory=list)
    """Time and token of each connection whose caps were relaxed or restored."""

    def __post_init__(self) -> None:
        self.detector = DegradationDetector(self.guard, GuardCounters(), Direction.DOWN)
        self.ticks = 0
        self.watched_tokens: set[int] = set()

    def run(self, seconds: float) -> None:
        for token in self.watched_tokens - self.connections.keys():
            self.detector.forget(token)
        self.watched_tokens = set(self.connections)
        for token, flows in self.connections.items():
            uncapped = [flow.four_tuple for flow in flows if not flow.capped]
            self.detector.watch(token, uncapped, {flow.four_tuple: CAP for flow in flows if flow.capped})
        for _ in range(round(seconds / TICK)):
            self.ticks += 1
            self.now = self.ticks * TICK
            flows = [flow for each in self.connections.values() for flow in each]
            for flow in flows:
                flow.advance(TICK)
            if self.ticks % round(self.spacing / TICK) == 0:
                self.observe(flows, complete=True)
            elif self.urgent is not None and self.ticks % round(self.urgent / TICK) == 0:
                urgent_flows = self.detector.urgent()
                self.observe([flow for flow in flows if flow.four_tuple in urgent_flows], complete=False)

    def observe(self, flows: list[Flow], complete: bool) -> None:
        samples = make_samples(self.now, [flow.socket for flow in flows], complete)
        self.changes += [(self.now, token) for changed in self.detector.observe(samples) for token in changed]

    def seconds_until_relaxed(self, max_seconds: float) -> float:
        """Continue for at most *max_seconds* seconds, until the caps of connection 1 are relaxed.

        Return how long that took.
        """
        start = self.now
        while not self.is_relaxed() and self.now < start + max_seconds:
            self.run(TICK)
        return self.now - start

    def is_relaxed(self, token: int = 1) -> bool:
        return self.detector.relaxation(token) is not None

    def relaxation(self, token: int = 1) -> Relaxation:
        relaxation = self.detector.relaxation(token)
        assert relaxation is not None
        return relaxation


def detection_limit(spacing: float, urgent: float | None) -> float:
    """Return the maximum time in seconds to detect a degradation: three intervals between samples, and ``after``."""
    sample_interval = spacing if urgent is None else urgent
    return max(1.5, 3 * sample_interval + GUARD.after)


@any_spacing
def test_healthy_connection_keeps_its_cap(spacing: float, urgent: float | None) -> None:
    scene = Scene({1: [capped_flow(), uncapped_flow()]}, spacing=spacing, urgent=urgent)
    scene.run(60)
    assert not scene.changes


@any_spacing
@pytest.mark.parametrize("phase", [0.0, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("rate", [0, 1 * MBIT, 10 * MBIT])
def test_cap_is_relaxed_within_the_limit_after_a_degradation(
    spacing: float, urgent: float | None, phase: float, rate: float
) -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]}, spacing=spacing, urgent=urgent)
    scene.run(8 + phase * spacing)
    wifi.rate = rate
    assert scene.seconds_until_relaxed(20) <= detection_limit(spacing, urgent) + 0.01
    relaxation = scene.relaxation()
    assert relaxation.path == wifi.four_tuple.remote
    assert relaxation.baseline == pytest.approx(30 * MBIT, rel=0.05)
    assert relaxation.rate < 0.8 * relaxation.baseline


@any_spacing
@pytest.mark.parametrize("phase", [0.0, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("rate", [0, 5 * MBIT])
def test_cap_is_relaxed_after_a_degradation_with_little_waiting_data(
    spacing: float, urgent: float | None, phase: float, rate: float
) -> None:
    """At 30 Mbit/s, 100 kB last only 27 ms.

    The connection therefore counts as backlogged only when the path degrades.
    """
    wifi = uncapped_flow()
    wifi.waiting = 100_000
    scene = Scene({1: [capped_flow(), wifi]}, spacing=spacing, urgent=urgent)
    scene.run(8 + phase * spacing)
    wifi.rate = rate
    assert scene.seconds_until_relaxed(20) <= detection_limit(spacing, urgent) + max(0.5, spacing)


@any_spacing
def test_cap_is_restored_when_the_path_has_recovered(spacing: float, urgent: float | None) -> None:
    wifi, ethernet = uncapped_flow(), capped_flow()
    scene = Scene({1: [ethernet, wifi]}, Guard(retry=30), spacing, urgent)
    scene.run(8)
    wifi.rate = 1 * MBIT
    scene.run(detection_limit(spacing, urgent))
    ethernet.rate = 95 * MBIT
    scene.run(1)
    assert scene.is_relaxed()
    wifi.rate = 30 * MBIT
    scene.run(max(2.0, detection_limit(spacing, urgent)))
    assert not scene.is_relaxed()


def test_cap_is_tried_less_often_while_the_path_stays_degraded() -> None:
    """While a path carries little, the guard cannot detect that it is degraded, and has to try the cap again."""
    wifi, ethernet = uncapped_flow(), capped_flow()
    scene = Scene({1: [ethernet, wifi]}, Guard(retry=2, longest_retry=8))
    scene.run(5)
    for _ in range(4):
        wifi.rate, wifi.waiting = 1 * MBIT, 300_000
        while not scene.is_relaxed() and scene.now < 100:
            scene.run(0.1)
        wifi.waiting = 0
        while scene.is_relaxed():
            scene.run(0.1)
    times = [time for time, _ in scene.changes]
    pauses = [round(after - before) for before, after in zip(times[::2], times[1::2], strict=True)]
    assert pauses == [2, 4, 8, 8]


@any_spacing
def test_cap_is_not_tried_while_the_path_is_clearly_degraded(spacing: float, urgent: float | None) -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]}, Guard(retry=2, longest_retry=8), spacing, urgent)
    scene.run(8)
    wifi.rate = 1 * MBIT
    scene.run(30)
    assert [token for _, token in scene.changes] == [1]
    assert scene.is_relaxed()


@any_spacing
@pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.9])
def test_delayed_use_of_capacity_that_another_connection_left_is_not_a_degradation(
    spacing: float, urgent: float | None, phase: float
) -> None:
    first, second = uncapped_flow(15 * MBIT), uncapped_flow(15 * MBIT, 2)
    scene = Scene({1: [capped_flow(), first], 2: [capped_flow(connection=2), second]}, spacing=spacing, urgent=urgent)
    scene.run(8 + phase * spacing)
    scene.connections = {1: scene.connections[1]}
    scene.run(1.5)
    first.rate = 30 * MBIT
    scene.run(6)
    assert not scene.changes


@any_spacing
@pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.9])
def test_slow_start_after_a_pause_is_not_a_degradation(spacing: float, urgent: float | None, phase: float) -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]}, spacing=spacing, urgent=urgent)
    scene.run(8 + phase * spacing)
    wifi.rate, wifi.waiting = 10 * MBIT, 0
    scene.run(5)
    wifi.waiting = 300_000
    scene.run(1.5)
    wifi.rate = 30 * MBIT
    scene.run(6)
    assert not scene.changes


def test_path_that_stays_slower_gets_a_new_baseline() -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]}, Guard(retry=2, longest_retry=8))
    scene.run(5)
    wifi.rate = 10 * MBIT
    scene.run(200)
    assert not scene.is_relaxed()
    scene.changes.clear()
    scene.run(100)
    assert not scene.changes


@any_spacing
def test_idle_connection_is_not_degraded(spacing: float, urgent: float | None) -> None:
    ethernet, wifi = capped_flow(), uncapped_flow()
    scene = Scene({1: [ethernet, wifi]}, spacing=spacing, urgent=urgent)
    scene.run(5)
    for flow in (ethernet, wifi):
        flow.rate, flow.waiting, flow.unacked = 0, 0, 0
    scene.run(30)
    assert not scene.changes
    assert not scene.detector.urgent(), "an idle connection is urgent"


@given(
    rate=st.floats(0.1, 20),
    waiting=st.floats(0, 0.049),
    spacing=st.sampled_from([*((each, None) for each in SPACINGS), *MIXED_SPACINGS]),
)
def test_slow_application_is_not_degraded(rate: float, waiting: float, spacing: tuple[float, float | None]) -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(1 * MBIT), wifi]}, GUARD, *spacing)
    scene.run(5)
    wifi.rate, wifi.waiting = rate * MBIT, int(rate * MBIT / 8 * waiting)
    scene.run(5)
    assert not scene.changes


@any_spacing
def test_slow_client_is_not_degraded(spacing: float, urgent: float | None) -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(1 * MBIT), wifi]}, GUARD, spacing, urgent)
    scene.run(5)
    wifi.rate = 6 * MBIT
    for _ in range(100):
        wifi.window_limited += int(0.5e6 * TICK)
        scene.run(TICK)
    assert not scene.changes


@any_spacing
@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(("idle", "waiting"), [(True, 300_000), (False, 300_000), (True, 0)])
def test_sharing_a_path_is_not_a_degradation(
    spacing: float, urgent: float | None, share: float, phase: float, idle: bool, waiting: int
) -> None:
    """First, the other connection is *idle* or gets no share of the path. Then it sends, with or without a backlog."""
    first, second = uncapped_flow(), uncapped_flow(0.0, 2)
    if idle:
        second.waiting = second.unacked = 0
    scene = Scene({1: [capped_flow(), first], 2: [capped_flow(connection=2), second]}, GUARD, spacing, urgent)
    scene.run(6 + phase * spacing)
    first.rate, second.rate, second.waiting, second.unacked = share * 30 * MBIT, (1 - share) * 30 * MBIT, waiting, 10
    scene.run(30)
    assert not scene.changes


@pytest.mark.parametrize(("spacing", "urgent"), MIXED_SPACINGS)
@pytest.mark.parametrize("phase", [0.0, 0.3, 0.6, 0.9])
def test_all_subflows_of_a_path_are_sampled_before_caps_are_relaxed(
    spacing: float, urgent: float, phase: float
) -> None:
    """The guard waits for 0 s here. The other connection is not backlogged, so its last sample is older."""
    first, second = uncapped_flow(), uncapped_flow(0.0, 2)
    second.waiting = 0
    scene = Scene(
        {1: [capped_flow(), first], 2: [capped_flow(connection=2), second]},
        Guard.model_construct(after=0.0, retry=5.0, longest_retry=300.0),
        spacing,
        urgent,
    )
    scene.run(8 + phase * spacing)
    first.rate, second.rate = 5 * MBIT, 25 * MBIT
    scene.run(10)
    assert not scene.changes


@any_spacing
def test_alternating_connections_do_not_add_up_to_a_baseline(spacing: float, urgent: float | None) -> None:
    """Two connections use a path alternately. One is never backlogged, so only sweeps sample it."""
    first, second = uncapped_flow(0.0), uncapped_flow(30 * MBIT, 2)
    second.waiting = 0
    scene = Scene({1: [capped_flow(), first], 2: [capped_flow(connection=2), second]}, GUARD, spacing, urgent)
    for period in range(12):
        first.rate, second.rate = (30 * MBIT, 0.0) if period % 2 else (0.0, 30 * MBIT)
        first.waiting = 300_000 if period % 2 else 0
        first.unacked = 10 if period % 2 else 0
        scene.run(2.3)
    first.rate, second.rate, first.waiting = 20 * MBIT, 0, 300_000
    scene.run(10)
    assert not scene.changes


@any_spacing
@pytest.mark.parametrize("phase", [0.0, 0.35, 0.7])
def test_short_pause_is_not_a_degradation(spacing: float, urgent: float | None, phase: float) -> None:
    """BBR nearly stops for 0.2 s every ten seconds (PROBE_RTT)."""
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]}, GUARD, spacing, urgent)
    scene.run(phase)
    for _ in range(5):
        wifi.rate = 30 * MBIT
        scene.run(5)
        wifi.rate = 0
        scene.run(0.2)
    assert not scene.changes


def test_path_that_was_always_slow_has_no_baseline() -> None:
    wifi = uncapped_flow(0.3 * MBIT)
    scene = Scene({1: [capped_flow(), wifi]})
    scene.run(5)
    wifi.rate = 0
    scene.run(5)
    assert not scene.changes


def test_connection_with_only_capped_subflows_is_not_compared() -> None:
    scene = Scene({1: [capped_flow()]})
    scene.run(5)
    scene.connections[1][0].rate = 0
    scene.run(5)
    assert not scene.changes


def test_relaxed_connection_that_ends_is_forgotten() -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]})
    scene.run(5)
    wifi.rate = 0
    scene.run(2)
    assert scene.is_relaxed()
    scene.detector.forget(1)
    assert not scene.is_relaxed()
    assert not scene.detector.watched()
    assert not scene.detector.urgent()


def test_relaxation_continues_after_a_change_of_subflows() -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]}, Guard(retry=30))
    scene.run(5)
    wifi.rate = 0
    scene.run(2)
    third = Flow(four_tuple(3), False, 20 * MBIT)
    scene.connections = {1: [*scene.connections[1], third]}
    scene.run(2)
    assert scene.is_relaxed()
    scene.connections = {1: [third]}
    scene.run(1)
    assert scene.detector.watched() == {third.four_tuple}


def test_only_backlogged_connections_are_urgent() -> None:
    """A busy connection that is limited by its application gives a baseline, but cannot be relaxed."""
    wifi = uncapped_flow()
    wifi.waiting = 0
    scene = Scene({1: [capped_flow(), wifi]})
    scene.run(5)
    assert scene.detector.watched() == {wifi.four_tuple}
    assert not scene.detector.urgent()
    wifi.waiting = 300_000
    scene.run(0.1)
    assert len(scene.detector.urgent()) == len(scene.detector.watched()) == 2
    scene.run(3)
    wifi.rate = 5 * MBIT
    scene.run(2)
    assert scene.relaxation().baseline == pytest.approx(30 * MBIT, rel=0.05)
    wifi.rate = 30 * MBIT
    scene.run(8)
    wifi.waiting = 0
    scene.run(0.1 * MAX_IDLE_SAMPLES)
    assert not scene.detector.urgent()
    assert scene.detector.watched() == {wifi.four_tuple}


def test_limited_number_of_baselines_outlives_their_connections() -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]})
    scene.run(5)
    second = uncapped_flow(1 * MBIT, 2)
    scene.connections = {2: [capped_flow(connection=2), second]}
    scene.run(6)
    assert scene.is_relaxed(2)
    for number in range(3 * MAX_UNUSED):
        flows = [capped_flow(connection=number), uncapped_flow(connection=number)]
        flows[1].four_tuple = four_tuple(2, number, 78 + number // 200)._replace(remote=number.to_bytes(4, "big"))
        scene.connections = {number: flows}
        scene.run(2)
    assert len(scene.detector._paths.used) + len(scene.detector._paths.unused) <= MAX_UNUSED + 1
