# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the queries ``what_if`` and ``policy``, with the whole daemon and a fake kernel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_kernel import FakeKernel, four_tuple
from pydantic import TypeAdapter
from test_daemon import BOTH_DIRECTIONS, CAPPED, PATHS, UNCAPPED, running, scenario
from test_status_answers import LTE, WIFI, sweep_and_count
from test_status_events import VOLUME
from test_status_explain import explained_subflows

from mptcp_common import status_client
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.runtime.answers.what_if import MAX_LISTED
from mptcp_throttler.views.answers import WhatIfAnswer
from mptcp_throttler.views.text import describe_paths


async def query_what_if(tmp_path: Path, policy: str) -> dict[str, Any]:
    """Query the daemon. Its child process decides about a copy of the daemon's state."""
    answer = await status_client.ask_async(tmp_path / "s", {"query": "what_if", "policy": policy}, 60.0)
    TypeAdapter(WhatIfAnswer).validate_json(json.dumps(answer))
    return answer


@scenario
async def test_policy_is_evaluated_without_coming_into_force(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel) as scene:
        answer = await query_what_if(tmp_path, CAPPED)
        assert (answer["changes"], answer["changed"], answer["capped_now"], answer["capped_then"]) == ([], 0, 1, 1)
        answer = await query_what_if(tmp_path, CAPPED.replace("[a]", "[b]").replace("cap-a", "cap-b"))
        assert [(each["remote"], each["path"], each["now"], each["then"]) for each in answer["changes"]] == [
            ("10.1.0.1:40000", "a", "capped at 5 Mbit/s by rule cap-a", "not capped"),
            ("10.2.0.1:40000", "b", "not capped", "capped at 5 Mbit/s by rule cap-b"),
        ]
        assert answer["errors"] == []
        assert (await query_what_if(tmp_path, UNCAPPED))["capped_then"] == 0
        assert (await query_what_if(tmp_path, BOTH_DIRECTIONS))["capped_then"] == 2
        assert scene.status()["policy"]["rules"] == ["cap-a"]
        assert explained_subflows(scene, token="7")[0]["verdict"] == "capped at 5 Mbit/s"


@scenario
async def test_evaluation_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    """Defect: for a policy with 1,000 paths, four child processes computed for 18 s each.

    During that time, no other request was answered.
    """
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mptcp_throttler.runtime.answers.what_if.MAX_SECONDS", 0)
        async with running(tmp_path, CAPPED, kernel):
            answer = await status_client.ask_async(tmp_path / "s", {"query": "what_if", "policy": CAPPED}, 60.0)
    assert answer["error"] == "the evaluation of this policy takes too long: 0 of 1 connections in 0 s"


@scenario
async def test_used_up_budgets_count_for_another_policy(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, VOLUME, kernel) as scene:
        await sweep_and_count(scene)
        kernel.sockets.carry(four_tuple(LTE), 1_200_000)
        await sweep_and_count(scene)
        assert (await query_what_if(tmp_path, VOLUME))["changed"] == 0
        (change,) = (await query_what_if(tmp_path, VOLUME.replace("after: 1 MB", "after: 2 MB")))["changes"]
        budget = "budget of rule volume, by month for each client: after {} MB 1 Mbit/s"
        assert (change["now"], change["then"]) == (
            f"capped at 1 Mbit/s by rule volume; {budget.format('1.00')}",
            f"not capped; {budget.format('2.00')}",
        )


@scenario
async def test_all_errors_of_a_policy_are_returned(tmp_path: Path) -> None:
    async with running(tmp_path, CAPPED):
        answer = await query_what_if(tmp_path, PATHS + "rules: [{name: x, paths: [c], throttle: {rate: 5}}]\n")
        assert len(answer["errors"]) == 2
        assert all(each.startswith("policy:5: rules[0].") for each in answer["errors"])
        assert "changes" not in answer


