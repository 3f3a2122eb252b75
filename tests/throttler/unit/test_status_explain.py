# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the answer of the status socket to ``explain``, with the whole daemon and a fake kernel."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_kernel import FakeKernel, four_tuple
from test_daemon import BOTH_DIRECTIONS, CAPPED, PATHS, UNCAPPED, Scene, running, scenario, until
from test_status_answers import LTE, WIFI, sweep_and_count
from test_status_events import VOLUME

from mptcp_throttler.cli.queries import explanation
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Direction
from mptcp_throttler.runtime import actions, budgets, daemon, decisions, engine
from mptcp_throttler.stages.degradation import Candidate, Relaxation
from mptcp_throttler.stages.guard import GuardChange
from mptcp_throttler.telemetry.events import MAX_EVENTS


def explained_subflows(scene: Scene, **request: object) -> list[dict[str, Any]]:
    """Return the subflows of the only connection that matches the request."""
    (connection,) = scene.request(query="explain", **request)["connections"]
    return list(connection["subflows"])


@scenario
async def test_cap_is_explained(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    start = time.time()
    async with running(tmp_path, CAPPED, kernel) as scene:
        wifi, lte = explained_subflows(scene, client=WIFI)
        assert wifi == {
            "remote": "10.1.0.1:40000",
            "local": "10.77.0.1:3128",
            "path": "a",
            "interface": wifi["interface"],
            "direction": "down",
            "verdict": "capped at 5 Mbit/s",
            "reason": "rule cap-a caps path a at 5 Mbit/s: 2 subflows active",
            "rate": 5_000_000,
            "ceil": 5_000_000,
            "rule": "cap-a",
            "since": wifi["since"],
            "tried": [{"rule": "cap-a", "kind": "throttle", "matched": True, "failed": None, "until": None}],
            "stages": [],
            "cap_state": "in force",
        }
        assert start <= wifi["since"] <= time.time()
        assert (lte["verdict"], lte["rate"], lte["rule"], lte["cap_state"]) == ("not capped", None, None, "none")
        assert lte["tried"][0]["failed"] == "the subflow is on path b, not on a"


@scenario
async def test_connections_are_found_by_client_token_or_endpoint(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, LTE, port=40_001)
    async with running(tmp_path, BOTH_DIRECTIONS, kernel) as scene:

        def tokens(**request: object) -> set[str]:
            return {each["token"] for each in scene.request(query="explain", **request)["connections"]}

        assert tokens(client=LTE) == {"00000007", "00000008"}
        assert tokens(client="10.9.9.9") == set()
        assert tokens(token="7") == {"00000007"}
        assert tokens(token="9") == set()
        assert tokens(endpoint="10.2.0.1:40001") == {"00000008"}
        assert tokens(endpoint="10.2.0.1:40002") == set()
        explained = explained_subflows(scene, token="7")
        assert [(each["remote"], each["direction"], each["verdict"]) for each in explained] == [
            ("10.1.0.1:40000", "down", "capped at 5 Mbit/s"),
            ("10.1.0.1:40000", "up", "capped at 5 Mbit/s"),
            ("10.2.0.1:40000", "down", "not capped"),
            ("10.2.0.1:40000", "up", "not capped"),
        ]
        assert "one of" in scene.request(query="explain")["error"]


@scenario
async def test_budget_stage_is_explained(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, VOLUME, kernel) as scene:
        await sweep_and_count(scene)
        (stage,) = explained_subflows(scene, token="7")[1]["stages"]
        assert stage["stage"] == "budgets"
        assert stage["what"].startswith("budget of rule volume: under 50 % of 1.00 MB used until ")
        kernel.sockets.carry(four_tuple(LTE), 1_200_000)
        used_up = time.time()
        await sweep_and_count(scene)
        lte = explained_subflows(scene, token="7")[1]
        assert (lte["verdict"], lte["rule"]) == ("capped at 1 Mbit/s", "volume")
        stage, _ = lte["stages"]
        assert stage["what"].startswith("rule volume caps what exceeds 1.00 MB until ")
        assert stage["since"] >= used_up
        assert lte["since"] >= used_up
        assert [(each["rule"], each["kind"], each["matched"]) for each in lte["tried"]] == [
            ("cap-a", "throttle", False),
            ("volume", "budget", True),
        ]


@scenario
async def test_stage_has_no_start_time_if_its_event_was_displaced(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, VOLUME, kernel) as scene:
        await sweep_and_count(scene)
        kernel.sockets.carry(four_tuple(LTE), 1_200_000)
        await sweep_and_count(scene)
        ring = scene.engine.events.ring
        for _ in range(MAX_EVENTS - ring.last):
            ring.add(time.time(), "fault")
        assert explained_subflows(scene, token="7")[1]["stages"][0]["since"] is not None, (
            "the start is missing, although no event was displaced"
        )
        for _ in range(ring.last):
            ring.add(time.time(), "fault")
        assert explained_subflows(scene, token="7")[1]["stages"][0]["since"] is None
        lines = list(explanation(scene.request(query="explain", token="7")))
        (line,) = [each for each in lines if "then budgets" in each]
        assert ", since" not in line


def shift_clocks(monkeypatch: pytest.MonkeyPatch, start: float, ahead: Callable[[], float]) -> None:
    """Start the daemon's clocks at *start*. *ahead* returns their lead over the event loop's clock."""
    real_start = time.monotonic()
    clock = SimpleNamespace(
        time=lambda: start + ahead() + time.monotonic() - real_start, monotonic=lambda: time.monotonic() + ahead()
    )
    for module in (actions, budgets, daemon, decisions, engine):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(time, "time", clock.time)  # A default argument is time.time.


DAILY = (
    PATHS
    + """\
rules:
  - {name: volume, paths: [b], budget: {per: client, period: day, steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}]}}
"""
)
LOWER_CAP = "  - {name: lower, paths: [b], throttle: {rate: 500 kbit/s}}\n"


@pytest.mark.parametrize("other_rule", ["", LOWER_CAP], ids=["without another rule", "with a lower cap"])
def test_budget_state_has_no_time_of_another_period_or_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_rule: str
) -> None:
    """Defect: the state seemed to have begun on the day before, when the budget had been used up.

    After a reload that changed the state, its start was the time of an earlier event.
    """
    ahead = 0.0
    midnight = datetime(2026, 11, 21, tzinfo=UTC).timestamp()
    shift_clocks(monkeypatch, midnight - 3600, lambda: ahead)
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    daily = DAILY + other_rule

    async def run_two_days() -> None:
        nonlocal ahead
        async with running(tmp_path, daily, kernel) as scene:

            def state() -> tuple[str, float | None]:
                stage, *_ = explained_subflows(scene, token="7")[1]["stages"]
                return str(stage["what"]), stage["since"]

            await sweep_and_count(scene)
            kernel.sockets.carry(four_tuple(LTE), 1_200_000)
            await sweep_and_count(scene)
            text, used_up = state()
            assert " 1.00 MB until 2026-11-21" in text
            assert used_up is not None
            assert midnight - 3600 < used_up < midnight
            await scene.reload(f"{daily}anticipate: false\n")
            assert state() == (text, used_up), "a reload that did not change the budget changed its state"
            ahead = 1200.0
            await scene.reload(daily.replace("after: 1 MB", "after: 1.1 MB"))
            text, since = state()
            assert " 1.10 MB until 2026-11-21" in text
            assert since is None or since >= midnight - 2400
            ahead = 5400.0
            await until(lambda: state()[0].startswith("budget of rule volume: under 50 % of 1.10 MB used"))
            assert state()[1] is None

    asyncio.run(run_two_days())


