# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for caps on uploads: the rate of the class decreases in a ramp, and a slow client has no ramp.

An assignment is the 64 KiB that the MPTCP scheduler gives to one subflow at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from policy_values import a_rule, a_throttle
from test_shaping_plan import NOW, policy, rule, subflow, throttle

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Onset, Rule, Share, Throttle
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.shaping.model import Ownership
from mptcp_throttler.shaping.onset.rate_transition import ASSIGNMENT_BYTES
from mptcp_throttler.shaping.onset.uploads import (
    LAG_BYTES,
    LAG_SECONDS,
    MAX_BASE_LAG_SECONDS,
    MAX_FALL,
    MAX_FALL_PER_ASSIGNMENT,
    MAX_RAMP_SECONDS,
    MAX_UNSAMPLED_SECONDS,
    STEP_SECONDS,
    UploadOnsets,
    allowed_fall,
)
from mptcp_throttler.shaping.plan import Planner

UPLOADS = frozenset({Direction.UP})
RAMP_SECONDS = 6.0
"""Duration in seconds that is enough for a ramp to 5 Mbit/s without delays."""
SIBLING = subflow(100)
"""Another subflow of the same connection, without a cap."""
SIBLING_RATE = 20_000_000


def upload_rule(cap: Throttle) -> Rule:
    return a_rule("cap", None, cap, direction=UPLOADS)


@dataclass
class Scene:
    """Subflows that send at their rates, in bit/s, until their class limits them."""

    rates: dict[FourTuple, int]
    cap: Throttle = field(default_factory=throttle)
    now: float = 0.0
    sampling_fails: bool = False
    sibling_lead: float | None = None
    """Seconds by which the data sequence of the sibling is ahead. None: there is no sibling."""
    first_sequence: int = 0

    def __post_init__(self) -> None:
        self.planner = Planner(Ownership(), Direction.UP)
        self.transitions = UploadOnsets(self.planner, self.subflows)
        self.planner.set_policy(policy(upload_rule(self.cap)))
        self.planner.prepare_path_classes(NOW)

    def subflows(self, token: int) -> list[FourTuple]:
        return [*self.rates, *([] if self.sibling_lead is None else [SIBLING])]

    def sample(self, four_tuple: FourTuple) -> KernelSubflow:
        rate, lead_bytes = self.rates.get(four_tuple, SIBLING_RATE), 0.0
        if four_tuple == SIBLING and self.sibling_lead is not None:
            lead_bytes = self.sibling_lead * SIBLING_RATE / 8
        return KernelSubflow(
            1,
            four_tuple,
            True,
            0,
            0,
            False,
            self.now,
            bytes_received=int(rate / 8 * self.now),
            data_sequence=(self.first_sequence + int(lead_bytes)) % (1 << 64),
        )

    def change_cap(self, cap: Throttle) -> None:
        self.cap = cap
        self.planner.set_policy(policy(upload_rule(cap)))
        self.decide()

    def decide(self) -> None:
        scope = ScopeKey("cap", Share.PATH, None, Direction.UP)
        verdicts = [
            Verdict(each, "any", upload_rule(self.cap), scope, self.cap, "", Direction.UP) for each in self.rates
        ]
        self.planner.set_verdicts(1, verdicts, NOW)

    def run(self, seconds: float) -> list[int]:
        """Advance the time. Return the class's rates: one for each step after which an entry uses the class."""
        rates = []
        for _ in range(round(seconds / STEP_SECONDS)):
            self.now += STEP_SECONDS
            list(self.transitions.step(self.now))
            if not self.sampling_fails:
                urgent = self.transitions.urgent()
                self.transitions.observe(urgent, {each: self.sample(each) for each in urgent}, self.now)
            if self.planner.entries.desired:
                rates += [spec.ceil for spec in self.planner.classes.desired.values()]
        return rates


def test_rate_of_the_class_decreases_from_the_incoming_rate_to_the_cap() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.decide()
    assert not scene.planner.entries.desired
    rates = scene.run(RAMP_SECONDS + 1)
    assert rates[0] == pytest.approx(90e6, rel=0.05)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 5_000_000
    assert max(before / after for before, after in pairwise(rates)) < 1.1


def test_slow_sender_is_capped_without_a_ramp() -> None:
    scene = Scene({subflow(1): 5_000_000})
    scene.decide()
    assert set(scene.run(1)) == {5_000_000}