@scenario
async def test_number_of_listed_changes_is_limited(tmp_path: Path) -> None:
    kernel = FakeKernel()
    count = MAX_LISTED + 10
    for number in range(count):
        host = f"{number >> 8}.{number & 255}"
        kernel.sockets.connect(number + 1, f"10.1.{host}", f"10.2.{host}")
    async with running(tmp_path, UNCAPPED, kernel):
        answer = await query_what_if(tmp_path, CAPPED)
        assert (len(answer["changes"]), answer["changed"]) == (MAX_LISTED, count)
        answer = await query_what_if(tmp_path, UNCAPPED)
        assert (answer["changed"], answer["stay_capped_count"]) == (0, 0)
    async with running(tmp_path, CAPPED, kernel):
        answer = await query_what_if(tmp_path, CAPPED)
        assert (len(answer["stay_capped"]), answer["stay_capped_count"], answer["changed"]) == (MAX_LISTED, count, 0)


@scenario
async def test_subflows_that_stay_capped_are_listed(tmp_path: Path) -> None:
    """Defect: only changes were listed, not the subflows that the policy in force already caps."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel):
        answer = await query_what_if(tmp_path, CAPPED)
        (row,) = answer["stay_capped"]
        assert (row["remote"], row["path"], row["direction"]) == ("10.1.0.1:40000", "a", "down")
        assert row["now"] == row["then"] == "capped at 5 Mbit/s by rule cap-a"
        assert row["why"] == "rule cap-a caps path a at 5 Mbit/s: 2 subflows active"
        both = await query_what_if(tmp_path, BOTH_DIRECTIONS)
        assert [(each["remote"], each["direction"]) for each in both["changes"]] == [("10.1.0.1:40000", "up")]
        assert [(each["remote"], each["direction"]) for each in both["stay_capped"]] == [("10.1.0.1:40000", "down")]


@scenario
async def test_beginning_and_end_of_a_dry_run_are_changes(tmp_path: Path) -> None:
    """Defect: if only the dry-run line was removed from the policy, the answer contained no change."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    dry, cap_text = CAPPED + "dry_run: true\n", "capped at 5 Mbit/s by rule cap-a"
    async with running(tmp_path, dry, kernel):
        answer = await query_what_if(tmp_path, CAPPED)
        (change,) = answer["changes"]
        assert (change["remote"], change["now"], change["then"]) == (
            "10.1.0.1:40000",
            f"{cap_text} (dry run)",
            cap_text,
        )
        assert (answer["capped_now"], answer["capped_then"]) == (0, 1)
        assert (answer["dry_run_now"], answer["dry_run_then"]) == (True, False)
        answer = await query_what_if(tmp_path, dry)
        assert (answer["changed"], answer["capped_then"], answer["stay_capped"]) == (0, 0, [])
    async with running(tmp_path, CAPPED, kernel):
        answer = await query_what_if(tmp_path, dry)
        (change,) = answer["changes"]
        assert (change["now"], change["then"]) == (cap_text, f"{cap_text} (dry run)")
        assert (answer["capped_now"], answer["capped_then"]) == (1, 0)


STANDBY_POLICY = CAPPED.replace("}}]\n", "}}, {name: standby, steer: {mode: active-standby, active: a, standby: b}}]\n")


@scenario
async def test_new_steering_is_a_change(tmp_path: Path) -> None:
    """Defect: for a policy that makes one path the standby of the other, the answer contained no change."""
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    kernel.sockets.connect(8, LTE, port=40_001)
    async with running(tmp_path, CAPPED, kernel):
        answer = await query_what_if(tmp_path, STANDBY_POLICY)
        cap, steered = "capped at 5 Mbit/s by rule cap-a", "steered active-standby by rule standby"
        # A connection keeps the kernel's path manager with which it was opened, so its flags cannot be set.
        assert [(each["path"], each["now"], each["then"]) for each in answer["changes"]] == [
            ("a", f"{cap}; not steered", f"{cap}; {steered}, first, from the next connection on"),
            ("b", "not capped; not steered", f"not capped; {steered}, backup, from the next connection on"),
        ]
        assert (answer["changed"], answer["capped_now"], answer["capped_then"]) == (2, 1, 1)
        dry = (await query_what_if(tmp_path, STANDBY_POLICY + "dry_run: true\n"))["changes"]
        assert [each["then"] for each in dry] == [
            f"{cap}; {steered}, first (dry run)",
            f"not capped; {steered}, backup (dry run)",
        ]
        weights = STANDBY_POLICY.replace(
            "active-standby, active: a, standby: b", "load-balancing, weights: {a: 60, b: 40}"
        )
        assert [each["then"].partition("; ")[2] for each in (await query_what_if(tmp_path, weights))["changes"]] == [
            "steered load-balancing by rule standby, weight 60",
            "steered load-balancing by rule standby, weight 40",
        ]
    async with running(tmp_path, weights, kernel):
        answer = await query_what_if(tmp_path, weights)
        assert (answer["changed"], answer["stay_capped_count"]) == (0, 1)
        answer = await query_what_if(tmp_path, CAPPED)
        assert {each["then"].partition("; ")[2] for each in answer["changes"]} == {"not steered"}


