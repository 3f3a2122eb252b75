"""Budgets: periods by the calendar, steps, and a ledger in which no byte counts twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_landing import FULL_FLIGHT

from mptcp_throttler.budgets import Budgets
from mptcp_throttler.kernel.ports import KernelError
from mptcp_throttler.kernel.socket_meter import ClosedSocket
from mptcp_throttler.ledger import Account, Counters, Ledger, LedgerError
from mptcp_throttler.mptcp.model import FourTuple, KernelSubflow
from mptcp_throttler.policy.budget import next_step, period, step_of
from mptcp_throttler.policy.load import check_policy, load_policy
from mptcp_throttler.policy.model import Budget, Policy, Verdict
from mptcp_throttler.quota import quotas

ATHENS = ZoneInfo("Europe/Athens")
POLICY = """\
version: 1
time_zone: Europe/Athens
paths: {lte: {clients: [10.77.1.0/24]}}
rules:
  - name: lte
    paths: [lte]
    budget: {%s, steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}, {after: 3 MB, throttle: {rate: 64 kbit/s}}]}
"""


def policy(budget: str = "period: month") -> Policy:
    return load_policy(POLICY % budget, "policy.yaml")


def budget(text: str) -> Budget:
    (rule,) = policy(text).rules
    assert rule.budget is not None
    return rule.budget


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ATHENS).timestamp()


@pytest.mark.parametrize(
    ("text", "now", "begin", "end"),
    [
        ("period: month", "2026-11-21 12:00", "2026-11-01 00:00", "2026-12-01 00:00"),
        ("period: month, reset_day: 15", "2026-01-14 23:59", "2025-12-15 00:00", "2026-01-15 00:00"),
        ("period: month, reset_day: 31", "2026-02-28 12:00", "2026-02-28 00:00", "2026-03-31 00:00"),
        ("period: month, reset_day: 31", "2028-02-28 12:00", "2028-01-31 00:00", "2028-02-29 00:00"),
        ("period: week", "2026-11-21 12:00", "2026-11-16 00:00", "2026-11-23 00:00"),
        ("period: week, reset_day: sun", "2026-11-22 00:00", "2026-11-22 00:00", "2026-11-29 00:00"),
        ('period: day, reset_time: "03:30"', "2026-03-29 03:10", "2026-03-28 03:30", "2026-03-29 04:30"),
        ('period: day, reset_time: "03:00"', "2026-10-25 12:00", "2026-10-25 03:00", "2026-10-26 03:00"),
    ],
)
def test_periods(text: str, now: str, begin: str, end: str) -> None:
    assert period(budget(text), ATHENS, at(now)) == (at(begin), at(end))


@given(
    kind=st.sampled_from(["month, reset_day: 31", "month, reset_day: 1", "week, reset_day: thu", "day"]),
    hour=st.integers(0, 23),
    now=st.integers(1_600_000_000, 2_000_000_000),
    zone=st.sampled_from(["UTC", "Europe/Athens", "America/St_Johns", "Pacific/Apia", "Africa/Casablanca"]),
)
def test_periods_follow_each_other_without_gap(kind: str, hour: int, now: int, zone: str) -> None:
    subject, place = budget(f'period: {kind}, reset_time: "{hour:02}:00"'), ZoneInfo(zone)
    begin, end = period(subject, place, now)
    assert begin <= now < end
    assert period(subject, place, begin) == period(subject, place, end - 1) == (begin, end)
    assert period(subject, place, end)[0] == end


def test_steps() -> None:
    subject = budget("period: day")
    assert [step_of(subject, used) for used in (0, 999_999)] == [None, None]
    assert [step_of(subject, used) for used in (1_000_000, 3_000_000)] == list(subject.steps)
    assert next_step(subject, 1_000_000) == subject.steps[1]
    assert next_step(subject, 3_000_000) is None


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("period: year", 'rules[0].budget.period: "year" is not allowed; write month, week or day'),
        ("period: month, reset_day: mon", "rules[0].budget: reset_day: the period month needs 1 to 31"),
        ("period: day, reset_day: 3", "rules[0].budget: reset_day: the period day has no reset_day"),
        ('period: day, reset_time: "24:00"', 'rules[0].budget.reset_time: "24:00" is not a time of day'),
    ],
)
def test_mistakes(text: str, error: str) -> None:
    (problem,) = check_policy(POLICY % text, "policy.yaml").problems
    assert error in str(problem)


def test_steps_that_do_not_ascend() -> None:
    text = (POLICY % "period: day").replace("3 MB", "500 KB")
    (problem,) = check_policy(text, "policy.yaml").problems
    assert "rules[0].budget: the volumes of the steps must ascend" in str(problem)
    (problem,) = check_policy(text.replace("500 KB", "3 Mbit"), "policy.yaml").problems
    assert 'rules[0].budget.steps[1].after: "3 Mbit" is not a volume' in str(problem)


FT = FourTuple(b"\x0a\x4d\x08\x02", 3128, bytes((10, 77, 1, 2)), 40000)


class FakeMeter:
    """Sockets that closed and were not taken out yet."""

    def __init__(self) -> None:
        self.waiting: list[ClosedSocket] = []

    def closed(self) -> list[ClosedSocket]:
        taken, self.waiting = self.waiting, []
        return taken

    def close(self) -> None:
        """Nothing to do."""


class Scene:
    """One subflow at a time of one client, its socket, and daemons that come and go."""

    def __init__(self, path: Path, text: str = "period: month") -> None:
        self.path = path
        self.policy = policy(text)
        self.cookie, self.acked, self.received, self.live = 1, 0, 0, True
        self.meter = FakeMeter()
        self.now = at("2026-11-21 12:00")
        self.start()

    def start(self) -> None:
        self.heard: list[int] = []
        self.budgets = Budgets(self.path, (3128,), self.sockets, self.heard.extend)
        self.budgets.prepare(self.policy)
        self.budgets._meter = self.meter  # type: ignore[assignment]
        self.budgets.set_policy(self.policy)
        if self.live:
            self.judge()

    def sockets(self) -> list[KernelSubflow]:
        if not self.live:
            return []
        return [
            KernelSubflow(
                1, FT, True, 0, 0, False, self.acked, self.received, cookie=self.cookie, tcp=replace(FULL_FLIGHT)
            )
        ]

    def judge(self) -> Verdict:
        (rule,) = self.policy.rules
        (verdict,) = self.budgets.judge(1, (Verdict(FT, "lte", rule, None, None, ""),), self.now)
        return verdict

    def count(self) -> None:
        self.budgets._count(self.now)

    def end(self) -> None:
        closed = ClosedSocket(self.cookie, FT.remote, FT.remote_port, FT.local_port, self.acked, self.received)
        self.meter.waiting.append(closed)
        self.live = False

    def begin(self) -> None:
        self.cookie, self.acked, self.received, self.live = self.cookie + 1, 0, 0, True
        self.judge()

    def used(self) -> int:
        ledger = Ledger(self.path)
        total = sum(ledger.used().values())
        ledger.close()
        return total


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "ledger.sqlite")


def test_a_volume_that_is_used_up_brings_the_cap_of_its_step(scene: Scene) -> None:
    assert scene.judge().throttle is None
    assert scene.judge().reason == "budget of rule lte: 0 B of 1.00 MB used until 2026-12-01 00:00 EET"
    scene.acked, scene.received = 900_000, 100_000
    scene.count()
    assert scene.heard == [1]
    capped = scene.judge()
    assert capped.throttle is not None
    assert capped.throttle.rate == 1_000_000
    assert capped.reason == "rule lte caps what exceeds 1.00 MB until 2026-12-01 00:00 EET"
    scene.acked = 5_000_000
    scene.count()
    assert scene.judge().throttle == scene.policy.rules[0].budget.steps[1].throttle  # type: ignore[union-attr]
    scene.now = at("2026-12-01 00:00")
    scene.heard.clear()
    scene.count()
    assert scene.heard == [1], "a new period"
    assert scene.judge().throttle is None


def test_what_a_socket_carried_last_is_counted_once(scene: Scene) -> None:
    scene.acked = 500_000
    scene.count()
    scene.acked = 600_000
    scene.end()
    scene.count()
    scene.count()
    assert scene.used() == 600_000


def test_a_socket_that_no_dump_ever_showed_counts(scene: Scene) -> None:
    scene.acked = 70_000
    scene.end()
    scene.count()
    assert scene.used() == 70_000


def test_a_socket_that_closes_between_dump_and_report_counts_once(scene: Scene) -> None:
    scene.acked = 70_000
    scene.end()
    scene.live = True
    scene.count()
    scene.live = False
    scene.count()
    assert scene.used() == 70_000


def test_a_socket_that_takes_long_to_close_counts_once(scene: Scene) -> None:
    scene.acked = 70_000
    scene.count()
    scene.live = False
    scene.count()
    scene.end()
    scene.count()
    assert scene.used() == 70_000


@given(steps=st.lists(st.sampled_from(["send", "count", "kill", "stop", "reconnect", "period"]), max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_byte_counts_twice_and_none_is_lost_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    scene = Scene(tmp_path_factory.mktemp("ledger") / "ledger.sqlite")
    sent = 0
    for step in steps:
        if step == "send":
            scene.acked, scene.received, sent = scene.acked + 1000, scene.received + 10, sent + 1010
        elif step == "count":
            scene.count()
        elif step == "kill":
            scene.start()
        elif step == "stop":
            scene.count()
            scene.budgets.close()
            scene.start()
        elif step == "reconnect":
            scene.end()
            scene.count()
            scene.begin()
        else:
            scene.now += 40 * 86_400
    scene.count()
    assert scene.used() == sent


def test_counters_of_another_boot_are_not_ours(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    account = Account("lte", "", 0)
    ledger.write("one", {account: 5}, {7: Counters(5, 0)}, [])
    assert ledger.counters("two") == {}
    ledger.write("two", {account: 5}, {7: Counters(5, 0)}, [])
    assert ledger.counters("one") == {}
    assert ledger.used() == {account: 10}


def test_a_reset_beside_a_running_daemon_holds(scene: Scene) -> None:
    scene.acked = 2_000_000
    scene.count()
    other = Ledger(scene.path, create=False)
    (quota,) = quotas(other, scene.policy, scene.now)
    assert (quota.used, quota.step, quota.next_step) == (2_000_000, 1_000_000, 3_000_000)
    assert other.reset({("lte", "10.77.1.2")}) == 1
    scene.acked += 100
    scene.count()
    assert scene.used() == 100
    assert scene.judge().throttle is None


def test_what_is_no_database_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    path.write_text("no database, long enough to be looked at" * 40)
    with pytest.raises(LedgerError, match="file is not a database"):
        Ledger(path)
    with pytest.raises(KernelError, match="file is not a database"):
        Scene(path)
    with pytest.raises(LedgerError, match="there is no ledger yet"):
        Ledger(tmp_path / "none", create=False)
