# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the guard on downloads if a sweep needs seconds to read all sockets."""

from __future__ import annotations

import pytest
from sampling import MBIT, Flow, capped_flow, four_tuple, make_samples, uncapped_flow
from test_degradation import TICK, Scene


def test_late_end_of_a_sweep_does_not_change_a_paths_rate() -> None:
    scene = Scene({1: [capped_flow(), uncapped_flow()]})
    scene.run(8)
    flows = scene.connections[1]
    scene.run(TICK)
    early_sockets = [flow.socket._replace(read=scene.now) for flow in flows]
    for flow in flows:
        flow.advance(2.0)
    scene.ticks += round(2.0 / TICK)
    list(scene.detector.observe(make_samples(scene.now + 2.0, early_sockets, complete=True)))
    assert not scene.is_relaxed()
    scene.run(10)
    assert not scene.changes


def test_one_sample_in_a_long_sweep_does_not_prove_a_lasting_degradation() -> None:
    wifi = uncapped_flow()
    scene = Scene({1: [capped_flow(), wifi]})
    scene.run(8)
    wifi.rate = 1 * MBIT
    while (candidate := scene.detector.connections[1].candidate) is None or candidate.degraded_since is None:
        scene.run(TICK)
    for flow in scene.connections[1]:
        flow.advance(TICK)
    early_sockets = [flow.socket._replace(read=scene.now + TICK) for flow in scene.connections[1]]
    list(scene.detector.observe(make_samples(scene.now + 3.0, early_sockets)))
    assert not scene.is_relaxed(), "two samples shortly after each other were enough to relax the caps"


def test_subflows_read_seconds_apart_do_not_raise_the_baseline() -> None:
    idle = Flow(four_tuple(2, 2), False, 0.0, waiting=0, unacked=0, token=2)
    scene = Scene({1: [capped_flow(), uncapped_flow()], 2: [capped_flow(connection=2), idle]})
    scene.run(8)
    flows = [flow for each in scene.connections.values() for flow in each]
    for seconds in (0.1, 3.0):
        for flow in flows:
            flow.advance(seconds)
        scene.now += seconds
        if seconds == 0.1:
            early = [flow.socket._replace(read=scene.now) for flow in flows if flow.token == 2]
    late = [flow.socket._replace(read=scene.now) for flow in flows if flow.token == 1]
    list(scene.detector.observe(make_samples(scene.now, [*early, *late])))
    scene.ticks = round(scene.now / TICK)
    scene.run(2)
    (uncapped,) = scene.detector.connections[1].flows
    assert uncapped.path.baseline <= 1.1 * 30 * MBIT


def test_socket_of_an_earlier_connection_is_not_sampled() -> None:
    scene = Scene({1: [capped_flow(), uncapped_flow()]})
    scene.run(8)
    old = [flow.socket._replace(token=9, bytes_acked=10**9) for flow in scene.connections[1]]
    list(scene.detector.observe(make_samples(scene.now + 0.05, old)))
    (flow,) = scene.detector.connections[1].flows
    assert flow.path.baseline <= 1.1 * 30 * MBIT
    scene.run(2)
    assert flow.rate == pytest.approx(30 * MBIT, rel=0.1)
