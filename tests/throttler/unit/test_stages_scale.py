# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for policy and stages with thousands of connections. They count operations instead of measuring times."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import metering
import pytest
from examples import examples
from sampling import MBIT, Flow, connection_of, observe_all

from mptcp_throttler.mptcp.model import Connection, FourTuple, KernelSubflow
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Policy
from mptcp_throttler.policy.verdict import Verdict
from mptcp_throttler.stages.baseline import Path
from mptcp_throttler.stages.budget import MAX_URGENT, OpenAccount
from mptcp_throttler.stages.guard import GuardStage
from mptcp_throttler.stages.stage import SLICE, Action, Samples, Stage
from mptcp_throttler.stages.steering import SetBackup, SteeringStage

CONNECTIONS = examples(10_000)
CLIENTS = 250
"""Number of clients. Each has the same number of connections."""
BUSY = range(100, 110)
"""Connections that download. Each belongs to a different client, whose other connections are slow."""
SWEEP_SECONDS = 2.0
"""Interval between sweeps, in seconds."""
SLOW_RATE = 40_000
"""Rate of a connection that does not download, in bit/s."""
PATHS = """\
version: 1
paths:
  ethernet: {clients: [10.77.0.0/17]}
  wifi: {clients: [10.77.128.0/17]}
"""
CAP = load_policy(f"{PATHS}rules: [{{name: cap, paths: [ethernet], throttle: {{rate: 5 Mbit/s}}}}]", "p")
STANDBY = load_policy(
    f"{PATHS}rules: [{{name: s, steer: {{mode: active-standby, active: wifi, standby: ethernet}}}}]", "p"
)


def four_tuple_of(path: int, number: int) -> FourTuple:
    client = number % CLIENTS
    return FourTuple(b"\x0a\x4d\x00\x01", 3128, bytes((10, 77, path, client)), 10_000 + number)


class Host:
    """All connections, and the stages in their order."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.guard = GuardStage(policy)
        self.steering = SteeringStage()
        self.stages: tuple[Stage, ...] = (self.guard, self.steering)
        self.flows = {
            number: (
                Flow(four_tuple_of(1, number), True, 0, 0, 0, number),
                Flow(four_tuple_of(129, number), False, SLOW_RATE, 0, 0, number),
            )
            for number in range(CONNECTIONS)
        }
        self.connections: dict[int, Connection] = {
            number: connection_of(number, [flow.four_tuple for flow in flows]) for number, flows in self.flows.items()
        }
        self.verdicts: dict[int, tuple[Verdict, ...]] = {}
        self.actions: list[Action] = []
        self.now = 0.0
        self.decide(self.connections)

    def decide(self, tokens: Iterable[int]) -> None:
        for token in tokens:
            connection = self.connections[token]
            verdicts = evaluate(self.policy, connection, 0.0)
            for stage in self.stages:
                verdicts = stage.apply(connection, verdicts, 0.0)
            self.verdicts[token] = verdicts

    def sweep(self) -> int:
        """Advance the time and sample all sockets. Return how many connections were decided again."""
        self.now += SWEEP_SECONDS
        sockets: dict[FourTuple, KernelSubflow] = {}
        for flows in self.flows.values():
            for flow in flows:
                flow.advance(SWEEP_SECONDS)
                sockets[flow.four_tuple] = flow.socket._replace(read=self.now)
        changed: set[int] = set()
        for stage in self.stages:
            outcome = observe_all(stage, Samples(self.now, sockets, True))
            changed.update(outcome.changed)
            self.actions += outcome.actions
            for action in outcome.actions:
                if isinstance(action, SetBackup):
                    self.steering.record_done(action)
        self.decide(changed)
        return len(changed)

    def end_all(self) -> None:
        for token in self.connections:
            for stage in self.stages:
                stage.forget(token)


def test_only_downloading_connections_are_urgent_and_only_caps_of_degraded_ones_relaxed() -> None:
    host = Host(CAP)
    assert len(host.guard.watched()) == CONNECTIONS, "not exactly the uncapped subflow of each connection is watched"
    assert not host.steering.watched()
    assert [host.sweep() for _ in range(3)] == [0, 0, 0]
    assert not host.guard.urgent()
    for number in BUSY:
        for flow, rate in zip(host.flows[number], (5 * MBIT, 30 * MBIT), strict=True):
            flow.rate, flow.waiting, flow.unacked = rate, 300_000, 10
    assert [host.sweep() for _ in range(4)] == [0] * 4
    assert len(host.guard.urgent()) == 2 * len(BUSY)
    degraded = BUSY[:5]
    for number in degraded:
        host.flows[number][1].rate = 1 * MBIT
    assert sum(host.sweep() for _ in range(2)) == len(degraded)
    assert {token for token in host.connections if host.guard.reason(token)} == set(degraded)
    caps = {each.scope.member for token in degraded for each in host.verdicts[token] if each.scope is not None}
    assert caps == {(token, "") for token in degraded}
    assert host.verdicts[0][0].throttle is not None
    for number in BUSY:
        for flow in host.flows[number]:
            flow.rate, flow.waiting, flow.unacked = SLOW_RATE, 0, 0
    for _ in range(8):
        host.sweep()
    assert host.guard.counters.resumptions == len(degraded)
    assert not host.guard.urgent()
    assert len(host.guard.watched()) == CONNECTIONS
    host.end_all()
    assert not host.guard.watched()


def test_only_steered_connections_with_data_are_urgent() -> None:
    host = Host(STANDBY)
    assert not host.guard.watched()
    assert len(host.steering.watched()) == len(host.steering.urgent()) == 2 * CONNECTIONS, (
        "not all new connections are urgent"
    )
    assert host.sweep() == CONNECTIONS
    assert len(host.actions) == CONNECTIONS, "not every standby was made backup"
    assert [host.sweep() for _ in range(2)] == [0, 0]
    assert not host.steering.urgent()
    for number in BUSY:
        host.flows[number][1].rate = 30 * MBIT
    assert host.sweep() == 0
    assert len(host.steering.urgent()) == 2 * len(BUSY)
    assert len(host.actions) == CONNECTIONS
    assert len(host.steering.flags.release_actions()) == CONNECTIONS
    host.end_all()
    assert not set(host.steering.urgent()) - set(host.steering.watched())
    host.flows.clear()
    host.sweep()
    assert not host.steering.watched()
    assert not host.steering.flags.release_actions()


class CallCounter:
    """Counts the calls of a function, in total and within one slice of a stage."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.count = 0

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        return self._function(*arguments)

    def max_in_a_slice(self, stage: Stage, samples: Samples) -> int:
        before, maximum = self.count, 0
        for _ in stage.observe(samples):
            maximum, before = max(maximum, self.count - before), self.count
        return max(maximum, self.count - before)


