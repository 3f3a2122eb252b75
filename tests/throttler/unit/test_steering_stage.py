# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the steering stage: caps and reasons in verdicts, backup flags as actions, and sampled subflows."""

from __future__ import annotations

import pytest
from policy_values import a_throttle, replace
from sampling import (
    IDLE,
    MBIT,
    READ_AT_SAMPLE,
    Flow,
    capped_flow,
    connection_of,
    four_tuple,
    make_samples,
    observe_all,
    uncapped_flow,
)

from mptcp_throttler.mptcp.model import KernelSubflow
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Direction, Onset, Policy, Share
from mptcp_throttler.policy.verdict import ScopeKey, Verdict
from mptcp_throttler.stages.steering import UNDECIDED_SECONDS, URGENT_SECONDS, SetBackup, SteeringStage
from mptcp_throttler.steering import Mode

HEAD = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
"""
STEP_SECONDS = 0.2
STANDBY = load_policy(
    f"{HEAD}rules: [{{name: s, steer: {{mode: active-standby, active: wifi, standby: ethernet}}}}]", "p"
)
PRIORITY = load_policy(f"{HEAD}rules: [{{name: p, steer: {{mode: priority-based, order: [wifi, ethernet]}}}}]", "p")
BALANCE = load_policy(
    f"{HEAD}rules: [{{name: b, steer: {{mode: load-balancing, weights: {{ethernet: 50, wifi: 50}}}}}}]", "p"
)
UNSTEERED = load_policy(f"{HEAD}rules: []", "p")


class Scene:
    """One connection over Ethernet and Wi-Fi, and a kernel that sets or refuses flags."""

    def __init__(self, policy: Policy, accepts_flags: bool = True) -> None:
        self.policy = policy
        self.accepts_flags = accepts_flags
        self.ethernet, self.wifi = capped_flow(100 * MBIT), uncapped_flow(30 * MBIT)
        self.flows: list[Flow] = [self.ethernet, self.wifi]
        self.stage = SteeringStage()
        self.actions: list[SetBackup] = []
        self.verdicts: tuple[Verdict, ...] = ()
        self.now = 0.0

    def apply(self) -> tuple[Verdict, ...]:
        connection = connection_of(1, [flow.four_tuple for flow in self.flows])
        self.verdicts = self.stage.apply(connection, evaluate(self.policy, connection, 0.0), 0.0)
        return self.verdicts

    def set_policy(self, policy: Policy) -> None:
        self.policy = policy
        self.stage.set_policy(policy)
        self.apply()

    def run(self, seconds: float, complete: bool = True) -> list[SetBackup]:
        """Advance the time. Return the actions that the stage requested."""
        action_count = len(self.actions)
        for _ in range(round(seconds / STEP_SECONDS)):
            self.now += STEP_SECONDS
            for flow in self.flows:
                flow.advance(STEP_SECONDS)
            urgent = self.stage.urgent()
            flows = [flow for flow in self.flows if complete or flow.four_tuple in urgent]
            outcome = observe_all(self.stage, make_samples(self.now, [flow.socket for flow in flows], complete))
            for action in outcome.actions:
                assert isinstance(action, SetBackup)
                self.actions.append(action)
                (self.stage.record_done if self.accepts_flags else self.stage.flags.record_refused)(action)
            if outcome.changed:
                self.apply()
        return self.actions[action_count:]

    def make_idle(self) -> None:
        for flow in self.flows:
            flow.rate, flow.waiting, flow.unacked = 0.0, 0, 0


def test_backup_flag_of_the_standby_is_cleared_when_the_rule_ends() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    assert scene.run(2) == [SetBackup(1, scene.ethernet.four_tuple, True, "s")]
    assert [each.reason.split(": ")[-1] for each in scene.verdicts] == ["standby", "active"]
    assert all(each.throttle is None for each in scene.verdicts)
    scene.set_policy(UNSTEERED)
    assert scene.ethernet.four_tuple in scene.stage.urgent()
    assert scene.run(1, complete=False) == [SetBackup(1, scene.ethernet.four_tuple, False, "s")]
    assert not scene.stage.watched()


def test_reload_with_the_same_steering_changes_no_flag() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    scene.stage.set_policy(STANDBY)
    assert not scene.run(1), "a flag changed before the connection was decided"
    scene.apply()
    assert not scene.run(UNDECIDED_SECONDS + 2)
    assert scene.stage.flags.release_actions() == [SetBackup(1, scene.ethernet.four_tuple, False, "s")]


def test_idle_connection_keeps_its_flag_across_a_reload() -> None:
    """Defect: an idle connection lost its flag after five seconds, and the next data were sent over the standby."""
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    scene.make_idle()
    scene.run(5)
    scene.set_policy(STANDBY)
    assert not scene.run(UNDECIDED_SECONDS + 2)
    assert scene.stage.flags.release_actions() == [SetBackup(1, scene.ethernet.four_tuple, False, "s")]


def test_reload_with_another_order_swaps_the_flags() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    other = f"{HEAD}rules: [{{name: s, steer: {{mode: active-standby, active: ethernet, standby: wifi}}}}]"
    scene.set_policy(load_policy(other, "p"))
    assert set(scene.run(1)) == {
        SetBackup(1, scene.ethernet.four_tuple, False, "s"),
        SetBackup(1, scene.wifi.four_tuple, True, "s"),
    }


def test_reload_to_load_balancing_resets_the_flags() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    scene.set_policy(BALANCE)
    assert scene.run(1) == [SetBackup(1, scene.ethernet.four_tuple, False, "s")]


def test_unconfirmed_flag_is_set_a_second_time_but_a_refused_flag_is_not() -> None:
    scene = Scene(STANDBY, accepts_flags=False)
    scene.apply()
    outcome = observe_all(scene.stage, make_samples(0.1, [flow.socket for flow in scene.flows]))
    assert len(outcome.actions) == 1
    assert len(scene.run(5)) == 1
    assert not scene.stage.flags.release_actions()
    assert not scene.run(5)


def another_standby() -> Flow:
    """Return another subflow over Ethernet."""
    standby = capped_flow(100 * MBIT)
    standby.four_tuple = standby.four_tuple._replace(remote_port=7)
    return standby


def test_refused_connection_gets_no_further_flags() -> None:
    """Defect: the stage tried to set the flag of each standby, and repeated this when a subflow joined or ended."""
    scene = Scene(STANDBY, accepts_flags=False)
    scene.flows.append(another_standby())
    scene.apply()
    action_count = len(scene.run(2))
    assert action_count == 2
    standby = another_standby()
    standby.four_tuple = standby.four_tuple._replace(remote_port=8)
    scene.flows.append(standby)
    scene.apply()
    scene.run(2)
    scene.flows.pop(2)
    scene.apply()
    scene.run(2)
    scene.set_policy(PRIORITY)
    scene.run(2)
    assert len(scene.actions) == action_count


def test_refusal_for_an_ended_subflow_does_not_prevent_other_flags() -> None:
    """The kernel returns the same error for an ended subflow as for a connection that cannot be steered."""
    scene = Scene(STANDBY, accepts_flags=False)
    scene.apply()
    assert len(scene.run(STEP_SECONDS)) == 1
    scene.accepts_flags = True
    scene.flows[0] = another_standby()
    scene.apply()
    scene.run(2)
    assert scene.actions[1:] == [SetBackup(1, scene.flows[0].four_tuple, True, "s")]


def test_flags_of_a_killed_daemon_are_reset_unless_a_rule_needs_them() -> None:
    scene = Scene(STANDBY)
    other = uncapped_flow(connection=2)
    scene.flows.append(other)
    sockets = [flow.socket._replace(made_backup=True, token=flow.token) for flow in (scene.ethernet, other)]
    scene.stage.adopt(sockets)
    scene.flows.remove(other)
    scene.apply()
    scene.flows.append(other)
    assert not scene.run(UNDECIDED_SECONDS - 1)
    assert scene.run(2) == [SetBackup(2, other.four_tuple, False)]
    assert scene.stage.flags.release_actions() == [SetBackup(1, scene.ethernet.four_tuple, False, "s")]


def test_flags_adopted_after_the_first_decision_are_kept() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    scene.stage.adopt([scene.ethernet.socket._replace(made_backup=True)])
    assert not scene.run(UNDECIDED_SECONDS + 2)
    assert len(scene.stage.flags.release_actions()) == 1


def test_ended_connection_is_removed_with_the_next_sweep() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    scene.stage.forget(1)
    scene.flows = []
    assert not scene.run(STEP_SECONDS)
    assert not scene.stage.watched()
    assert not scene.stage.urgent()
    assert not scene.stage.flags.release_actions()


def test_reused_four_tuple_gets_its_own_flag() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    scene.stage.forget(1)
    connection = connection_of(9, [flow.four_tuple for flow in scene.flows])
    scene.stage.apply(connection, evaluate(STANDBY, connection, 0.0), 0.0)
    assert SetBackup(9, scene.ethernet.four_tuple, True, "s") in scene.run(1)


def test_dry_run_sets_no_flag_and_no_cap() -> None:
    for policy in (STANDBY, BALANCE):
        scene = Scene(policy)
        scene.stage.is_applied = False
        scene.apply()
        assert not scene.run(5)
        assert all(each.throttle is None for each in scene.verdicts)


def test_load_balancing_caps_the_path_above_its_share() -> None:
    scene = Scene(BALANCE)
    scene.apply()
    assert not scene.run(3)
    ethernet, wifi = scene.verdicts
    assert wifi.throttle is None
    assert ethernet.throttle is not None
    assert ethernet.throttle.rate == pytest.approx(30 * MBIT, rel=0.3)
    assert ethernet.rule is BALANCE.rules[0]
    assert ethernet.scope == ScopeKey("b", Share.CONNECTION, (1, "ethernet"))
    assert ethernet.reason.endswith(": 50 % of the bytes")


@pytest.mark.parametrize(
    ("share", "rate", "stays"),
    [(Share.CONNECTION, MBIT, True), (Share.CONNECTION, 90 * MBIT, False), (Share.PATH, 90 * MBIT, True)],
)
def test_cap_of_another_rule_stays_if_it_is_lower_or_shared(share: Share, rate: int, stays: bool) -> None:
    scene = Scene(BALANCE)
    scene.apply()
    scene.run(3)
    cap = a_throttle(rate, rate, None, share, Onset.SOFT)
    connection = connection_of(1, [flow.four_tuple for flow in scene.flows])
    verdicts = tuple(replace(each, throttle=cap) for each in evaluate(BALANCE, connection, 0.0))
    ethernet = scene.stage.apply(connection, verdicts, 0.0)[0]
    assert (ethernet.throttle == cap) is stays


def test_uploads_are_not_steered() -> None:
    scene = Scene(STANDBY)
    connection = connection_of(1, [flow.four_tuple for flow in scene.flows])
    verdicts = tuple(replace(each, direction=Direction.UP) for each in evaluate(STANDBY, connection, 0.0))
    assert scene.stage.apply(connection, verdicts, 0.0) == verdicts
    assert not scene.stage.watched()


def test_idle_connection_is_urgent_only_until_its_second_sample() -> None:
    scene = Scene(PRIORITY)
    scene.make_idle()
    scene.apply()
    assert len(scene.stage.urgent()) == 2
    scene.run(STEP_SECONDS)
    assert len(scene.stage.urgent()) == 2
    scene.run(STEP_SECONDS)
    assert not scene.stage.urgent()
    assert len(scene.stage.watched()) == 2
    scene.wifi.rate, scene.wifi.waiting = 30 * MBIT, 500_000
    scene.run(STEP_SECONDS)
    assert len(scene.stage.urgent()) == 2
    scene.run(2)
    assert scene.actions[-1] == SetBackup(1, scene.ethernet.four_tuple, False, "p"), "the second path was not opened"
    scene.make_idle()
    scene.run(URGENT_SECONDS + 2)
    assert not scene.stage.urgent()
    assert scene.actions[-1] == SetBackup(1, scene.ethernet.four_tuple, True, "p")


def test_rate_estimate_excludes_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that fills soon after a pause is full. The low rate during the pause must not lower the estimate."""
    observation_times: list[float] = []
    observe = Mode.observe

    def record_time(self: Mode, now: float, *other_arguments: object) -> object:
        observation_times.append(now)
        return observe(self, now, *other_arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Mode, "observe", record_time)
    scene = Scene(PRIORITY)
    scene.make_idle()
    scene.wifi.rate = 40_000
    scene.apply()
    scene.run(1)
    observation_times.clear()
    scene.run(60)
    assert not observation_times, "an idle connection was observed"
    scene.wifi.rate, scene.wifi.waiting = 30 * MBIT, 500_000
    scene.run(STEP_SECONDS)
    assert observation_times == pytest.approx([scene.now - STEP_SECONDS, scene.now])
    wifi = scene.stage._connections[1].mode._paths["wifi"]
    assert wifi.rate(1.0) == pytest.approx(30 * MBIT * STEP_SECONDS, rel=0.02)
    assert SetBackup(1, scene.ethernet.four_tuple, False, "p") in scene.run(1)


