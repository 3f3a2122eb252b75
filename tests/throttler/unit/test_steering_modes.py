# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the steering modes: which subflow is backup, and which subflow is capped to what rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from mptcp_throttler.mptcp.model import EMPTY_TCP_INFO, FourTuple, KernelSubflow
from mptcp_throttler.policy.load import check_policy, load_policy
from mptcp_throttler.policy.model import Steer
from mptcp_throttler.steering import MIN_CAP, Treatment

MBIT = 1_000_000
TICK_SECONDS = 0.1
any_spacing = pytest.mark.parametrize("spacing", [0.1, 0.2, 0.5, 1.0, 2.0])
"""Seconds between two samples."""
ETHERNET, WIFI = (FourTuple(b"\x0a\x4d\x08\x02", 3128, bytes((10, 77, path, 2)), 4000) for path in (1, 2))
NAMES = {ETHERNET: "ethernet", WIFI: "wifi"}
STANDBY = Steer.model_validate({"mode": "active-standby", "active": "wifi", "standby": "ethernet"})
PRIORITY = Steer.model_validate({"mode": "priority-based", "order": ["wifi", "ethernet"]})


def balanced(ethernet: int, wifi: int) -> Steer:
    return Steer.model_validate({"mode": "load-balancing", "weights": {"ethernet": ethernet, "wifi": wifi}})


def sample(
    four_tuple: FourTuple, read: float, delivered: float, not_sent: int, unacked: int, rtt: float
) -> tuple[str, KernelSubflow]:
    """Return a subflow's path and its socket. *rtt* is in seconds."""
    tcp = EMPTY_TCP_INFO._replace(not_sent=not_sent, unacked=unacked, rtt=round(rtt * 1e6))
    return NAMES[four_tuple], KernelSubflow(1, four_tuple, True, 0, 0, False, read, int(delivered), tcp=tcp)


