# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for valid policy files: the policies that they define, and the shipped files."""

from __future__ import annotations

from datetime import time
from ipaddress import ip_network
from pathlib import Path
from textwrap import dedent
from zoneinfo import ZoneInfo

import pytest
from policy_values import a_path, a_policy, a_rule, a_throttle
from short_policies import BUDGET, CAP, NAMED, STEER, rules

from mptcp_throttler.policy.load import check_policy, load_policy
from mptcp_throttler.policy.model import Direction, Kind, Policy, Rule, Share
from mptcp_throttler.policy.schedule import Window
from mptcp_throttler.stages.degradation import Candidate

CONF = Path(__file__).parents[3] / "conf"
EVERY_DAY = frozenset(range(7))


def min_subflows(rule: Rule) -> int:
    return rule.conditions(Kind.THROTTLE).min_subflows


def load(text: str) -> Policy:
    return load_policy(dedent(text), "policy.yaml")


def test_policy_with_all_keys() -> None:
    policy = load("""\
        version: 1
        time_zone: Europe/Athens
        dry_run: true
        paths:
          ethernet:
            clients: [10.77.1.0/24, "fd77:1::/64", 192.0.2.7]
            interfaces: [eth0]
            remote_ids: [0, 2]
            subflow: initial
            backup: false
          joined: {subflow: joined}
        rules:
          - name: spare-ethernet
            paths: [ethernet]
            when:
              min_subflows: 3
              max_subflows: 4
              days: [mon-fri, sun]
              hours: ["08:00-18:00", "22:00-02:00"]
              clients: [10.0.0.0/8]
            throttle:
              rate: 5 Mbit/s
              ceil: 8mbit
              burst: 15 KB
              share: connection
            lift_last: false
          - name: rest
            throttle: none
        """)
    days = frozenset({0, 1, 2, 3, 4, 6})
    assert policy.rules[0].when.windows == [Window(days, time(8), time(18)), Window(days, time(22), time(2))]
    assert policy == a_policy(
        paths=(
            a_path(
                name="ethernet",
                interfaces=frozenset({"eth0"}),
                clients=tuple(ip_network(p) for p in ("10.77.1.0/24", "fd77:1::/64", "192.0.2.7/32")),
                remote_ids=frozenset({0, 2}),
                subflow="initial",
                backup=False,
            ),
            a_path(name="joined", subflow="joined"),
        ),
        rules=(
            a_rule(
                name="spare-ethernet",
                paths=("ethernet",),
                throttle=a_throttle(5_000_000, 8_000_000, 15_000, Share.CONNECTION),
                min_subflows=3,
                max_subflows=4,
                clients=(ip_network("10.0.0.0/8"),),
                days=[frozenset({0, 1, 2, 3, 4}), frozenset({6})],
                hours=[(time(8), time(18)), (time(22), time(2))],
                lift_last=False,
            ),
            a_rule(name="rest", paths=None, throttle=None, exempts=True, direction=frozenset(Direction)),
        ),
        time_zone=ZoneInfo("Europe/Athens"),
        dry_run=True,
    )


def test_defaults_of_a_minimal_policy() -> None:
    policy = load("""\
        version: 1
        rules:
          - name: all
            throttle: {rate: 5 Mbit/s}
        """)
    assert policy == a_policy(
        paths=(),
        rules=(
            a_rule(
                name="all",
                paths=None,
                throttle=a_throttle(5_000_000, 5_000_000, None, Share.PATH),
                min_subflows=None,
                max_subflows=None,
                clients=None,
                windows=None,
                lift_last=True,
            ),
        ),
        time_zone=ZoneInfo("UTC"),
        dry_run=False,
    )


def test_exemption_applies_to_a_single_subflow_by_default() -> None:
    policy = load("""\
        version: 1
        rules:
          - {name: a, throttle: none}
          - {name: b, throttle: none, when: {min_subflows: 2}}
        """)
    assert [min_subflows(rule) for rule in policy.rules] == [1, 2]


