# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for rate transitions: the limits of one socket from sample to sample, and the level of a shared cap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mptcp_throttler.mptcp.model import TcpInfo
from mptcp_throttler.shaping.model import SocketLimit
from mptcp_throttler.shaping.onset.rate_transition import (
    MAX_DRAIN_SECONDS,
    MAX_SETTLE_SECONDS,
    MIN_UNSENT_BYTES,
    RAMP_SECONDS,
    RateTransition,
    needs_transition,
)
from mptcp_throttler.shaping.onset.share import HEADROOM, max_min_level

MUCH_IN_FLIGHT = TcpInfo(
    rtt=40_000,
    mss=1448,
    unacked=350,
    not_sent=2_000_000,
    pacing_rate=100_000_000,
    max_pacing_rate=None,
    delivery_rate=95_000_000,
    receive_window_limited=0,
)
IDLE = MUCH_IN_FLIGHT._replace(unacked=0, not_sent=0)

rates = st.integers(64_000, 10_000_000_000)


def phase_of(transition: RateTransition) -> str:
    if transition.ramp_began is None:
        return "drain"
    return "done" if transition.is_done else "settle" if transition.is_capped else "ramp"


def test_transition_drains_ramps_and_ends() -> None:
    transition = RateTransition.begin(MUCH_IN_FLIGHT, 5_000_000, 0.0)
    draining = transition.step(0.0, 2_000_000)
    assert phase_of(transition) == "drain"
    assert draining.rate is None, "the rate is limited while queued data are sent"
    assert draining.not_sent is not None
    assert 230_000 < draining.not_sent < 240_000, "the limit of unsent bytes is not 20 ms at 95 Mbit/s"
    assert transition.step(0.1, 900_000) == draining
    ramping = transition.step(0.2, draining.not_sent)
    assert phase_of(transition) == "ramp"
    assert ramping.rate == 95_000_000
    halfway = transition.step(0.2 + RAMP_SECONDS / 2, 50_000)
    assert halfway.rate == pytest.approx((95e6 * 5e6) ** 0.5, rel=0.01), "the rate does not fall geometrically"
    assert transition.step(1.5, 50_000) == SocketLimit(5_000_000)
    assert phase_of(transition) == "done"


def test_long_drain_ends_after_a_maximum_time() -> None:
    transition = RateTransition.begin(MUCH_IN_FLIGHT, 5_000_000, 0.0)
    transition.step(MAX_DRAIN_SECONDS - 0.01, 2_000_000)
    assert phase_of(transition) == "drain"
    transition.step(MAX_DRAIN_SECONDS, 2_000_000)
    assert phase_of(transition) == "ramp"


def test_unsent_limit_corresponds_to_less_time_at_a_lower_cap() -> None:
    seconds_at_cap = []
    for target in (1_000_000, 5_000_000):
        transition = RateTransition.begin(MUCH_IN_FLIGHT, target, 0.0)
        transition.step(0.0, 0)
        seconds_at_cap.append(8 * (transition.step(RAMP_SECONDS, 0).not_sent or 0) / target)
    assert seconds_at_cap[0] < 0.06 < 0.16 < seconds_at_cap[1], "wrong limit of unsent bytes, in seconds at the cap"


def test_unsent_bytes_are_limited_for_some_time_after_the_ramp() -> None:
    transition = RateTransition.begin(MUCH_IN_FLIGHT, 5_000_000, 0.0)
    transition.step(0.0, 0)
    settling = transition.step(RAMP_SECONDS, 0)
    assert phase_of(transition) == "settle"
    assert transition.is_capped
    assert settling.rate == 5_000_000
    assert settling.not_sent is not None
    assert transition.step(RAMP_SECONDS + 0.5, 0) == SocketLimit(5_000_000)
    assert phase_of(transition) == "done"


@given(start=rates, target=rates, samples=st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 10**8)), max_size=60))
def test_rate_of_a_transition_only_decreases_and_reaches_the_target(
    start: int, target: int, samples: list[tuple[float, int]]
) -> None:
    tcp = MUCH_IN_FLIGHT._replace(pacing_rate=start, delivery_rate=start)
    transition = RateTransition.begin(tcp, target, 0.0)
    now, last = 0.0, float("inf")
    for pause, not_sent in [*samples, (MAX_DRAIN_SECONDS, 0), (RAMP_SECONDS + MAX_SETTLE_SECONDS + 0.001, 0)]:
        now += pause
        limit = transition.step(now, not_sent)
        rate = float("inf") if limit.rate is None else limit.rate
        assert target - 1 <= rate <= last
        assert limit.not_sent is None or limit.not_sent >= MIN_UNSENT_BYTES
        last = rate
    assert phase_of(transition) == "done"
    assert transition.step(now, 0) == SocketLimit(target)


def test_only_a_busy_socket_with_a_much_lower_cap_needs_a_transition() -> None:
    assert needs_transition(MUCH_IN_FLIGHT, 5_000_000)
    assert not needs_transition(MUCH_IN_FLIGHT, 80_000_000), "a small change of the rate needs a transition"
    assert not needs_transition(IDLE, 5_000_000), "a socket without data in flight needs a transition"


@given(ceil=rates, demands=st.lists(st.none() | st.integers(0, 10**10), min_size=1, max_size=20))
def test_level_uses_the_whole_cap_with_a_small_excess(ceil: int, demands: list[int | None]) -> None:
    level = max_min_level(ceil, demands)
    assert ceil / len(demands) * 0.99 - 1 <= level <= ceil
    used = sum(level / HEADROOM if demand is None else min(demand, level / HEADROOM) for demand in demands)
    assert used <= ceil * 1.01 + len(demands)
    if None in demands and level < ceil:
        assert used >= ceil * 0.99 - len(demands), "backlogged subflows do not get the rest of the cap"


def test_max_min_levels_of_some_demands() -> None:
    assert max_min_level(5_000_000, [None]) == 5_000_000
    assert max_min_level(5_000_000, [None, None]) == 2_750_000
    assert max_min_level(5_000_000, [None, 0, 0, 0]) == 5_000_000
    assert max_min_level(9_000_000, [None, 1_000_000, None]) == 4_400_000