def test_sample_without_a_subflow_does_not_end_that_subflow() -> None:
    """Other stages also request samples, and such a sample may contain only one subflow of a connection."""
    scene = Scene(BALANCE)
    scene.apply()
    scene.run(3)
    before = scene.verdicts
    for _ in range(20):
        scene.now += STEP_SECONDS
        scene.wifi.advance(STEP_SECONDS)
        assert observe_all(scene.stage, make_samples(scene.now, [scene.wifi.socket], complete=False)) == ([], [])
    assert scene.apply() == before


def test_first_sample_of_one_subflow_opens_no_path() -> None:
    """Defect: the last path in the order was mistaken for the only path, and was opened."""
    scene = Scene(PRIORITY)
    scene.make_idle()
    scene.apply()
    assert observe_all(scene.stage, make_samples(scene.now, [scene.ethernet.socket], complete=False)) == ([], [])
    assert scene.run(STEP_SECONDS) == [SetBackup(1, scene.ethernet.four_tuple, True, "p")]


def test_stage_does_not_wait_for_a_subflow_missing_from_a_sweep() -> None:
    scene = Scene(PRIORITY)
    scene.make_idle()
    scene.apply()
    for complete in (True, False):
        observe_all(scene.stage, make_samples(scene.now, [scene.ethernet.socket], complete))
    assert not scene.stage.urgent(), "the connection is urgent after two samples"