@pytest.mark.parametrize(
    ("guard", "pauses"),
    [
        ("retry: 600", [600, 600, 600]),
        ("retry: 200", [200, 300, 300]),
        ("after: 1", [5, 10, 20, 40, 80, 160, 300, 300]),
        ("retry: 600, longest_retry: 2000", [600, 1200, 2000, 2000]),
        ("longest_retry: 15", [5, 10, 15, 15]),
    ],
)
def test_pauses_of_the_guard_never_become_shorter(guard: str, pauses: list[float]) -> None:
    """Defect: with ``retry`` above 300 and no ``longest_retry``, the second pause was only 300 s."""
    policy = load(f"version: 1\nguard: {{{guard}}}\nrules: []\n")
    candidate = Candidate()
    measured = []
    for _ in pauses:
        candidate.lengthen_pause(policy.guard)
        measured.append(candidate.pause)
    assert measured == pauses


def test_max_subflows_1_implies_min_subflows_1() -> None:
    policy = load("""\
        version: 1
        rules:
          - {name: a, throttle: {rate: 5mbit}, when: {max_subflows: 1}, lift_last: false}
          - {name: b, throttle: {rate: 5mbit}, when: {max_subflows: 3}}
        """)
    assert [min_subflows(rule) for rule in policy.rules] == [1, 2]


@pytest.mark.parametrize(
    ("when", "windows"),
    [
        ("{}", None),
        ("{days: [sat]}", (Window(frozenset({5}), time(0), time(0)),)),
        ("{days: [fri-mon]}", (Window(frozenset({4, 5, 6, 0}), time(0), time(0)),)),
        ("{days: [Mon, TUE-wed]}", (Window(frozenset({0, 1, 2}), time(0), time(0)),)),
        ("{hours: [8:00-18:00]}", (Window(EVERY_DAY, time(8), time(18)),)),
        ("{hours: [18:00-24:00]}", (Window(EVERY_DAY, time(18), time(0)),)),
        ("{hours: [00:00-24:00]}", (Window(EVERY_DAY, time(0), time(0)),)),
    ],
)
def test_days_and_hours_become_windows(when: str, windows: tuple[Window, ...] | None) -> None:
    policy = load(f"version: 1\nrules: [{{name: a, throttle: none, when: {when}}}]\n")
    assert policy.rules[0].when.windows == (None if windows is None else list(windows))


def test_yaml_1_1_booleans_are_text() -> None:
    policy = load("""\
        version: 1
        paths:
          on: {interfaces: [no]}
          5: {interfaces: [eth0]}
        rules:
          - {name: off, paths: [on, "5"], throttle: none}
        """)
    assert [(name, path.interfaces) for name, path in policy.paths.items()] == [
        ("on", ["no"]),
        ("5", ["eth0"]),
    ]
    assert policy.rules[0].name == "off"


def test_anchors_and_merge_keys_are_resolved() -> None:
    policy = load("""\
        version: 1
        rules:
          - name: a
            throttle: &slow {rate: 1 Mbit/s, ceil: 2 Mbit/s}
          - name: b
            when: {min_subflows: 3}
            throttle: *slow
          - name: c
            throttle: {<<: *slow, ceil: 3 Mbit/s}
          - name: d
            throttle:
              <<: [{burst: 15 KB}, *slow]
              rate: 512 kbit/s
        """)
    assert [rule.throttle for rule in policy.rules] == [
        a_throttle(1_000_000, 2_000_000, None, Share.PATH),
        a_throttle(1_000_000, 2_000_000, None, Share.PATH),
        a_throttle(1_000_000, 3_000_000, None, Share.PATH),
        a_throttle(512_000, 2_000_000, 15_000, Share.PATH),
    ]