@scenario
async def test_new_budget_is_a_change_before_it_is_used_up(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel):
        answer = await query_what_if(tmp_path, VOLUME)
        (change,) = answer["changes"]
        assert (change["path"], change["now"]) == ("b", "not capped; no budget")
        assert change["then"].startswith("not capped; budget of rule volume, by month for each client")
        assert answer["capped_then"] == 1
        # Budgets count in a dry run, too, so their text lacks "(dry run)".
        (_, change) = (await query_what_if(tmp_path, VOLUME + "dry_run: true\n"))["changes"]
        assert change["then"].endswith("after 1.00 MB 1 Mbit/s")


@scenario
async def test_each_difference_between_caps_is_described(tmp_path: Path) -> None:
    kernel = FakeKernel()
    kernel.sockets.connect(7, WIFI, LTE)
    async with running(tmp_path, CAPPED, kernel):
        other = CAPPED.replace("rate: 5 Mbit/s", "rate: 5 Mbit/s, share: client, landing: at-once")
        (change,) = (await query_what_if(tmp_path, other))["changes"]
        assert change["now"] == "capped at 5 Mbit/s by rule cap-a"
        assert change["then"] == "capped at 5 Mbit/s per client, at once, by rule cap-a"


@scenario
async def test_policy_query_returns_the_text_in_force(tmp_path: Path) -> None:
    """Defect: the policy in force could not be queried, and its file may differ from it."""
    text = f"# for the office\n{CAPPED}"
    async with running(tmp_path, text) as scene:
        first = scene.request(query="policy")
        assert (first["text"], first["dry_run"]) == (text, False)
        await scene.reload("version: 1\nrules: [nothing]\n")
        assert scene.request(query="policy")["text"] == text, "a refused policy is in force"
        await scene.reload(UNCAPPED + "dry_run: true\n")
        answer = scene.request(query="policy")
        assert (answer["text"], answer["dry_run"]) == (UNCAPPED + "dry_run: true\n", True)
        assert answer["since"] > first["since"]


def test_path_is_described_by_its_conditions() -> None:
    policy = load_policy(
        """\
version: 1
paths:
  office: {interfaces: [eth1, eth0], clients: [10.1.0.0/16, "fd77::/16"]}
  many: {clients: [10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16, 10.4.0.0/16, 10.5.0.0/16]}
  joined: {subflow: joined, remote_ids: [3, 2], backup: true}
  first: {subflow: initial, backup: false}
rules: []
""",
        "p",
    )
    assert {each["path"]: each["conditions"] for each in describe_paths(policy)} == {
        "office": ["interface eth0 or eth1", "clients 10.1.0.0/16, fd77::/16"],
        "many": ["clients 10.0.0.0/16, 10.1.0.0/16, 10.2.0.0/16, 10.3.0.0/16 and 2 more"],
        "joined": ["client's address ID 2 or 3", "joined subflows", "backup subflows"],
        "first": ["the initial subflow", "subflows that are not backup"],
    }


@scenario
async def test_summary_describes_the_paths(tmp_path: Path) -> None:
    async with running(tmp_path, PATHS + "rules: []\n") as scene:
        assert scene.request(query="summary")["policy"]["paths_in_words"] == [
            {"path": "a", "conditions": ["clients 10.1.0.0/16"]},
            {"path": "b", "conditions": ["clients 10.2.0.0/16"]},
        ]
