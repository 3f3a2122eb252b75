"""Steering by mode: which subflow is backup, which is capped to what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from mptcp_throttler.mptcp.model import FourTuple
from mptcp_throttler.policy.load import check_policy, load_policy
from mptcp_throttler.policy.model import Mode, Steer
from mptcp_throttler.shaping.steering import LEAST_CAP, Look, Steering, Wish

MBIT = 1_000_000
STEP = 0.2
ETHERNET, WIFI = (FourTuple(b"\x0a\x4d\x08\x02", 3128, bytes((10, 77, path, 2)), 4000) for path in (1, 2))
NAMES = {ETHERNET: "ethernet", WIFI: "wifi"}
STANDBY = Steer(Mode.ACTIVE_STANDBY, ("wifi", "ethernet"))
PRIORITY = Steer(Mode.PRIORITY_BASED, ("wifi", "ethernet"))


def balanced(ethernet: int, wifi: int) -> Steer:
    return Steer(Mode.LOAD_BALANCING, ("ethernet", "wifi"), (ethernet, wifi))


@dataclass
class Scene:
    """A connection on paths of some capacity: *carry* says what each gets, given what was wished."""

    steer: Steer
    carry: Callable[[dict[FourTuple, Wish]], dict[FourTuple, float]]
    waiting: int = 500_000
    outstanding: dict[FourTuple, int] = field(default_factory=dict)
    now: float = 0.0
    delivered: dict[FourTuple, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    wishes: dict[FourTuple, Wish] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.steering = Steering(self.steer)

    def run(self, seconds: float) -> dict[FourTuple, float]:
        """Go on; return the bytes that each carried."""
        before = dict(self.delivered)
        for _ in range(round(seconds / STEP)):
            self.now += STEP
            there = self.carry(self.wishes)
            for four_tuple, rate in there.items():
                self.delivered[four_tuple] += rate / 8 * STEP
            looks = [
                Look(ft, NAMES[ft], int(self.delivered[ft]), self.waiting, self.outstanding.get(ft, 0)) for ft in there
            ]
            self.wishes = self.steering.look(self.now, looks)
        return {four_tuple: self.delivered[four_tuple] - before[four_tuple] for four_tuple in NAMES}


def links(
    ethernet: float, wifi: float, demand: float = 1e9
) -> Callable[[dict[FourTuple, Wish]], dict[FourTuple, float]]:
    """Two links that a scheduler fills in proportion, backups only when there is no other."""

    def carry(wishes: dict[FourTuple, Wish]) -> dict[FourTuple, float]:
        room = {ETHERNET: ethernet * MBIT, WIFI: wifi * MBIT}
        for four_tuple, wish in wishes.items():
            if wish.rate is not None:
                room[four_tuple] = min(room[four_tuple], 0.94 * wish.rate)
        if any(not wish.backup for wish in wishes.values()):
            room |= {four_tuple: 0.0 for four_tuple, wish in wishes.items() if wish.backup}
        share = min(1.0, demand * MBIT / sum(room.values()))
        return {four_tuple: rate * share for four_tuple, rate in room.items()}

    return carry


def test_a_standby_is_backup_and_nothing_else_is_done() -> None:
    scene = Scene(STANDBY, links(100, 30))
    scene.run(1)
    assert scene.wishes == {ETHERNET: Wish(True, None, "standby"), WIFI: Wish(False, None, "active")}


def test_a_standby_that_stepped_in_stays_until_nothing_is_outstanding_on_the_active_path() -> None:
    scene = Scene(STANDBY, links(100, 30), outstanding={WIFI: 50})
    scene.run(3)
    scene.carry = lambda _: {ETHERNET: 100.0 * MBIT, WIFI: 0.0}
    scene.run(1.5)
    assert scene.wishes == {ETHERNET: Wish(False, None, "stands in"), WIFI: Wish(True, None, "gives nothing")}
    scene.run(5)
    assert not scene.wishes[ETHERNET].backup
    scene.outstanding.clear()
    scene.carry = links(100, 30)
    scene.run(3)
    assert scene.wishes == {ETHERNET: Wish(True, None, "standby"), WIFI: Wish(False, None, "active")}


def test_a_standby_that_carries_the_first_bytes_stays_one() -> None:
    scene = Scene(STANDBY, lambda _: {ETHERNET: 1.0 * MBIT})
    scene.run(1)
    scene.carry = links(100, 30)
    scene.run(0.2)
    assert scene.wishes[ETHERNET].backup


def test_the_second_path_is_opened_when_the_first_is_full_and_closed_when_it_is_not() -> None:
    scene = Scene(PRIORITY, links(100, 30))
    scene.run(0.4)
    assert scene.wishes[ETHERNET].backup
    scene.run(2)
    assert not scene.wishes[ETHERNET].backup
    scene.run(10)
    assert not scene.wishes[ETHERNET].backup
    scene.carry, scene.waiting = links(100, 30, demand=15), 0
    scene.run(3)
    assert scene.wishes[ETHERNET].backup
    scene.run(10)
    assert scene.wishes[ETHERNET].backup
    assert not scene.wishes[WIFI].backup


@pytest.mark.parametrize(("ethernet", "wifi"), [(70, 30), (50, 50), (30, 70), (90, 10)])
def test_shares_come_within_five_points_and_stay(ethernet: int, wifi: int) -> None:
    scene = Scene(balanced(ethernet, wifi), links(100, 30))
    scene.run(5)
    for _ in range(5):
        carried = scene.run(10)
        assert 100 * carried[ETHERNET] / sum(carried.values()) == pytest.approx(ethernet, abs=5)


def test_one_path_is_never_capped() -> None:
    scene = Scene(balanced(70, 30), links(100, 30))
    scene.run(20)
    assert [wish.rate is None for wish in scene.wishes.values()].count(True) == 1


def test_a_path_that_gives_nothing_does_not_drag_the_other_down() -> None:
    scene = Scene(balanced(50, 50), links(100, 30))
    scene.run(10)
    assert scene.wishes[ETHERNET].rate is not None
    scene.carry = links(100, 0)
    scene.run(5)
    assert scene.wishes[ETHERNET].rate is None


def test_a_cap_is_never_next_to_nothing() -> None:
    scene = Scene(balanced(1, 1000), links(100, 1))
    scene.run(10)
    assert all(wish.rate is None or wish.rate >= LEAST_CAP for wish in scene.wishes.values())


def test_a_single_path_is_left_alone() -> None:
    scene = Scene(balanced(70, 30), lambda _: {WIFI: 30.0 * MBIT})
    scene.run(10)
    assert scene.wishes[WIFI].rate is None


HEAD = """\
version: 1
paths:
  ethernet: {clients: [10.77.1.0/24]}
  wifi: {clients: [10.77.2.0/24]}