@pytest.mark.filterwarnings("error")
def test_anchor_may_be_defined_again() -> None:
    policy = load("""\
        version: 1
        rules:
          - {name: a, throttle: &x {rate: 1 Mbit/s}}
          - {name: b, when: {min_subflows: 3}, throttle: &x {rate: 2 Mbit/s}}
          - {name: c, when: {min_subflows: 4}, throttle: *x}
        """)
    assert [rule.throttle.rate for rule in policy.rules if rule.throttle] == [10**6, 2 * 10**6, 2 * 10**6]


def test_byte_order_mark_and_crlf_are_accepted() -> None:
    assert load("\ufeffversion: 1\r\nrules: []\r\n") == a_policy((), (), ZoneInfo("UTC"))


def test_demo_policy_caps_ethernet() -> None:
    policy = load_policy((CONF / "policy.yaml").read_text(), "policy.yaml")
    assert [(name, [str(prefix) for prefix in path.clients or ()]) for name, path in policy.paths.items()] == [
        ("ethernet", ["10.77.1.0/24", "fd77:1::/64"]),
        ("wifi", ["10.77.2.0/24", "fd77:2::/64"]),
    ]
    assert policy.rules == [a_rule("spare-ethernet", ("ethernet",), a_throttle(5_000_000), min_paths=2)]


FILES = [CONF / "policy.yaml", *sorted((CONF / "examples").glob("*.yaml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shipped_policies_have_no_problem(path: Path) -> None:
    text = path.read_text()
    checked = check_policy(text, path.name)
    assert checked.problems == ()
    assert checked.policy is not None
    assert checked.policy.rules
    schema = "policy.schema.json" if path.parent == CONF else "../policy.schema.json"
    assert text.startswith(f"# yaml-language-server: $schema={schema}\n")


def test_rules_can_share_one_budget() -> None:
    text = rules("name: x, paths: [a], budget: month", "name: y, paths: [b], budget: month") + NAMED
    policy = load_policy(text, "policy.yaml")
    assert [budget.title for budget in policy.budgets.values()] == ["budget month"]
    assert policy.rules[0].budget is policy.rules[1].budget
    (rule_budget,) = load_policy(rules(f"name: x, {BUDGET}"), "p").budgets.values()
    assert (rule_budget.name, rule_budget.title) == ("x", "budget of rule x"), (
        "the budget lacks the rule's name, which the ledger uses"
    )


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        (
            "name: x, budget: mont",
            '4: rules[0].budget: "mont" is not a budget (did you mean "month"?); the budgets are month',
        ),
        (
            f"name: month, {BUDGET}",
            '4: rules[0].name: the budget of this rule and the one named "month" on line 5 would be one account; give '
            "either another name",
        ),
        ("name: x, budget: [month]", '4: rules[0].budget: a list is not a mapping; write "key: value" lines'),
        ("name: x, budget: -", '4: rules[0].budget: "-" is not a name'),
        (
            "name: x, steer: never",
            '4: rules[0].steer: "never" is not allowed; write none, or a mapping with at least "mode"',
        ),
        (
            f"name: x, {STEER}, {CAP}, direction: up",
            "4: rules[0].direction: steer is for downloads; write down or both, or give steer a rule of its own",
        ),
    ],
)
def test_errors_in_budgets_and_steering_are_reported(rule: str, error: str) -> None:
    problems = [str(problem) for problem in check_policy(rules(rule) + NAMED, "policy.yaml").problems]
    assert any(problem.startswith(f"policy.yaml:{error}") for problem in problems), problems


def test_waterfall_equals_priority_based() -> None:
    waterfall, priority_based = (
        load_policy(rules(f"name: x, steer: {{mode: {mode}, order: [a, b]}}"), "p").rules[0].steer
        for mode in ("waterfall", "priority-based")
    )
    assert waterfall is not None
    assert priority_based is not None
    assert (waterfall.mode_class, waterfall.paths, waterfall.mode_class.sets_backup) == (
        priority_based.mode_class,
        priority_based.paths,
        True,
    )
    assert (waterfall.mode, priority_based.mode) == ("waterfall", "priority-based")