def test_immediate_cap_has_no_ramp() -> None:
    scene = Scene({subflow(1): 90_000_000}, a_throttle(5_000_000, 5_000_000, None, Share.PATH, Onset.IMMEDIATE))
    scene.decide()
    assert set(scene.run(1)) == {5_000_000}


def test_ramp_of_a_shared_cap_starts_at_the_sum_of_the_rates() -> None:
    scene = Scene({subflow(1): 40_000_000, subflow(2): 50_000_000})
    scene.decide()
    rates = scene.run(RAMP_SECONDS + 1)
    assert rates[0] == pytest.approx(90e6, rel=0.05)
    assert rates[-1] == 5_000_000


def test_cap_lowered_by_a_reload_has_a_ramp() -> None:
    scene = Scene({subflow(1): 90_000_000}, throttle(100_000_000))
    scene.decide()
    scene.run(1)
    scene.change_cap(throttle(5_000_000))
    rates = scene.run(RAMP_SECONDS + 1)
    assert rates[-1] == 5_000_000
    assert sum(5_500_000 < each < 80_000_000 for each in rates) > 20


def test_ramp_ends_when_its_only_subflow_ends() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.decide()
    scene.run(1)
    scene.planner.set_verdicts(1, (), NOW)
    scene.run(0.5)
    assert not scene.planner.entries.desired
    assert {spec.ceil for spec in scene.planner.classes.desired.values()} == {5_000_000}


def test_caps_begin_without_a_ramp_if_sockets_cannot_be_sampled() -> None:
    scene = Scene({subflow(1): 90_000_000}, sampling_fails=True)
    scene.decide()
    assert set(scene.run(MAX_UNSAMPLED_SECONDS + 1)) == {5_000_000}


def test_ramp_continues_if_sampling_begins_to_fail() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.decide()
    scene.run(1)
    scene.sampling_fails = True
    rates = scene.run(RAMP_SECONDS)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 5_000_000


def test_ramp_continues_when_another_subflow_ends() -> None:
    scene = Scene({subflow(1): 40_000_000, subflow(2): 50_000_000})
    scene.decide()
    scene.run(0.5)
    del scene.rates[subflow(2)]
    scene.decide()
    rates = scene.run(RAMP_SECONDS)
    assert rates[0] > 20_000_000, "the class had the final rate before the ramp continued"
    assert rates == sorted(rates, reverse=True)


def test_ramp_ends_when_its_rule_is_replaced() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.decide()
    scene.run(1)
    scene.planner.set_policy(policy(rule("other")))
    scene.planner.set_verdicts(1, [], NOW)
    scene.planner.expire(NOW + 1)
    scene.run(1)
    assert not scene.planner.classes.desired


CAP_1 = throttle(1_000_000)
MAX_LAG = min(LAG_SECONDS, 8 * LAG_BYTES / SIBLING_RATE)
"""The rate stays constant at this lag (seconds) plus the time in which one assignment of the scheduler is sent."""


def ramp_seconds(cap: Throttle, start: int = 90_000_000, sibling_lead: float | None = None) -> float:
    """Return the duration of the ramp to a cap, in seconds."""
    scene = Scene({subflow(1): start}, cap, sibling_lead=sibling_lead)
    scene.decide()
    rates = scene.run(MAX_RAMP_SECONDS + 1)
    assert rates[-1] == cap.ceil
    return STEP_SECONDS * sum(each > cap.ceil for each in rates)


def test_duration_of_a_ramp_depends_on_start_rate_and_cap() -> None:
    assert ramp_seconds(throttle(30_000_000)) == pytest.approx(1.1 / MAX_FALL, abs=0.2)
    assert ramp_seconds(throttle(10_000_000)) == pytest.approx(2.2 / MAX_FALL, abs=0.2)
    assert ramp_seconds(CAP_1) > 1.1 * 4.5 / MAX_FALL, "the ramp is not slower where one assignment takes long"


def test_rate_falls_more_slowly_at_low_rates() -> None:
    for rate in (500_000, 1_000_000, 100_000_000):
        assert allowed_fall(rate, 0, 0) <= MAX_FALL
        assert allowed_fall(rate, 0, 0) * 8 * ASSIGNMENT_BYTES / rate <= MAX_FALL_PER_ASSIGNMENT


