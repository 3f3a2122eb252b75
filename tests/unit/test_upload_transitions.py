"""Caps on uploads: the class goes down in a ramp, and what sends little is capped at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from test_shaping_plan import NOW, policy, rule, subflow, throttle

from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.model import Direction, Onset, Rule, ScopeKey, Share, Throttle, Verdict
from mptcp_throttler.shaping.model import Ownership
from mptcp_throttler.shaping.plan import Planner
from mptcp_throttler.shaping.upload_transitions import (
    MAX_UNSAMPLED_SECONDS,
    RAMP_SECONDS,
    STEP_SECONDS,
    UploadTransitions,
)

UP = frozenset({Direction.UP})


def up(cap: Throttle) -> Rule:
    return Rule("cap", None, cap, directions=UP)


@dataclass
class Scene:
    """Subflows that send at some rate, bits/s, until their class says otherwise."""

    rates: dict[FourTuple, int]
    cap: Throttle = field(default_factory=throttle)
    now: float = 0.0
    broken: bool = False

    def __post_init__(self) -> None:
        self.planner = Planner(Ownership(), Direction.UP)
        self.transitions = UploadTransitions(self.planner)
        self.planner.set_policy(policy(up(self.cap)))
        self.planner.prepare_path_classes(NOW)

    def sample(self, four_tuple: FourTuple) -> KernelSubflow:
        received = int(self.rates[four_tuple] / 8 * self.now)
        return KernelSubflow(1, four_tuple, True, 0, 0, False, bytes_received=received)

    def load(self, cap: Throttle) -> None:
        self.cap = cap
        self.planner.set_policy(policy(up(cap)))
        self.judge()

    def judge(self) -> None:
        scope = ScopeKey("cap", Share.PATH, None, Direction.UP)
        verdicts = [Verdict(ft, "any", up(self.cap), scope, self.cap, "", Direction.UP) for ft in self.rates]
        self.planner.set_verdicts(1, verdicts, NOW)

    def run(self, seconds: float) -> list[int]:
        """Go on; return the rates that the class had, where a subflow is sent to it."""
        had = []
        for _ in range(round(seconds / STEP_SECONDS)):
            self.now += STEP_SECONDS
            list(self.transitions.step(self.now))
            if not self.broken:
                asked = self.transitions.urgent()
                self.transitions.observe(asked, {each: self.sample(each) for each in asked}, self.now)
            if self.planner.entries.desired:
                had += [spec.ceil for spec in self.planner.classes.desired.values()]
        return had


def test_the_class_falls_from_what_comes_in_to_the_cap_and_stays() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.judge()
    assert not scene.planner.entries.desired
    had = scene.run(RAMP_SECONDS + 1)
    assert had[0] == pytest.approx(90e6, rel=0.05)
    assert had == sorted(had, reverse=True)
    assert had[-1] == 5_000_000
    assert max(before / after for before, after in pairwise(had)) < 1.1


def test_what_sends_little_is_capped_at_once() -> None:
    scene = Scene({subflow(1): 5_000_000})
    scene.judge()
    assert set(scene.run(1)) == {5_000_000}


def test_at_once_means_at_once() -> None:
    scene = Scene({subflow(1): 90_000_000}, Throttle(5_000_000, 5_000_000, None, Share.PATH, Onset.AT_ONCE))
    scene.judge()
    assert set(scene.run(1)) == {5_000_000}


def test_those_that_share_a_cap_have_together_what_each_has() -> None:
    scene = Scene({subflow(1): 40_000_000, subflow(2): 50_000_000})
    scene.judge()
    had = scene.run(RAMP_SECONDS + 1)
    assert had[0] == pytest.approx(90e6, rel=0.05)
    assert had[-1] == 5_000_000


def test_a_cap_that_a_reload_lowers_falls_in_a_ramp_too() -> None:
    scene = Scene({subflow(1): 90_000_000}, throttle(100_000_000))
    scene.judge()
    scene.run(1)
    scene.load(throttle(5_000_000))
    had = scene.run(RAMP_SECONDS + 1)
    assert had[-1] == 5_000_000
    assert sum(5_500_000 < each < 80_000_000 for each in had) > 20


def test_one_that_leaves_takes_its_part_of_the_ramp_along() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.judge()
    scene.run(1)
    scene.planner.forget(1, NOW)
    scene.run(0.5)
    assert not scene.planner.entries.desired
    assert {spec.ceil for spec in scene.planner.classes.desired.values()} == {5_000_000}


def test_where_sockets_cannot_be_sampled_caps_begin_at_once() -> None:
    scene = Scene({subflow(1): 90_000_000}, broken=True)
    scene.judge()
    assert set(scene.run(MAX_UNSAMPLED_SECONDS + 1)) == {5_000_000}


def test_a_ramp_goes_on_to_its_end_where_sockets_cannot_be_sampled_meanwhile() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.judge()
    scene.run(1)
    scene.broken = True
    had = scene.run(RAMP_SECONDS)
    assert had == sorted(had, reverse=True)
    assert had[-1] == 5_000_000


def test_a_ramp_of_one_goes_on_when_another_leaves() -> None:
    scene = Scene({subflow(1): 40_000_000, subflow(2): 50_000_000})
    scene.judge()
    scene.run(0.5)
    del scene.rates[subflow(2)]
    scene.judge()
    had = scene.run(RAMP_SECONDS)
    assert had[0] > 20_000_000, "no moment at the cap in between"
    assert had == sorted(had, reverse=True)


def test_a_ramp_is_no_cap_of_another_rule() -> None:
    scene = Scene({subflow(1): 90_000_000})
    scene.judge()
    scene.run(1)
    scene.planner.set_policy(policy(rule("other")))
    scene.planner.set_verdicts(1, [], NOW)
    scene.planner.expire(NOW + 1)
    scene.run(1)
    assert not scene.planner.classes.desired