def test_flag_of_an_ended_subflow_is_removed() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    scene.flows.remove(scene.ethernet)
    assert not scene.run(1)
    assert not scene.stage.flags.release_actions()
    scene.apply()
    assert not scene.stage.watched(), "the remaining subflow is watched, although it is not steered"


def test_sample_from_before_the_subflow_does_not_remove_its_flag() -> None:
    scene = Scene(STANDBY)
    scene.apply()
    flag = SetBackup(1, scene.ethernet.four_tuple, True, "s")
    scene.stage.record_done(flag)
    observe_all(scene.stage, make_samples(STEP_SECONDS, [scene.wifi.socket]))
    assert scene.stage.flags.release_actions() == [SetBackup(1, scene.ethernet.four_tuple, False, "s")]
    observe_all(scene.stage, make_samples(2 * STEP_SECONDS, [scene.wifi.socket]))
    assert not scene.stage.flags.release_actions(), "the flag stays, although a newer sample lacks the subflow"


def test_subflows_without_a_tracked_connection_are_ignored() -> None:
    stage = SteeringStage()
    socket = KernelSubflow(5, uncapped_flow().four_tuple, True, 0, 0, False, READ_AT_SAMPLE, tcp=IDLE)
    assert observe_all(stage, make_samples(1.0, [socket])) == ([], [])