def test_rate_stays_constant_while_the_other_subflows_are_ahead() -> None:
    scene = Scene({subflow(1): 90_000_000}, CAP_1, sibling_lead=0.0)
    scene.decide()
    scene.run(1)
    scene.sibling_lead = 2 * MAX_LAG
    constant_rates = scene.run(2)[5:]
    assert constant_rates[-1] > 0.95 * constant_rates[0] > 10_000_000
    scene.sibling_lead = 0.0
    rates = scene.run(1)
    assert rates[-1] < 0.6 * constant_rates[0]


def test_lag_of_one_assignment_does_not_stop_the_ramp() -> None:
    assert allowed_fall(1_000_000, 8 * ASSIGNMENT_BYTES / 1_000_000, SIBLING_RATE) == allowed_fall(
        1_000_000, 0, SIBLING_RATE
    )
    assert allowed_fall(1_000_000, MAX_LAG + 8 * ASSIGNMENT_BYTES / 1_000_000, SIBLING_RATE) == 0


def test_lag_is_also_limited_in_bytes() -> None:
    assert allowed_fall(50_000_000, LAG_SECONDS / 2, SIBLING_RATE) > 0
    assert allowed_fall(50_000_000, LAG_SECONDS / 2, 100_000_000) == 0


def test_different_path_delays_do_not_slow_the_ramp() -> None:
    assert ramp_seconds(CAP_1, sibling_lead=MAX_BASE_LAG_SECONDS) == pytest.approx(ramp_seconds(CAP_1), abs=0.2)


def test_sequence_numbers_can_wrap() -> None:
    scene = Scene({subflow(1): 90_000_000}, CAP_1, sibling_lead=0.0, first_sequence=(1 << 64) - 1000)
    scene.decide()
    scene.run(1)
    scene.sibling_lead = 2 * MAX_LAG
    constant_rates = scene.run(2)[5:]
    assert constant_rates[-1] > 0.95 * constant_rates[0]


def test_cap_is_reached_after_the_maximum_ramp_time_despite_a_lag() -> None:
    scene = Scene({subflow(1): 90_000_000}, CAP_1, sibling_lead=0.0)
    scene.decide()
    scene.run(1)
    scene.sibling_lead = 100.0
    rates = scene.run(MAX_RAMP_SECONDS)
    assert rates[-1] == 1_000_000
    assert min(each for each in rates if each > 1_000_000) < 2_000_000, (
        "the rate fell to the cap from more than twice its value"
    )
    assert not scene.transitions.busy


def test_siblings_are_sampled_until_the_ramp_ends() -> None:
    scene = Scene({subflow(1): 90_000_000}, sibling_lead=0.0)
    scene.decide()
    scene.run(1)
    assert set(scene.transitions.urgent()) == {subflow(1), SIBLING}
    scene.run(RAMP_SECONDS)
    assert not scene.transitions.urgent()


def test_subflows_of_a_shared_cap_have_one_ramp() -> None:
    scene = Scene({subflow(1): 40_000_000, subflow(2): 50_000_000})
    scene.decide()
    rates = scene.run(RAMP_SECONDS + 2)
    assert min(each for each in rates if each > 5_000_000) < 6_000_000, "the rate jumped at the end of the ramp"


def test_rate_of_siblings_is_not_computed_from_samples_milliseconds_apart() -> None:
    scene = Scene({subflow(1): 90_000_000}, sibling_lead=0.0)
    scene.decide()
    scene.run(1.0)
    (ramp,) = scene.transitions._ramps.values()
    sockets = {each: scene.sample(each) for each in scene.transitions.urgent()}
    scene.transitions.observe(list(sockets), sockets, scene.now + 0.1)
    before = ramp.siblings_rate
    sibling = sockets[SIBLING]
    sockets[SIBLING] = sibling._replace(bytes_received=sibling.bytes_received + ASSIGNMENT_BYTES)
    scene.transitions.observe(list(sockets), sockets, scene.now + 0.105)
    assert ramp.siblings_rate == before


def test_rate_is_computed_from_the_times_at_which_the_socket_was_read() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.decide()
    list(scene.transitions.step(3.0))
    # Two sweeps read the socket, the first before the subflow was capped. The third sample is from a look-up.
    for read, now in ((1.0, 4.05), (3.5, 4.5), (4.6, 4.6)):
        scene.now = read
        scene.transitions.observe([subflow(1)], {subflow(1): scene.sample(subflow(1))._replace(read=read)}, now)
        list(scene.transitions.step(now))
    (ramp,) = scene.transitions._ramps.values()
    assert ramp.start == pytest.approx(90_000_000, rel=0.01)
