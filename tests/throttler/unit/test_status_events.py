# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the queries ``events`` and ``client``, with the whole daemon and a fake kernel."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from fake_kernel import FakeKernel, four_tuple
from test_daemon import BOTH_DIRECTIONS, CAPPED, PATHS, UNCAPPED, Scene, running, scenario
from test_status_answers import LTE, WIFI, resync, sweep_and_count

from mptcp_throttler.stages.guard import GuardChange
from mptcp_throttler.stages.steering import SetBackup


def events_of(scene: Scene, **request: object) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = scene.request(query="events", **request)["events"]
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [each["kind"] for each in events]


@scenario
async def test_events_of_a_connections_life(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        start = time.time()
        events = events_of(scene)
        assert kinds(events) == ["connection", "subflow", "subflow", "decided", "applied"]
        assert {each["token"] for each in events} == {"00000007"}
        assert {each["client"] for each in events} == {WIFI}
        decided, applied = events[3:]
        assert (decided["remote"], decided["local"]) == ("10.1.0.1:40000", "10.77.0.1:3128")
        assert (decided["path"], decided["rule"], decided["direction"]) == ("a", "cap-a", "down")
        assert "rule cap-a caps path a at 5 Mbit/s" in decided["text"]
        assert applied["text"] == "10.1.0.1:40000 on path a: cap of rule cap-a in force"
        assert all(start - 10 < each["time"] <= time.time() for each in events)
        await scene.reload(UNCAPPED)
        kernel.sockets.by_four_tuple.clear()
        resync(scene, later=5.0)
        later_events = events_of(scene, after=events[-1]["seq"])
        assert kinds(later_events)[:3] == ["decided", "lifted", "reload"]
        assert sorted(kinds(later_events)[3:]) == ["closed", "closed", "fault", "fault"]
        assert {each["text"].partition(": ")[2] for each in later_events if each["kind"] == "fault"} == {
            "the kernel's records disagree: no end was reported, but the kernel does not list it"
        }
        assert later_events[1]["text"] == "10.1.0.1:40000 on path a: no cap is in force"
        assert [each["seq"] for each in later_events] == list(range(events[-1]["seq"] + 1, events[-1]["seq"] + 8))
        assert scene.request(query="summary")["last_event"] == later_events[-1]["seq"]


@scenario
async def test_events_are_filtered(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, "10.2.0.8")
    async with running(tmp_path, CAPPED, kernel) as scene:
        assert {each["token"] for each in events_of(scene, client=WIFI)} == {"00000007"}
        assert {each["token"] for each in events_of(scene, client=LTE)} == {"00000007"}
        assert {each["client"] for each in events_of(scene, token="8")} == {"10.2.0.8"}
        assert kinds(events_of(scene, rule="cap-a")) == ["decided", "applied"]
        all_events = events_of(scene)
        assert events_of(scene, limit=2) == all_events[-2:], "not the latest events"
        assert events_of(scene, after=0, limit=3) == all_events[:3], "not the first events"
        assert events_of(scene, after=all_events[-1]["seq"]) == []
        answer = scene.request(query="events")
        assert (answer["first"], answer["last"]) == (1, all_events[-1]["seq"])


@scenario
async def test_reloads_faults_and_the_guard_cause_one_event_each(tmp_path: Path) -> None:
    async with running(tmp_path, CAPPED) as scene:
        before = scene.request(query="summary")["last_event"]
        scene.policy[0] = "version: 1\nrules: [{name: x, paths: [c], throttle: {rate: 1 Mbit/s}}]\n"
        await scene.daemon._reload()
        logging.getLogger("mptcp_throttler.kernel").warning("tc: %s\non wan0", "qdisc deleted")
        scene.engine.action_runner.perform([GuardChange(9, ("cap-a",), "low rate")])
        await scene.reload(UNCAPPED)
        events = events_of(scene, after=before)
        assert sorted((each["kind"], each["text"]) for each in events) == [
            ("fault", "tc: qdisc deleted on wan0"),
            ("guard", "caps of rule cap-a relaxed: low rate"),
            ("reload", events[0]["text"]),
            ("reload", "policy reloaded: 0 rules"),
        ]
        assert re.fullmatch(r'policy not reloaded: p:2: rules\[0\].paths.*"c".*', events[0]["text"])
    logging.getLogger("mptcp_throttler.kernel").warning("after the daemon has stopped")


@scenario
async def test_events_of_guard_and_steering_name_their_rule(tmp_path: Path) -> None:
    """Defect: a query with the rule's name did not return these events, and their log lines had no rule."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        before = scene.request(query="summary")["last_event"]
        actions = scene.engine.action_runner
        scene.engine.path_manager.commands.set_backup = lambda *_: None  # type: ignore[method-assign]
        with logged_fields() as fields:
            actions.perform([GuardChange(7, ("cap-a",), "low rate"), GuardChange(7, ("cap-a",))])
            actions.perform([SetBackup(7, four_tuple(LTE), True, "s"), SetBackup(7, four_tuple(LTE), False, "s")])
        assert kinds(events_of(scene, after=before, rule="cap-a")) == ["guard", "guard"]
        assert [each["text"] for each in events_of(scene, rule="s")] == [
            "10.2.0.1:40000 on path b: made backup",
            "10.2.0.1:40000 on path b: made regular",
        ]
        assert [each["MPTCP_RULE"] for each in fields] == [("cap-a",), ("cap-a",), "s", "s"]
        assert {each["MPTCP_CLIENT"] for each in fields} == {WIFI}


@scenario
async def test_guard_event_of_two_rules_is_logged_once_and_listed_for_each_rule(tmp_path: Path) -> None:
    """Defect: the same line was logged twice, with two identical events."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        before = scene.request(query="summary")["last_event"]
        rules = "cap-a", "cap-b"
        with logged_fields() as fields:
            scene.engine.action_runner.perform([GuardChange(7, rules, "low rate"), GuardChange(7, rules)])
        assert [each["MPTCP_RULE"] for each in fields] == [rules, rules]
        for rule in rules:
            assert [each["text"] for each in events_of(scene, after=before, rule=rule)] == [
                f"caps of rule {rule} relaxed: low rate",
                f"caps of rule {rule} are in force again",
            ]


@contextmanager
def logged_fields() -> Iterator[list[dict[str, str | tuple[str, ...]]]]:
    """Collect the fields of log records about actions."""
    fields: list[dict[str, str | tuple[str, ...]]] = []
    handler = logging.Handler()
    handler.emit = lambda record: fields.append(record.fields)  # type: ignore[attr-defined, method-assign]
    logger = logging.getLogger("mptcp_throttler.runtime.actions")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield fields
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


VOLUME = PATHS + (
    "rules:\n"
    "  - {name: cap-a, paths: [a], throttle: {rate: 5 Mbit/s}}\n"
    "  - {name: volume, paths: [b], budget: {per: client, period: month,"
    " steps: [{after: 1 MB, throttle: {rate: 1 Mbit/s}}]}}\n"
)


@scenario
async def test_used_up_budget_causes_an_event(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, VOLUME, kernel) as scene:
        before = scene.request(query="summary")["last_event"]
        await sweep_and_count(scene)
        kernel.sockets.carry(four_tuple(LTE), 1_200_000)
        with logged_fields() as fields:
            await sweep_and_count(scene)
        assert fields == [{"MPTCP_CLIENT": LTE, "MPTCP_RULE": "volume"}]
        events = events_of(scene, after=before)
        (budget,) = [each for each in events if each["kind"] == "budget"]
        assert (budget["rule"], budget["token"]) == ("volume", None)
        assert budget["text"].startswith("client 10.2.0.1: rule volume caps what exceeds 1.00 MB until ")


@scenario
async def test_client_gets_only_its_own_connection(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, "10.1.0.8", "10.2.0.8")
    async with running(tmp_path, VOLUME, kernel) as scene:
        await sweep_and_count(scene)
        kernel.sockets.carry(four_tuple(LTE), 200_000, 50)
        kernel.sockets.carry(four_tuple("10.2.0.8"), 900_000)
        await sweep_and_count(scene)
        answer = scene.request(query="client", endpoint="10.2.0.1:40000")
        assert answer["multipath"] is True
        assert [(each["path"], each["address"], each["capped"], each["rate"]) for each in answer["subflows"]] == [
            ("a", WIFI, True, 5_000_000),
            ("b", LTE, False, None),
        ]
        assert answer["subflows"][1]["bytes"] == 200_050
        (budget,) = answer["budgets"]
        assert (budget["name"], budget["used"], budget["volume"], budget["left"], budget["shared"]) == (
            "volume",
            200_050,
            1_000_000,
            799_950,
            False,
        )
        assert "10.1.0.8" not in str(answer)
        assert "10.2.0.8" not in str(answer)


@scenario
async def test_clients_of_one_nat_get_their_own_connections(tmp_path: Path) -> None:
    """Defect: the answer described the first connection with that address and port, even if it was another client's."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, WIFI, proxy=ip_address("10.77.0.9").packed)
    async with running(tmp_path, VOLUME, kernel) as scene:

        def addresses(**arguments: str) -> list[str]:
            answer = scene.request(query="client", endpoint=f"{WIFI}:40000", **arguments)
            assert answer["multipath"] == bool(answer["subflows"])
            return [each["address"] for each in answer["subflows"]]

        assert addresses(local="10.77.0.1:3128") == addresses(token="7") == [WIFI, LTE]
        assert addresses(local="10.77.0.9:3128") == addresses(local="[::ffff:10.77.0.9]:3128") == [WIFI]
        assert addresses(token="8") == [WIFI]
        assert addresses(local="10.77.0.1:3129") == addresses(local="10.77.0.8:3128") == addresses(token="9") == []
        assert addresses() == [], "an endpoint without a token identified a connection"
        # The operator of the proxy gets both connections.
        explained = scene.request(query="explain", endpoint=f"{WIFI}:40000")
        assert {each["token"] for each in explained["connections"]} == {"00000007", "00000008"}


@scenario
async def test_client_sees_no_cap_in_a_dry_run(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, BOTH_DIRECTIONS + "dry_run: true\n", kernel) as scene:
        assert scene.request(query="summary")["rules"][0]["capped"] == 1, (
            "the summary does not count the caps of a dry run"
        )
        answer = scene.request(query="client", endpoint="10.1.0.1:40000")["subflows"]
        caps = [[each[key] for key in ("path", "capped", "rate", "rule", "upload_rate")] for each in answer]
        assert caps == [["a", False, None, None, None], ["b", False, None, None, None]]
        await scene.reload(BOTH_DIRECTIONS)
        first = scene.request(query="client", endpoint="10.1.0.1:40000")["subflows"][0]
        assert (first["capped"], first["rate"], first["upload_rate"]) == (True, 5_000_000, 5_000_000)


@scenario
async def test_plain_tcp_is_reported_as_not_multipath(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, VOLUME, kernel) as scene:
        for endpoint in ("10.1.0.1:40001", "10.3.0.1:40000", "[2001:db8::1]:40000"):
            answer = scene.request(query="client", endpoint=endpoint)
            assert (answer["multipath"], answer["subflows"], answer["budgets"]) == (False, [], [])