@scenario
async def test_guard_stage_is_explained(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        detector = scene.engine.guard._detectors[Direction.DOWN]
        candidate = Candidate()
        candidate.relaxation = Relaxation(
            time.monotonic() + 60, four_tuple(LTE).remote, 100_000, 9_000_000, 9_000_000, 0.0
        )
        detector.connections[7].candidate = detector._candidates[7] = candidate
        relaxed = time.time()
        scene.engine.action_runner.perform([GuardChange(7, ("cap-a",), "low rate")])
        scene.engine.decisions.decide([7])
        wifi = explained_subflows(scene, token="7")[0]
        assert (wifi["verdict"], wifi["tried"][0]["matched"]) == ("capped at 10.494 Mbit/s", True)
        (stage,) = wifi["stages"]
        assert stage["stage"] == "guard"
        assert stage["what"].startswith("cap of rule cap-a relaxed: the connection got 100 kbit/s;")
        assert stage["since"] >= relaxed
        assert scene.request(query="summary")["guard"]["relaxed"] == 1


@scenario
async def test_state_of_a_cap_in_a_transition_is_coming(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.fill(four_tuple(WIFI))
    async with running(tmp_path, UNCAPPED, kernel) as scene:
        await scene.reload(CAPPED)
        assert explained_subflows(scene, token="7")[0]["cap_state"] == "coming"
        summary = scene.request(query="summary")
        assert (summary["rules"][0]["landing"], summary["subflows"]["pending"]) == (1, 1)
        await until(lambda: explained_subflows(scene, token="7")[0]["cap_state"] == "in force")
        assert scene.request(query="summary")["rules"][0]["landing"] == 0


@scenario
async def test_state_of_an_upload_cap_is_coming_until_its_class_has_the_rate(tmp_path: Path) -> None:
    """Defect: such a cap was reported as in force while its class still had the rate of the incoming data."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, UNCAPPED, kernel) as scene:
        planner = scene.engine.uploads.planner
        await scene.reload(CAPPED.replace("paths: [a],", "paths: [a], direction: up,"))
        sent = time.monotonic()

        def is_in_transition() -> bool:
            nonlocal sent
            before, sent = sent, time.monotonic()
            kernel.sockets.carry(four_tuple(WIFI), 0, int((sent - before) * 32_000_000 / 8))
            return any(cap.interim_rates for cap in planner.caps.values())

        def cap_state() -> tuple[str, bool, int, int]:
            (connection,) = scene.request(query="connections")["connections"]
            (status,) = scene.status()["connections"]
            assert connection["subflows"][0]["upload"]["landing"] == status["subflows"][0]["upload"]["landing"]
            summary = scene.request(query="summary")
            (rule,) = summary["rules"]
            (wifi,) = [each for each in explained_subflows(scene, token="7") if each["path"] == "a" and each["rule"]]
            landing = connection["subflows"][0]["upload"]["landing"]
            return wifi["cap_state"], landing, rule["landing"], summary["subflows"]["pending"]

        await until(is_in_transition)
        assert four_tuple(WIFI) not in planner.pending(), "the subflow has no entry yet"
        assert cap_state() == ("coming", True, 1, 1)
        await until(lambda: not any(cap.interim_rates for cap in planner.caps.values()))
        await until(lambda: cap_state() == ("in force", False, 0, 0))


@scenario
async def test_state_of_a_lifted_cap_with_an_entry_is_being_lifted(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        scene.engine.decisions.set_policy(load_policy(UNCAPPED, "p"))
        scene.engine.decisions.decide([7])  # The entry is removed in a later turn of the loop.
        assert explained_subflows(scene, token="7")[0]["cap_state"] == "being lifted"
        await until(lambda: explained_subflows(scene, token="7")[0]["cap_state"] == "none")


@scenario
async def test_cap_of_a_dry_run_is_not_in_force(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED + "dry_run: true\n", kernel) as scene:
        wifi = explained_subflows(scene, token="7")[0]
        assert (wifi["verdict"], wifi["cap_state"]) == ("capped at 5 Mbit/s (dry run)", "none")
