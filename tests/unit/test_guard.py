"""The guard between policy and plan: whose verdicts lose their caps, and when somebody hears of it."""

from __future__ import annotations

from dataclasses import replace

from test_harm import MBIT, STEP, capped, free
from test_landing import FULL_FLIGHT

from mptcp_throttler.guard import CapGuard
from mptcp_throttler.mptcp.model import KernelSubflow
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Direction, Verdict

POLICY = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
guard: %s
rules:
  - {name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s}, guard: %s, direction: both}
"""


class Scene:
    """One connection of two subflows; the second is not capped."""

    def __init__(self, guard: str = "{}", of_rule: str = "true") -> None:
        policy = load_policy(POLICY % (guard, of_rule), "policy.yaml")
        self.flows = [capped(), free()]
        (rule,) = policy.rules
        ends = [flow.look.four_tuple for flow in self.flows]
        self.verdicts = (
            Verdict(ends[0], "ethernet", rule, None, rule.throttle, "capped"),
            Verdict(ends[1], None, None, None, None, "free"),
            Verdict(ends[0], "ethernet", rule, None, rule.throttle, "upload: capped", Direction.UP),
        )
        self.heard: list[int] = []
        self.guard = CapGuard(policy, self.sockets, self.heard.extend)
        self.now = 0.0

    def sockets(self) -> list[KernelSubflow]:
        looks = [flow.go_on() for flow in self.flows]
        return [
            KernelSubflow(
                1,
                each.four_tuple,
                True,
                0,
                0,
                False,
                each.delivered,
                tcp=replace(FULL_FLIGHT, not_sent=each.not_sent, unacked=each.unacked),
            )
            for each in looks
        ]

    def run(self, seconds: float) -> tuple[Verdict, ...]:
        relaxed = self.guard.relax(1, self.verdicts)
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            self.guard._look(self.now)
            relaxed = self.guard.relax(1, self.verdicts)
        return relaxed


def test_a_harmed_connection_loses_its_caps_on_downloads() -> None:
    scene = Scene()
    assert scene.run(5) == scene.verdicts
    scene.flows[1].rate = 1 * MBIT
    down, free_, up = scene.run(2)
    assert down.throttle is None
    assert down.reason.startswith("cap of rule cap relaxed: it got ")
    assert "its uncapped path from 10.77.2.2 alone once gave 29." in down.reason
    assert (free_, up) == scene.verdicts[1:]
    assert scene.heard == [1]
    assert scene.guard.counters.relaxations == 1


def test_a_rule_or_a_policy_without_guard_is_left_alone() -> None:
    for scene in (Scene(of_rule="false"), Scene(guard="{enabled: false}")):
        scene.run(5)
        scene.flows[1].rate = 1 * MBIT
        assert scene.run(5) == scene.verdicts
        assert not scene.heard


def test_a_new_policy_starts_without_relaxations() -> None:
    scene = Scene()
    scene.run(5)
    scene.flows[1].rate = 0
    assert scene.run(2) != scene.verdicts
    scene.guard.set_policy(load_policy(POLICY % ("{}", "true"), "policy.yaml"))
    assert scene.guard.relax(1, scene.verdicts) == scene.verdicts


def test_nothing_is_looked_at_while_nothing_is_capped() -> None:
    scene = Scene()
    scene.run(1)
    scene.guard.relax(1, (scene.verdicts[1],))
    assert not scene.guard._guarded
