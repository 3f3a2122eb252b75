# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for larger send buffers of sockets with a low cap: the sockets that get them, their size, and their number."""

from __future__ import annotations

import pytest
from test_rate_transition import IDLE, MUCH_IN_FLIGHT
from test_shaping_plan import NOW, rule, subflow, throttle, uncapped, verdict
from test_transitions import Scene

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.policy.model import Rule
from mptcp_throttler.shaping.model import SocketLimit
from mptcp_throttler.shaping.onset.share import (
    LOW_RATE,
    MAX_BYTES,
    MAX_IDLE_SOCKETS,
    MAX_SOCKETS,
    SendBuffers,
    send_buffer,
)

LOW = rule(cap=throttle(2_000_000))
TWO_MBIT = send_buffer(2_000_000)


def scene_of(tcp: TcpInfo, cap: Rule = LOW) -> Scene:
    scene = Scene(cap)
    scene.tcp[subflow(1)] = tcp
    scene.planner.set_verdicts(1, [verdict(1, cap)], NOW)
    return scene


@pytest.mark.parametrize(
    ("rate", "size"),
    [(LOW_RATE, 0), (LOW_RATE - 1, 1_258_292), (2_000_000, 3_145_728), (1_000_000, MAX_BYTES), (8, MAX_BYTES)],
)
def test_buffer_is_larger_for_a_lower_cap(rate: int, size: int) -> None:
    assert send_buffer(rate) == pytest.approx(size, rel=1e-5)


def test_number_of_buffers_is_limited_and_half_are_for_backlogged_sockets() -> None:
    buffers = SendBuffers()
    idle = [buffers.grant(cookie, 1_000_000, backlogged=False) for cookie in range(10_000)]
    assert sum(idle) == MAX_IDLE_SOCKETS
    backlogged = [buffers.grant(cookie, 1_000_000, backlogged=True) for cookie in range(10_000, 20_000)]
    assert sum(backlogged) == MAX_SOCKETS - MAX_IDLE_SOCKETS
    assert not buffers.grant(20_000, 1_000_000, backlogged=True)
    del buffers[0]
    assert buffers.grant(20_000, 1_000_000, backlogged=True)


def test_buffer_grows_with_a_lower_cap_but_not_for_small_changes() -> None:
    buffers = SendBuffers()
    assert buffers.grant(1, 3_000_000, backlogged=True)
    assert not buffers.grant(1, 2_900_000, backlogged=True)
    assert not buffers.grant(1, 4_000_000, backlogged=True)
    assert buffers.get(1) == send_buffer(3_000_000)
    assert buffers.grant(1, 1_000_000, backlogged=True)
    assert buffers.get(1) == MAX_BYTES


def test_existing_buffer_gets_the_maximum_size_when_the_cap_rises() -> None:
    buffers = SendBuffers()
    assert buffers.grant(1, LOW_RATE - 1, backlogged=True)
    assert buffers.grant(1, 50_000_000, backlogged=False), "the existing buffer was not enlarged"
    assert buffers.get(1) == MAX_BYTES
    assert not buffers.grant(2, 50_000_000, backlogged=True), "a socket without a large buffer got one"


@pytest.mark.parametrize("tcp", [MUCH_IN_FLIGHT, IDLE], ids=["busy", "idle"])
def test_low_cap_sets_a_larger_buffer_immediately(tcp: TcpInfo) -> None:
    scene = scene_of(tcp)
    scene.run(0.01)
    assert scene.limits[1].send_buffer == TWO_MBIT
    scene.run(5.0, start=0.02)
    assert scene.limits == {1: SocketLimit(2_000_000, None, TWO_MBIT)}


def test_higher_cap_does_not_change_the_buffer() -> None:
    scene = scene_of(MUCH_IN_FLIGHT, rule())
    scene.run(5.0)
    assert scene.limits == {1: SocketLimit(5_000_000)}


def test_uncapped_socket_keeps_the_maximum_size_and_counts_until_it_closes() -> None:
    scene = scene_of(MUCH_IN_FLIGHT)
    scene.run(5.0)
    scene.planner.set_verdicts(1, [uncapped(1, rule())], NOW)
    scene.run(2.0, start=5.0)
    assert scene.limits == {1: SocketLimit(send_buffer=MAX_BYTES)}
    assert scene.transitions._sockets, "the socket is no longer looked up, although it has not closed"
    del scene.tcp[subflow(1)]
    scene.run(40.0, start=7.0)
    assert scene.limits == {}
    assert not scene.transitions._sockets


def test_subflow_of_a_shared_cap_gets_its_buffer_when_it_is_backlogged() -> None:
    shared = rule(cap=throttle(4_000_000))
    scene = scene_of(MUCH_IN_FLIGHT, shared)
    scene.tcp[subflow(2)] = MUCH_IN_FLIGHT
    scene.planner.set_verdicts(2, [verdict(2, shared)], NOW)
    scene.run(5.0)
    rate = scene.limits[1].rate
    assert rate is not None
    assert rate < LOW_RATE / 2
    assert scene.limits[1].send_buffer == pytest.approx(send_buffer(rate), rel=0.25)