rules:
  - name: steered
"""


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (
            "    steer: {mode: redundant}",
            "7: rules[0].steer.mode: redundant is not possible: Linux's MPTCP scheduler sends data on one subflow and "
            "cannot duplicate them on another; write active-standby, priority-based, load-balancing or smallest-delay",
        ),
        ("    steer: {mode: active-standby, active: wifi}", "7: rules[0].steer: mode active-standby needs standby"),
        (
            "    steer: {mode: priority-based, order: [wifi, lan]}",
            '7: rules[0].steer.order[1]: "lan" is not a path; the paths are ethernet, wifi',
        ),
        (
            "    steer: {mode: load-balancing, weights: {wifi: 3}}",
            "7: rules[0].steer: weights has one path only; there is nothing to balance",
        ),
        ("    steer: {mode: smallest-delay, active: wifi}", "7: rules[0].steer: mode smallest-delay has no active"),
        (
            "    steer: {mode: smallest-delay}\n    throttle: none",
            "7: rules[0].steer: the rule has throttle already; a rule has one of throttle, steer, budget",
        ),
        (
            "    steer: {mode: smallest-delay}\n    guard: false",
            "8: rules[0].guard: belongs to throttle, not to steer",
        ),
    ],
)
def test_mistakes(rule: str, error: str) -> None:
    problems = [str(problem) for problem in check_policy(f"{HEAD}{rule}\n", "policy.yaml").problems]
    assert any(error in problem for problem in problems), problems


def test_a_rule_that_steers_is_for_the_paths_that_it_names() -> None:
    (rule,) = load_policy(f"{HEAD}    steer: {{mode: priority-based, order: [wifi, ethernet]}}\n", "p").rules
    assert rule.paths == ("wifi", "ethernet")
    assert rule.steer == PRIORITY
    assert rule.throttle is None
