# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for resting subflows: which subflows rest, and when they are used again."""

from __future__ import annotations

import pytest
from policy_values import replace
from sampling import MBIT, Flow, capped_flow, connection_of, make_samples, observe_all, uncapped_flow

from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.shaping.initial_options import MAX_REST_RATE
from mptcp_throttler.stages.resting import (
    FIRST_REST_SECONDS,
    MIN_SLOW_WINDOWS,
    RATIO,
    RECOVERY_SECONDS,
    SLOW_RATIO,
    WAKE_WINDOWS,
    RestStage,
)

STEP_SECONDS = 0.2


SLOW_PATHS = load_policy("version: 1\nrest_slow_paths: true\nrules: []\n", "policy.yaml")


def policy(rate: float, **keys: str) -> Policy:
    throttle = ", ".join([f"rate: {round(rate)} bit/s", *(f"{key}: {value}" for key, value in keys.items())])
    rule = f"{{name: low, paths: [ethernet], throttle: {{{throttle}}}}}"
    return load_policy(
        f"version: 1\npaths: {{ethernet: {{clients: [10.77.1.0/24]}}}}\nrules: [{rule}]\n", "policy.yaml"
    )


class Scene:
    """Connections with two subflows each. The first subflow has a low cap."""

    def __init__(self, policy: Policy, number: int = 1, rate: float = 40 * MBIT) -> None:
        self.policy = policy
        self.stage = RestStage()
        self.stage.can_rest = True
        self.stage.set_policy(policy)
        self.flows = {
            token: [replace(capped_flow(0, token), waiting=0, unacked=0), uncapped_flow(rate, token)]
            for token in range(1, number + 1)
        }
        self.now = 0.0
        self.changes = 0
        for token in self.flows:
            self.apply(token)

    def apply(self, token: int = 1) -> bool:
        """Decide about a connection. Return whether its capped subflow rests."""
        connection = connection_of(token, [flow.four_tuple for flow in self.flows[token]])
        verdicts = self.stage.apply(connection, evaluate(self.policy, connection, 0.0), 0.0)
        assert not verdicts[-1].rests or len(verdicts) == 1
        return any(each.rests for each in verdicts)

    def run(self, seconds: float) -> bool:
        """Advance the time. Return whether the first connection's capped subflow rests."""
        for _ in range(round(seconds / STEP_SECONDS)):
            self.now += STEP_SECONDS
            sockets = []
            for flow in [each for flows in self.flows.values() for each in flows]:
                flow.advance(STEP_SECONDS)
                sockets.append(flow.socket)
            for token in observe_all(self.stage, make_samples(self.now, sockets)).changed:
                self.apply(token)
                self.changes += 1
        return self.apply()

    @property
    def first_flows(self) -> tuple[Flow, Flow]:
        slow, other = self.flows[1]
        return slow, other


@pytest.mark.parametrize(("share", "rests"), [(0.9, True), (1.1, False)])
def test_subflow_rests_if_its_cap_is_a_tiny_share_of_the_rate(share: float, rests: bool) -> None:
    scene = Scene(policy(share * 120 * MBIT / RATIO), rate=120 * MBIT)
    assert not scene.apply()
    assert scene.run(1.0) is rests


def test_subflows_with_the_lowest_caps_rest_before_any_sample() -> None:
    assert Scene(policy(MAX_REST_RATE)).apply()
    assert not Scene(policy(MAX_REST_RATE + 1)).apply()


def test_rest_ends_if_the_other_path_is_slow_and_has_data() -> None:
    scene = Scene(policy(512_000))
    assert scene.run(2.0)
    slow, other = scene.first_flows
    other.rate = 0.9 * RATIO / 2 * 512_000
    other.waiting = other.unacked = 0
    assert scene.run(5.0), "the rest ended, although the other path has no data"
    other.unacked = 10
    slow.unacked = 1
    assert scene.run(5.0), "the rest ended, although the resting subflow has data in flight"
    slow.unacked = 0
    assert scene.run(2 * WAKE_WINDOWS * STEP_SECONDS + STEP_SECONDS) is False
    assert scene.run(5.0) is False
    assert scene.changes == 1


def test_rest_under_a_low_cap_ends_within_a_second_if_the_other_path_is_slow() -> None:
    assert Scene(policy(512_000), rate=3 * MBIT).run(1.2) is False


def test_subflow_rests_if_its_share_of_a_shared_cap_is_low() -> None:
    cap = 4 * MBIT
    assert not Scene(policy(cap), 1, 40 * MBIT).run(3.0)
    assert Scene(policy(cap), 10, 40 * MBIT).run(3.0)


def test_higher_cap_ends_the_rest() -> None:
    scene = Scene(policy(512_000))
    assert scene.run(2.0)
    scene.policy = policy(2 * MBIT)
    scene.stage.set_policy(scene.policy)
    assert not scene.apply()