def test_connection_stays_urgent_after_a_long_sweep() -> None:
    """If a path fails just after the sweep has read it, its subflows must be sampled before the next sweep."""
    scene = Scene(STANDBY)
    scene.apply()
    scene.run(2)
    read = scene.now + 0.01
    for flow in scene.flows:
        flow.waiting, flow.unacked = 0, 5
    sockets = [flow.socket._replace(read=read) for flow in scene.flows]
    observe_all(scene.stage, make_samples(scene.now + 2 * URGENT_SECONDS, sockets))
    assert len(scene.stage.urgent()) == 2


def test_small_downloads_that_together_fill_a_path_open_the_next_path() -> None:
    """Defect: each download had waiting data only for a moment, and the second path stayed unused."""
    stage = SteeringStage()
    hosts = [2] * 8 + [3]  # eight downloads of one client, and one of another
    flows = [
        [
            Flow(four_tuple(1, token)._replace(remote=bytes((10, 77, 1, host))), False, 0.0, 0, 0, token),
            Flow(
                four_tuple(2, token)._replace(remote=bytes((10, 77, 2, host))),
                False,
                30 * MBIT / 8,
                token=token,
            ),
        ]
        for token, host in enumerate(hosts, 1)
    ]

    def backup_connections(seconds: float) -> set[int]:
        """Advance the time. Return the tokens of the connections whose Ethernet subflow is backup."""
        for _ in range(round(seconds / STEP_SECONDS)):
            now[0] += STEP_SECONDS
            for number, (_, first) in enumerate(flows):
                first.advance(STEP_SECONDS)
                first.waiting = waiting if (number + round(now[0] / STEP_SECONDS)) % 2 else 0
            samples = make_samples(now[0], [each.socket for pair in flows for each in pair])
            for action in observe_all(stage, samples).actions:
                assert isinstance(action, SetBackup)
                stage.record_done(action)
                (backup_tokens.add if action.backup else backup_tokens.discard)(action.token)
        return backup_tokens

    now, backup_tokens, waiting = [0.0], set[int](), 160_000
    for token, pair in enumerate(flows, 1):
        connection = connection_of(token, [each.four_tuple for each in pair])
        stage.apply(connection, evaluate(PRIORITY, connection, 0.0), 0.0)
    assert backup_connections(0.4) == set(range(1, 10))
    assert backup_connections(1.6) == {9}
    waiting = 0
    for pair in flows:
        pair[1].rate = 1 * MBIT
    assert backup_connections(2.4) == set(range(1, 10))
    for token in range(2, 9):
        stage.forget(token)
        backup_tokens.discard(token)
        del flows[1]
    waiting = 160_000
    assert backup_connections(2.0) == {1, 9}
