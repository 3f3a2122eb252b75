# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the text descriptions of rules: conditions, caps, budgets, steering and exemptions."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_daemon import PATHS, running, scenario

from mptcp_throttler.policy.conditions import MAX_PREFIXES
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.views.text import describe_rules

NEEDS_TWO_PATHS = ", once there are subflows on two paths"
EXAMPLES = Path(__file__).parents[3] / "conf" / "examples"


def describe(text: str) -> list[tuple[str, list[str], list[str]]]:
    return [(each["rule"], each["conditions"], each["does"]) for each in describe_rules(load_policy(text, "p"))]


def describe_rule(rule: str) -> tuple[list[str], list[str]]:
    ((_, conditions, effects),) = describe(PATHS + f"rules: [{{name: x, {rule}}}]\n")
    return conditions, effects


def test_budget_is_described() -> None:
    assert describe((EXAMPLES / "monthly-volume.yaml").read_text()) == [
        (
            "lte-monthly",
            ["path lte", "downloads and uploads"],
            [
                "budget of rule lte-monthly, by month from day 15, 00:00 for each client: "
                "after 5.00 GB 512 kbit/s per client, after 6.00 GB 64 kbit/s per client"
            ],
        )
    ]


def test_steering_is_described() -> None:
    assert describe((EXAMPLES / "steering-modes.yaml").read_text()) == [
        (
            "office-hours",
            ["path ethernet or wifi", "Mon-Fri 08:00-18:00 (Europe/Athens)"],
            [f"steering load-balancing: ethernet 70, wifi 30{NEEDS_TWO_PATHS}"],
        ),
        (
            "prefer-wifi",
            ["path wifi or ethernet"],
            [f"steering priority-based: wifi, then ethernet{NEEDS_TWO_PATHS}"],
        ),
    ]


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_every_rule_of_the_examples_has_an_effect(file: Path) -> None:
    policy = load_policy(file.read_text(), file.name)
    descriptions = describe_rules(policy)
    assert [each["rule"] for each in descriptions] == [rule.name for rule in policy.rules]
    assert all(each["does"] for each in descriptions)


@pytest.mark.parametrize(
    ("rule", "conditions", "effects"),
    [
        ("throttle: {rate: 5 Mbit/s}", [], [f"cap of 5 Mbit/s{NEEDS_TWO_PATHS}"]),
        ("throttle: {rate: 5 Mbit/s}, when: {min_subflows: 1}", ["at least 1 active subflow"], ["cap of 5 Mbit/s"]),
        ("throttle: {rate: 5 Mbit/s}, when: {max_subflows: 1}", ["at most 1 active subflow"], ["cap of 5 Mbit/s"]),
        (
            "throttle: {rate: 5 Mbit/s, burst: 64 KB, landing: at-once}",
            [],
            [f"cap of 5 Mbit/s, burst of 64.0 KB, at once{NEEDS_TWO_PATHS}"],
        ),
        (
            "paths: [a, b], direction: up, throttle: {rate: 5 Mbit/s, ceil: 8 Mbit/s, share: connection}",
            ["path a or b", "uploads"],
            [f"cap of 5 Mbit/s per connection, up to 8 Mbit/s{NEEDS_TWO_PATHS}"],
        ),
        ("throttle: none, budget: none, steer: none", [], ["no cap", "no budget", "no steering"]),
        ("steer: {mode: smallest-delay}", [], ["steering smallest-delay"]),
        (
            "steer: {mode: active-standby, active: a, standby: b}, when: {min_subflows: 2, max_subflows: 3}",
            ["path a or b", "at least 2 active subflows", "at most 3 active subflows"],
            ["steering active-standby: a, then b"],
        ),
        (
            "throttle: {rate: 5 Mbit/s}, lift_last: false, guard: false",
            [],
            [f"cap of 5 Mbit/s, on the last usable path too, never relaxed by the guard{NEEDS_TWO_PATHS}"],
        ),
    ],
)
def test_rule_is_described(rule: str, conditions: list[str], effects: list[str]) -> None:
    assert describe_rule(rule) == (conditions, effects)


@pytest.mark.parametrize(
    ("budget", "begins"),
    [
        ("period: month", "by month for"),
        ("period: month, reset_day: 15", "by month from day 15, 00:00 for"),
        ("period: month, reset_time: '04:00'", "by month from day 1, 04:00 for"),
        ("period: week, reset_day: tue", "by week from Tue, 00:00 for"),
        ("period: week", "by week for"),
        ("period: day, reset_time: '04:00'", "by day from 04:00 for"),
        ("period: day", "by day for"),
    ],
)
def test_period_of_a_budget_is_described(budget: str, begins: str) -> None:
    (effects,) = describe_rule(
        f"budget: {{{budget}, steps: [{{after: 1 GB, throttle: {{rate: 1 Mbit/s, landing: at-once}}}}]}}"
    )[1]
    assert effects.startswith(f"budget of rule x, {begins} ")
    assert effects.endswith(": after 1.00 GB 1 Mbit/s, at once")


def test_long_list_of_clients_is_shortened() -> None:
    prefixes = [f"10.{number}.0.0/16" for number in range(MAX_PREFIXES + 2)]
    text = f"when: {{clients: [{', '.join(prefixes)}]}}, throttle: {{rate: 5 Mbit/s}}"
    assert describe_rule(text)[0] == [f"clients {', '.join(prefixes[:MAX_PREFIXES])} and 2 more"]


@scenario
async def test_summary_describes_rules_and_lists_all_paths_of_a_rule(tmp_path: Path) -> None:
    """Defect: a rule without paths had no metric before a subflow had its cap."""
    policy = PATHS + "rules: [{name: all, throttle: {rate: 5 Mbit/s}}]\n"
    async with running(tmp_path, policy) as scene:
        answer = scene.request(query="summary")
        assert answer["policy"]["rules_in_words"] == [
            {"rule": "all", "conditions": [], "does": [f"cap of 5 Mbit/s{NEEDS_TWO_PATHS}"]}
        ]
        assert [(each["path"], each["capped"], each["rate"]) for each in answer["rules"]] == [
            (None, 0, 5_000_000),
            ("a", 0, 5_000_000),
            ("b", 0, 5_000_000),
        ]