@pytest.mark.parametrize("condition", ["rests are impossible", "dry run", "only path", "hard cap"])
def test_subflow_with_a_low_cap_does_not_rest(condition: str) -> None:
    scene = Scene(policy(512_000, **({"landing": "at-once"} if condition == "hard cap" else {})))
    scene.stage.can_rest = condition != "rests are impossible"
    if condition == "dry run":
        scene.stage.is_applied = False
    if condition == "only path":
        scene.flows[1] = [scene.first_flows[0]]
    assert not scene.apply()
    assert not scene.run(2.0)
    assert not scene.stage.urgent()


def test_slow_uncapped_path_rests_and_is_tried_again() -> None:
    scene = Scene(SLOW_PATHS, rate=48 * MBIT)
    slow, other = scene.first_flows
    slow.rate, slow.waiting = 0.9 * 48 * MBIT / SLOW_RATIO, 60_000
    assert not scene.apply()
    assert scene.run(2 * (MIN_SLOW_WINDOWS + 1) * STEP_SECONDS)
    assert scene.run(FIRST_REST_SECONDS - 3)
    assert not scene.run(3.2), "the path is not tried again"
    assert scene.run(2 * (MIN_SLOW_WINDOWS + 1) * STEP_SECONDS)
    assert scene.run(2 * FIRST_REST_SECONDS - 3)
    other.rate = 1 * MBIT
    assert not scene.run(2 * (WAKE_WINDOWS + 1) * STEP_SECONDS), (
        "the rest continues, although the other path is now as slow"
    )
    slow.rate = 2 * 48 * MBIT / SLOW_RATIO
    other.rate = 48 * MBIT
    assert not scene.run(5.0), "the path rests, although it is fast enough"
    slow.rate, slow.waiting, slow.unacked = 0.0, 0, 0
    assert not scene.run(5.0), "an idle path rests"


def scene_with_blocking_path() -> Scene:
    """Return a scene in which a path of 24 Mbit/s mostly waits for a path of 1 Mbit/s with a long queue."""
    scene = Scene(SLOW_PATHS, rate=0)
    slow, other = scene.first_flows
    slow.rate, slow.waiting = 1 * MBIT, 60_000
    for _ in range(3):
        other.rate, other.waiting, other.unacked = 24 * MBIT, 60_000, 10
        scene.run(2 * STEP_SECONDS)
        other.rate, other.waiting, other.unacked = 0, 0, 0
        scene.run(6 * STEP_SECONDS)
    return scene


def test_path_that_delays_the_other_path_rests() -> None:
    """Defect: with a path of 1 Mbit/s and a long queue, a path of 12 Mbit/s carried only 2 or 3 Mbit/s.

    The slow path carried its full rate.
    """
    assert scene_with_blocking_path().apply()
    scene = Scene(SLOW_PATHS, rate=3 * MBIT)
    slow, _ = scene.first_flows
    slow.rate, slow.waiting = 1 * MBIT, 60_000
    assert not scene.run(10.0), "the slow path rests, although the other path is not much faster"


@pytest.mark.parametrize("megabits", [12, 2])
def test_path_that_did_not_delay_the_other_path_is_used_again(megabits: int) -> None:
    scene = scene_with_blocking_path()
    slow, other = scene.first_flows
    other.rate, other.unacked = megabits * MBIT, 10
    slow.rate, slow.waiting, slow.unacked = 0.0, 0, 0
    assert scene.run(1.0), "the rest ended too early"
    assert scene.run(RECOVERY_SECONDS + 2 * (WAKE_WINDOWS + 1) * STEP_SECONDS) is (megabits == 12)


def test_only_path_never_rests() -> None:
    scene = Scene(SLOW_PATHS, rate=48 * MBIT)
    slow, _ = scene.first_flows
    slow.rate, slow.waiting = 1 * MBIT, 60_000
    assert scene.run(2.0)
    scene.flows[1] = [slow]
    assert not scene.apply()
    assert not scene.stage.watched()


def test_no_subflow_rests_if_the_other_is_backup() -> None:
    """Otherwise the MPTCP scheduler would use neither subflow."""
    scene = Scene(policy(512_000))
    slow, other = scene.first_flows
    connection = connection_of(1, [slow.four_tuple, other.four_tuple])
    first, second = connection.subflows
    standby = replace(connection, subflows=(first, replace(second, backup=True)))
    verdicts = evaluate(scene.policy, standby, 0.0)
    assert not any(each.rests for each in scene.stage.apply(standby, verdicts, 0.0))


def test_ended_connections_are_forgotten() -> None:
    scene = Scene(policy(512_000), 3)
    scene.run(2.0)
    assert len(scene.stage.urgent()) == 6
    for token in (1, 2, 3):
        scene.stage.forget(token)
    assert not scene.stage.watched()
    assert not scene.stage.urgent()