@dataclass
class Scene:
    """A connection on simulated paths. *carry* returns the rate of each path for given decisions."""

    steer: Steer
    carry: Callable[[dict[FourTuple, Treatment]], dict[FourTuple, float]]
    waiting: int = 500_000
    """Bytes that wait on each subflow to be sent."""
    spacing: float = 0.2
    """Seconds between two samples."""
    outstanding: dict[FourTuple, int] = field(default_factory=dict)
    """Unacknowledged packets of each subflow."""
    rtt: float = 0.02
    ticks: int = 0
    delivered: dict[FourTuple, float] = field(default_factory=lambda: dict.fromkeys(NAMES, 0.0))
    treatments: dict[FourTuple, Treatment] = field(default_factory=dict)
    flag_changes: dict[FourTuple, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    """How often the backup flag of each subflow changed."""

    def __post_init__(self) -> None:
        self.steering = self.steer.create_mode()

    def run(self, seconds: float) -> dict[FourTuple, float]:
        """Advance the time. Return the bytes that each subflow carried."""
        before = dict(self.delivered)
        for _ in range(round(seconds / TICK_SECONDS)):
            self.ticks += 1
            rates = self.carry(self.treatments)
            for four_tuple, rate in rates.items():
                self.delivered[four_tuple] += rate / 8 * TICK_SECONDS
            if self.ticks % round(self.spacing / TICK_SECONDS) == 0:
                now = self.ticks * TICK_SECONDS
                samples = [
                    sample(
                        four_tuple,
                        now,
                        self.delivered[four_tuple],
                        self.waiting,
                        self.outstanding.get(four_tuple, 0),
                        self.rtt,
                    )
                    for four_tuple in rates
                ]
                previous, self.treatments = self.treatments, self.steering.observe(now, samples, {})
                for four_tuple, treatment in self.treatments.items():
                    self.flag_changes[four_tuple] += (
                        four_tuple in previous and previous[four_tuple].backup is not treatment.backup
                    )
        return {four_tuple: self.delivered[four_tuple] - before[four_tuple] for four_tuple in NAMES}


def links(
    ethernet: float, wifi: float, demand: float = 1e9
) -> Callable[[dict[FourTuple, Treatment]], dict[FourTuple, float]]:
    """Return a function for two links that a scheduler fills in proportion to their rates.

    Backup subflows carry data only if there is no regular subflow.
    """

    def carry(treatments: dict[FourTuple, Treatment]) -> dict[FourTuple, float]:
        room = {ETHERNET: ethernet * MBIT, WIFI: wifi * MBIT}
        for four_tuple, treatment in treatments.items():
            if treatment.rate is not None:
                room[four_tuple] = min(room[four_tuple], 0.94 * treatment.rate)
        if any(not treatment.backup for treatment in treatments.values()):
            room |= {four_tuple: 0.0 for four_tuple, treatment in treatments.items() if treatment.backup}
        share = min(1.0, demand * MBIT / sum(room.values()))
        return {four_tuple: rate * share for four_tuple, rate in room.items()}

    return carry


def test_standby_is_backup_and_not_capped() -> None:
    scene = Scene(STANDBY, links(100, 30))
    scene.run(1)
    assert scene.treatments == {ETHERNET: Treatment(True, None, "standby"), WIFI: Treatment(False, None, "active")}


@any_spacing
def test_standby_stays_in_use_until_the_active_path_has_no_outstanding_data(spacing: float) -> None:
    scene = Scene(STANDBY, links(100, 30), outstanding={WIFI: 50}, spacing=spacing)
    scene.run(5)
    scene.carry = lambda _: {ETHERNET: 100.0 * MBIT, WIFI: 0.0}
    scene.run(max(1.5, 2 * spacing))
    assert scene.treatments == {
        ETHERNET: Treatment(False, None, "replaces a lost or absent path"),
        WIFI: Treatment(True, None, "outstanding data do not arrive"),
    }
    scene.run(5)
    assert not scene.treatments[ETHERNET].backup
    scene.outstanding.clear()
    scene.carry = links(100, 30)
    scene.run(max(3.0, 3 * spacing))
    assert scene.treatments == {ETHERNET: Treatment(True, None, "standby"), WIFI: Treatment(False, None, "active")}


def stop_wifi(scene: Scene, ethernet_rate: float) -> None:
    """Wi-Fi stops carrying data, with data outstanding on it. Ethernet carries up to *ethernet_rate* Mbit/s."""
    scene.outstanding[WIFI] = 50
    scene.carry = lambda _: {ETHERNET: ethernet_rate * MBIT, WIFI: 0.0}


@pytest.mark.parametrize("steer", [STANDBY, PRIORITY], ids=["active-standby", "priority-based"])
@pytest.mark.parametrize("demand", [12.0, 1000.0])
@pytest.mark.parametrize("outage", [2.0, 10.0, 30.0])
def test_outage_changes_each_flag_at_most_twice(steer: Steer, demand: float, outage: float) -> None:
    """Neither the earlier rate of the lost path nor data that wait on the other path may open or close a path."""
    scene = Scene(steer, links(100, 30, demand))
    scene.run(8)
    scene.waiting = 0 if demand < 30 else 500_000
    scene.run(5)
    scene.flag_changes = dict.fromkeys(NAMES, 0)
    stop_wifi(scene, min(demand, 100.0))
    scene.run(1)
    for _ in range(round(outage)):
        scene.waiting = 0 if scene.waiting or demand > 100 else 500_000
        scene.run(1)
        assert [scene.treatments[each].backup for each in (ETHERNET, WIFI)] == [False, True]
    scene.waiting = 0 if demand < 30 else 500_000
    scene.outstanding.clear()
    scene.carry = links(100, 30, demand)
    scene.run(10)
    assert not scene.treatments[WIFI].backup
    assert max(scene.flag_changes.values()) <= 2


@pytest.mark.parametrize("steer", [STANDBY, PRIORITY], ids=["active-standby", "priority-based"])
def test_path_is_not_lost_within_three_round_trips(steer: Steer) -> None:
    scene = Scene(steer, links(100, 30), rtt=0.6)
    scene.run(5)
    stop_wifi(scene, 100.0)
    scene.run(1.4)
    assert not scene.treatments[WIFI].backup
    scene.run(1)
    assert scene.treatments[WIFI].backup


def test_one_path_stays_in_use_if_no_path_carries_data() -> None:
    scene = Scene(STANDBY, links(100, 30), outstanding={WIFI: 50})
    scene.run(5)
    scene.outstanding[ETHERNET] = 50
    scene.carry = lambda _: {ETHERNET: 0.0, WIFI: 0.0}
    scene.run(5)
    assert sum(not treatment.backup for treatment in scene.treatments.values()) == 1


def test_standby_that_carries_the_first_bytes_stays_backup() -> None:
    scene = Scene(STANDBY, lambda _: {ETHERNET: 1.0 * MBIT})
    scene.run(1)
    scene.carry = links(100, 30)
    scene.run(0.2)
    assert scene.treatments[ETHERNET].backup


@any_spacing
def test_second_path_is_used_while_the_first_is_full(spacing: float) -> None:
    scene = Scene(PRIORITY, links(100, 30), spacing=spacing)
    scene.run(max(0.4, spacing))
    assert scene.treatments[ETHERNET].backup
    scene.run(max(2.0, 2 * spacing))
    assert not scene.treatments[ETHERNET].backup
    scene.run(10)
    assert not scene.treatments[ETHERNET].backup
    scene.carry, scene.waiting = links(100, 30, demand=15), 0
    scene.run(max(3.0, 4 * spacing))
    assert scene.treatments[ETHERNET].backup
    scene.run(10)
    assert scene.treatments[ETHERNET].backup
    assert not scene.treatments[WIFI].backup


@any_spacing
@pytest.mark.parametrize("demand", [18, 22, 40])
def test_faster_second_path_gets_only_the_overflow(demand: float, spacing: float) -> None:
    """Defect: the scheduler gave nearly all data to the path with the shorter queue."""
    scene = Scene(PRIORITY, links(60, 15), spacing=spacing)
    backlog = 0.0

    def carry(treatments: dict[FourTuple, Treatment]) -> dict[FourTuple, float]:
        """Fill Ethernet up to its cap, then Wi-Fi. The other data wait."""
        nonlocal backlog
        treatment = treatments.get(ETHERNET, Treatment(True, None, ""))
        room = 0.0 if treatment.backup else min(60.0, 0.94 * (treatment.rate or 1e9) / MBIT)
        requested = demand + backlog / TICK_SECONDS
        ethernet = min(room, requested)
        wifi = min(15.0, requested - ethernet)
        backlog = (requested - ethernet - wifi) * TICK_SECONDS
        scene.waiting = min(500_000, round(backlog * MBIT / 8))
        return {ETHERNET: ethernet * MBIT, WIFI: wifi * MBIT}

    scene.carry = carry
    scene.run(max(10, 10 * spacing))
    carried = scene.run(20)
    assert carried[WIFI] * 8 / 20 >= 0.9 * 15 * MBIT
    assert carried[ETHERNET] / sum(carried.values()) <= (demand - 15) / demand + (0.05 if spacing < 1 else 0.08)
    assert backlog < 3 * 15


def test_overflow_keeps_its_cap_while_the_first_path_is_full() -> None:
    """Defect: if buffers are the limit, for a moment no data wait. The cap then fell and increased only slowly."""
    scene = Scene(PRIORITY, links(100, 15))
    scene.run(1)
    opened = scene.treatments[ETHERNET].rate
    assert opened is not None
    scene.carry, scene.waiting = lambda _: {ETHERNET: 0.8 * opened, WIFI: 15.0 * MBIT}, 0
    scene.run(2)
    assert scene.treatments[ETHERNET].rate == opened


def test_second_path_is_closed_when_the_first_returns_without_data() -> None:
    """Defect: during an upload, no data are sent in this direction, and the second path stayed open."""
    scene = Scene(PRIORITY, lambda _: {ETHERNET: 0.0}, waiting=0)
    scene.run(1)
    assert not scene.treatments[ETHERNET].backup
    scene.carry = lambda _: {ETHERNET: 0.0, WIFI: 0.0}
    scene.run(2)
    assert scene.treatments[ETHERNET].backup
    assert not scene.treatments[WIFI].backup
    scene.run(10)
    assert scene.flag_changes == {ETHERNET: 1, WIFI: 0}


@pytest.mark.parametrize(("ethernet", "wifi"), [(70, 30), (50, 50), (30, 70), (90, 10)])
@any_spacing
def test_shares_stay_within_five_percentage_points(ethernet: int, wifi: int, spacing: float) -> None:
    scene = Scene(balanced(ethernet, wifi), links(100, 30), spacing=spacing)
    scene.run(max(5.0, 5 * spacing))
    for _ in range(5):
        carried = scene.run(10)
        assert 100 * carried[ETHERNET] / sum(carried.values()) == pytest.approx(ethernet, abs=5)


@pytest.mark.parametrize(("ethernet", "wifi", "demand"), [(60, 40, 20), (40, 60, 20), (85, 15, 12), (15, 85, 12)])
@any_spacing
def test_shares_are_met_if_the_demand_is_below_the_capacity(
    ethernet: int, wifi: int, demand: float, spacing: float
) -> None:
    scene = Scene(balanced(ethernet, wifi), links(100, 30, demand), waiting=0, spacing=spacing)
    scene.run(max(5.0, 5 * spacing))
    for _ in range(5):
        carried = scene.run(10)
        assert 100 * carried[ETHERNET] / sum(carried.values()) == pytest.approx(ethernet, abs=5)
        assert 8 * sum(carried.values()) / 10 == pytest.approx(demand * MBIT, rel=0.01), (
            "balancing changed the total rate"
        )


@any_spacing
def test_higher_demand_gets_the_whole_capacity_within_seconds(spacing: float) -> None:
    scene = Scene(balanced(60, 40), links(100, 30, 12), waiting=0, spacing=spacing)
    scene.run(20)
    scene.carry, scene.waiting = links(100, 30), 500_000
    scene.run(max(6.0, 6 * spacing))
    carried = scene.run(10)
    assert 8 * sum(carried.values()) / 10 > 0.9 * 75 * MBIT
    assert 100 * carried[ETHERNET] / sum(carried.values()) == pytest.approx(60, abs=5)


def test_one_path_is_never_capped() -> None:
    scene = Scene(balanced(70, 30), links(100, 30))
    scene.run(20)
    assert [treatment.rate is None for treatment in scene.treatments.values()].count(True) == 1


@any_spacing
def test_path_that_carries_nothing_does_not_slow_the_other(spacing: float) -> None:
    scene = Scene(balanced(50, 50), links(100, 30), spacing=spacing)
    scene.run(10)
    assert scene.treatments[ETHERNET].rate is not None
    scene.carry = links(100, 0)
    scene.run(max(5.0, 3 * spacing))
    assert scene.treatments[ETHERNET].rate is None


@pytest.mark.parametrize(("demand", "waiting"), [(12.0, 0), (1000.0, 500_000)])
@pytest.mark.parametrize("weights", [(40, 60), (60, 40), (20, 80)], ids=["40:60", "60:40", "20:80"])
def test_caps_are_removed_when_another_path_stops_carrying_data(
    weights: tuple[int, int], demand: float, waiting: int
) -> None:
    """Defect: the caps followed the decreasing rate of the other path.

    A connection then had almost no rate for two seconds.
    """
    outstanding = dict.fromkeys(NAMES, 50)
    scene = Scene(balanced(*weights), links(20, 30, demand), waiting, outstanding=outstanding)
    scene.run(10)
    before = scene.treatments[ETHERNET].rate
    stop_wifi(scene, 20)
    scene.run(0.8)
    assert [treatment.rate for treatment in scene.treatments.values()] == [None, None]
    scene.run(1)
    scene.carry = links(20, 30, demand)
    scene.run(1.4)
    assert [treatment.rate for treatment in scene.treatments.values()] == [None, None], (
        "a cap was set from a measurement that includes the outage"
    )
    scene.run(8)
    after = scene.treatments[ETHERNET].rate
    assert (before is None) == (after is None)
    scene.run(12)
    carried = scene.run(10)
    assert 100 * carried[ETHERNET] / sum(carried.values()) == pytest.approx(weights[0], abs=5)


def test_cap_is_never_below_the_minimum() -> None:
    scene = Scene(balanced(1, 1000), links(100, 1))
    scene.run(10)
    assert all(treatment.rate is None or treatment.rate >= MIN_CAP for treatment in scene.treatments.values())


@any_spacing
def test_short_pause_of_the_active_path_changes_nothing(spacing: float) -> None:
    """BBR sends almost nothing for 0.2 s every ten seconds (PROBE_RTT)."""
    scene = Scene(STANDBY, links(100, 30), outstanding={WIFI: 50}, spacing=spacing)
    for _ in range(5):
        scene.carry = links(100, 30)
        scene.run(5.3)
        scene.carry = lambda _: {ETHERNET: 0.0, WIFI: 0.0}
        scene.run(0.2)
        assert scene.treatments[ETHERNET].backup


def test_single_path_is_not_capped() -> None:
    scene = Scene(balanced(70, 30), lambda _: {WIFI: 30.0 * MBIT})
    scene.run(10)
    assert scene.treatments[WIFI].rate is None


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
            "cannot duplicate them on another; write active-standby, priority-based, load-balancing, smallest-delay or "
            "waterfall",
        ),
        (
            "    steer: {mode: [waterfall]}",
            "7: rules[0].steer.mode: a list is not allowed; write active-standby, priority-based, load-balancing, "
            "smallest-delay or waterfall",
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
            "    steer: {mode: smallest-delay}\n    guard: false",
            "8: rules[0].guard: belongs to throttle, not to steer",
        ),
    ],
)
def test_errors_in_steering_rules_are_reported(rule: str, error: str) -> None:
    problems = [str(problem) for problem in check_policy(f"{HEAD}{rule}\n", "policy.yaml").problems]
    assert any(error in problem for problem in problems), problems


def test_steering_rule_applies_to_the_paths_that_it_names() -> None:
    (rule,) = load_policy(f"{HEAD}    steer: {{mode: priority-based, order: [wifi, ethernet]}}\n", "p").rules
    assert rule.paths == ["wifi", "ethernet"]
    assert rule.steer == PRIORITY
    assert rule.throttle is None


@pytest.mark.parametrize("read_delay", [0.0, 1.0])
def test_path_is_lost_only_if_it_carried_no_data_until_its_socket_was_read(read_delay: float) -> None:
    """*read_delay*: seconds until the socket was read, in a sweep that took a second."""
    scene = Scene(STANDBY, links(100, 30))
    scene.run(5)
    now = scene.ticks * TICK_SECONDS
    samples = [sample(each, now + 0.01 + read_delay, scene.delivered[each], 0, 50, 0.02) for each in NAMES]
    treatments = scene.steering.observe(now + 1.01, samples, {})
    assert treatments[WIFI].backup is bool(read_delay)