def test_rates_of_paths_are_updated_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(CAP)
    updates = CallCounter(Path.update_baseline)

    def update_baseline(path: Path, now: float) -> None:
        updates(path, now)

    monkeypatch.setattr(Path, "update_baseline", update_baseline)
    sockets = {flow.four_tuple: flow.socket._replace(read=1.0) for flows in host.flows.values() for flow in flows}
    assert updates.max_in_a_slice(host.guard, Samples(1.0, sockets, True)) <= SLICE
    assert updates.count == CLIENTS


def test_accounts_near_a_step_are_searched_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = 2_000
    host = metering.Host(metering.policy("- {name: all, budget: {period: month, " + metering.STEPS + "}}\n"))
    for number in range(clients):
        host.connect(number, f"10.77.{number >> 8}.{number & 255}")
    host.sweep()
    for number in range(clients):
        host.carry(number, 1_000 + number)
    calls = CallCounter(OpenAccount.check_next_change)

    def check_next_change(account: OpenAccount, used: int, span: float) -> Any:
        return calls(account, used, span)

    monkeypatch.setattr(OpenAccount, "check_next_change", check_next_change)
    maximum = calls.max_in_a_slice(host.stage, Samples(host.clock + 1.0, dict(host.sockets), True))
    assert calls.count == clients
    assert maximum <= 4 * SLICE
    calls.max_in_a_slice(host.stage, Samples(host.clock + 2.0, dict(host.sockets), True))
    assert calls.count == clients, "accounts without new bytes were checked"


def test_urgent_subflows_are_those_with_the_most_new_bytes() -> None:
    """There are more subflows than one slice examines."""
    clients = 2_000
    host = metering.Host(metering.policy("- {name: all, budget: {per: path, period: month, " + metering.STEPS + "}}\n"))
    for number in range(clients):
        host.connect(number, f"10.77.{number >> 8}.{number & 255}")
    host.sweep()
    for number in range(clients):
        host.carry(number, 100 + number % 1_000)
    host.sweep()
    expected = sorted((number % 1_000 for number in range(clients)), reverse=True)[:MAX_URGENT]
    urgent = host.stage.urgent()
    assert len(urgent) == MAX_URGENT
    assert sorted((host.sockets[each].bytes_acked - 100 for each in urgent), reverse=True) == expected
