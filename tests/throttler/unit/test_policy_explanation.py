# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for explanations: the rules that were tried for a subflow, and the reasons why they did not decide."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_policy_evaluate import ETHERNET, LTE, NOW, PATHS, WIFI, connection, policy, subflow

from mptcp_throttler.mptcp.model import Subflow
from mptcp_throttler.policy.evaluate import CompiledPolicy, evaluate
from mptcp_throttler.policy.model import Direction, Kind, Policy
from mptcp_throttler.policy.schedule import is_open
from mptcp_throttler.policy.verdict import NO_RULE

ZONE = ZoneInfo("Europe/Athens")


def explain(
    tested_policy: Policy,
    *subflows: Subflow,
    now: float = NOW,
    expected: int = 0,
    direction: Direction = Direction.DOWN,
) -> list[tuple[str, bool, str | None]]:
    """Return name, result and reason of each rule that was tried for the first of *subflows*."""
    outcome = CompiledPolicy(tested_policy).explain(connection(*subflows), subflows[0], direction, now, expected)
    return [(each.rule, each.matched, each.failed) for each in outcome]


CONDITIONS = policy("""\
    - {name: other-path, paths: [wifi], throttle: {rate: 1 Mbit/s}}
    - {name: many, when: {min_subflows: 4}, throttle: {rate: 2 Mbit/s}}
    - {name: few, when: {min_subflows: 1, max_subflows: 1}, throttle: {rate: 3 Mbit/s}}
    - {name: others, when: {clients: [10.77.9.0/24]}, throttle: {rate: 4 Mbit/s}}
    - {name: evening, when: {hours: ["18:00-24:00"]}, throttle: {rate: 5 Mbit/s}}
    - {name: all, throttle: {rate: 6 Mbit/s}}
    - {name: never, throttle: {rate: 7 Mbit/s}}
    """)


def test_each_failed_condition_is_named() -> None:
    assert explain(CONDITIONS, subflow(ETHERNET), subflow(WIFI)) == [
        ("other-path", False, "the subflow is on path ethernet, not on wifi"),
        ("many", False, "only 2 active subflows (needs 4)"),
        ("few", False, "2 active subflows (at most 1)"),
        ("others", False, "no active subflow comes from its clients"),
        ("evening", False, "outside its hours, 18:00-24:00; begins 18:00 (Europe/Athens)"),
        ("all", True, None),
        ("never", False, "rule all above decides"),
    ]


def test_subflow_on_no_path_is_explained() -> None:
    (first, *_) = explain(CONDITIONS, subflow(LTE), subflow(WIFI))
    assert first == ("other-path", False, "the subflow is on no path of the policy, not on wifi")


def test_explanation_gives_the_next_change_of_each_rule() -> None:
    tested_policy = policy("""\
        - {name: evening, when: {hours: ["18:00-20:00"]}, throttle: {rate: 5 Mbit/s}}
        - {name: all, throttle: {rate: 6 Mbit/s}}
        """)
    flows = subflow(ETHERNET), subflow(WIFI)

    def until_times(hour: int) -> list[float | None]:
        now = datetime(2026, 7, 1, hour, 30, tzinfo=ZONE).timestamp()
        return [
            each.until
            for each in CompiledPolicy(tested_policy).explain(connection(*flows), flows[0], Direction.DOWN, now)
        ]

    assert until_times(12) == [datetime(2026, 7, 1, 18, tzinfo=ZONE).timestamp(), None]
    assert until_times(18) == [datetime(2026, 7, 1, 20, tzinfo=ZONE).timestamp(), None]


@pytest.mark.parametrize(
    ("when", "now", "hours_text", "until"),
    [
        (
            'days: [mon-fri], hours: ["08:00-18:00"]',
            "2026-07-03T18:00+03:00",
            "Mon-Fri 08:00-18:00; begins Mon 08:00",
            "2026-07-06T08:00+03:00",
        ),
        (
            'days: [mon-fri], hours: ["08:00-18:00"]',
            "2026-07-06T07:59+03:00",
            "Mon-Fri 08:00-18:00; begins 08:00",
            "2026-07-06T08:00+03:00",
        ),
        (
            'days: [fri, sun], hours: ["22:00-02:00"]',
            "2026-07-04T02:00+03:00",
            "Fri, Sun 22:00-02:00; begins Sun 22:00",
            "2026-07-05T22:00+03:00",
        ),
        (
            'hours: ["01:00-02:00", "20:00-24:00"]',
            "2026-07-04T02:00+03:00",
            "01:00-02:00, 20:00-24:00; begins 20:00",
            "2026-07-04T20:00+03:00",
        ),
        ("days: [sat-mon]", "2026-07-03T12:00+03:00", "Sat-Mon; begins Sat 00:00", "2026-07-04T00:00+03:00"),
        (
            'days: [wed], hours: ["08:00-09:00"]',
            "2026-07-01T09:00+03:00",
            "Wed 08:00-09:00; begins Wed 2026-07-08 08:00",
            "2026-07-08T08:00+03:00",
        ),
        # Athens: clocks go forward on 29 March at 3 and back on 25 October at 4.
        ('hours: ["03:30-05:00"]', "2026-03-29T02:59+02:00", "03:30-05:00; begins 04:00", "2026-03-29T04:00+03:00"),
        (
            'days: [sun], hours: ["03:15-03:45"]',
            "2026-03-29T02:00+02:00",
            "Sun 03:15-03:45; begins Sun 2026-04-05 03:15",
            "2026-04-05T03:15+03:00",
        ),
        (
            'hours: ["03:15-03:45"]',
            "2026-10-25T03:45+03:00",
            "03:15-03:45; begins 03:15 +02:00",
            "2026-10-25T03:15+02:00",
        ),
    ],
)
def test_explanation_has_the_next_hours_in_the_policys_time_zone(
    when: str, now: str, hours_text: str, until: str
) -> None:
    tested_policy = policy(f"- {{name: timed, when: {{min_subflows: 1, {when}}}, throttle: {{rate: 5 Mbit/s}}}}\n")
    tested_subflow = subflow(ETHERNET)
    timestamp = datetime.fromisoformat(now).timestamp()
    (outcome,) = CompiledPolicy(tested_policy).explain(
        connection(tested_subflow), tested_subflow, Direction.DOWN, timestamp
    )
    assert outcome.failed == f"outside its hours, {hours_text} (Europe/Athens)"
    assert outcome.until == datetime.fromisoformat(until).timestamp()


def test_hours_are_not_mentioned_if_another_condition_fails() -> None:
    tested_policy = policy("""\
        - {name: evening, when: {min_subflows: 3, hours: ["08:00-20:00"]}, throttle: {rate: 5 Mbit/s}}
        """)
    tested_subflow = subflow(ETHERNET)
    noon = datetime(2026, 7, 1, 12, tzinfo=ZONE).timestamp()
    (outcome,) = CompiledPolicy(tested_policy).explain(connection(tested_subflow), tested_subflow, Direction.DOWN, noon)
    assert (outcome.failed, outcome.until) == ("only 1 active subflow (needs 3)", None)


_minute = st.integers(0, 24 * 60 - 1)
_days = st.sampled_from(["", "days: [mon-fri], ", "days: [sat, sun], ", "days: [sun], ", "days: [sat-mon, wed], "])
_zone = st.sampled_from(["UTC", "Europe/Athens", "America/St_Johns", "Australia/Lord_Howe", "Africa/Casablanca"])
# Times shortly before some of these zones change their clocks, or any other time.
_now = st.one_of(
    st.sampled_from(["2026-03-28T12:00Z", "2026-10-24T12:00Z", "2026-04-04T00:00Z", "2026-03-07T20:00Z"]).map(
        lambda text: datetime.fromisoformat(text).timestamp()
    ),
    st.integers(1_700_000_000, 1_900_000_000).map(float),
)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(_minute, _minute), min_size=1, max_size=2), _days, _zone, _now)
def test_next_change_equals_that_of_a_search_by_minutes(
    ranges: list[tuple[int, int]], days: str, zone: str, now: float
) -> None:
    hours = ", ".join(
        f'"{begin // 60:02}:{begin % 60:02}-{end // 60:02}:{end % 60:02}"' for begin, end in ranges if begin != end
    )
    when = f"{days}hours: [{hours}]" if hours else days.rstrip(", ") or "days: [mon]"
    rule = f"- {{name: timed, when: {{min_subflows: 1, {when}}}, throttle: {{rate: 5 Mbit/s}}}}\n"
    tested_policy = policy(rule, PATHS.replace("Europe/Athens", zone))
    tested_subflow = subflow(ETHERNET)

    def is_window_open(timestamp: float) -> bool:
        return is_open(
            tested_policy.rules[0].when.windows or (), datetime.fromtimestamp(timestamp, tested_policy.time_zone)
        )

    (outcome,) = CompiledPolicy(tested_policy).explain(connection(tested_subflow), tested_subflow, Direction.DOWN, now)
    assert outcome.matched is is_window_open(now)
    minutes = (now // 60 * 60 + 60 * step for step in range(1, 60 * 24 * 15))
    expected = next((timestamp for timestamp in minutes if is_window_open(timestamp) is not outcome.matched), None)
    assert outcome.until == expected
    if not outcome.matched and expected is not None:
        begins = datetime.fromtimestamp(expected, ZoneInfo(zone))
        assert f"; begins {begins:%H:%M}" in re.sub(
            "(begins) [A-Z][a-z]{2} ([0-9-]{10} )?", r"\1 ", outcome.failed or ""
        )


def test_lifted_cap_gives_its_reason() -> None:
    tested_policy = policy("- {name: all, when: {min_subflows: 1}, throttle: {rate: 6 Mbit/s}}\n")
    assert explain(tested_policy, subflow(ETHERNET)) == [("all", True, "lifted: the last usable path")]
    assert explain(tested_policy, subflow(ETHERNET), subflow(WIFI)) == [("all", True, None)]


def test_anticipated_subflows_count_for_caps() -> None:
    tested_policy = policy("""\
        - {name: evening, when: {hours: ["18:00-20:00"]}, throttle: {rate: 5 Mbit/s}}
        - {name: all, throttle: {rate: 6 Mbit/s}}
        """)
    flows = (subflow(ETHERNET),)
    hours_text = "outside its hours, 18:00-20:00; begins 18:00 (Europe/Athens)"
    assert explain(tested_policy, *flows, expected=2) == [("evening", False, hours_text), ("all", True, None)]
    one_rule = policy('- {name: evening, when: {hours: ["18:00-20:00"]}, throttle: {rate: 5 Mbit/s}}\n')
    (verdict,) = evaluate(one_rule, connection(*flows), NOW, 2)
    assert verdict.reason == "rule evening does not apply: outside its hours"


def test_each_kind_is_explained_separately() -> None:
    tested_policy = policy("""\
        - {name: free, paths: [ethernet], budget: none}
        - {name: volume, budget: {period: month, steps: [{after: 1 GB, throttle: {rate: 1 Mbit/s}}]}}
        - {name: cap, direction: both, throttle: {rate: 6 Mbit/s}}
        """)
    flows = subflow(ETHERNET), subflow(WIFI)

    def kinds(index: int, direction: Direction) -> list[tuple[Kind, str, bool]]:
        outcome = CompiledPolicy(tested_policy).explain(connection(*flows), flows[index], direction, NOW)
        return [(each.kind, each.rule, each.matched) for each in outcome]

    assert kinds(0, Direction.DOWN) == [
        (Kind.THROTTLE, "cap", True),
        (Kind.BUDGET, "free", True),
        (Kind.BUDGET, "volume", False),
    ]
    assert kinds(1, Direction.DOWN) == [
        (Kind.THROTTLE, "cap", True),
        (Kind.BUDGET, "free", False),
        (Kind.BUDGET, "volume", True),
    ]
    assert kinds(1, Direction.UP) == [(Kind.THROTTLE, "cap", True)]


def test_rules_for_the_other_direction_and_below_the_deciding_rule_are_listed() -> None:
    """Defect: an explanation of a capped upload did not list the exemption, which was only for downloads."""
    tested_policy = policy("""\
        - {name: vip, direction: down, throttle: none}
        - {name: cap, direction: both, throttle: {rate: 6 Mbit/s}}
        - {name: more, direction: up, throttle: {rate: 5 Mbit/s}}
        """)
    flows = subflow(ETHERNET), subflow(WIFI)
    outcome = CompiledPolicy(tested_policy).explain(connection(*flows), flows[0], Direction.UP, NOW)
    assert [(each.rule, each.matched, each.failed) for each in outcome] == [
        ("vip", False, "only for downloads"),
        ("cap", True, None),
        ("more", False, "rule cap above decides"),
    ]


def test_reason_names_the_rule_that_is_nearest_to_matching() -> None:
    """Defect: the reason named the first rule, although it was for other clients."""
    tested_policy = policy("""\
        - {name: vip, when: {clients: [10.99.0.0/16]}, throttle: none}
        - {name: many, when: {min_subflows: 4, hours: ["18:00-24:00"]}, throttle: {rate: 1 Mbit/s}}
        - {name: evening, when: {hours: ["18:00-24:00"]}, throttle: {rate: 6 Mbit/s}}
        """)
    flows = subflow(ETHERNET), subflow(WIFI)
    first, _ = evaluate(tested_policy, connection(*flows), NOW)
    assert first.reason == "rule evening does not apply: outside its hours"


_condition = st.sampled_from(
    ["", "min_subflows: 1", "min_subflows: 3", "max_subflows: 2", "clients: [10.77.2.0/24]", 'hours: ["18:00-24:00"]']
)
_rule = st.tuples(st.sampled_from(["", "paths: [ethernet], ", "paths: [wifi, backup], "]), _condition)


@given(
    st.lists(_rule, min_size=1, max_size=5),
    st.lists(st.sampled_from([ETHERNET, WIFI, LTE]), min_size=1, max_size=4, unique=True),
    st.sampled_from([10, 19]),
    st.integers(0, 3),
)
def test_explanation_agrees_with_the_verdict(
    rules: list[tuple[str, str]], remotes: list[str], hour: int, expected: int
) -> None:
    tested_policy = policy(
        "".join(
            f"- {{name: r{number}, {paths}when: {{{condition}}}, throttle: {{rate: {number + 1} Mbit/s}}}}\n"
            if condition
            else f"- {{name: r{number}, {paths}throttle: {{rate: {number + 1} Mbit/s}}}}\n"
            for number, (paths, condition) in enumerate(rules)
        )
    )
    now = datetime(2026, 7, 1, hour, tzinfo=ZONE).timestamp()
    flows = [subflow(each, initial=index == 0) for index, each in enumerate(remotes)]
    tested_connection = connection(*flows)
    for each, verdict in zip(flows, evaluate(tested_policy, tested_connection, now, expected), strict=True):
        outcome = list(CompiledPolicy(tested_policy).explain(tested_connection, each, Direction.DOWN, now, expected))
        decided_rules = [result.rule for result in outcome if result.matched]
        assert decided_rules == ([] if verdict.rule is None else [verdict.rule.name])
        assert all(result.failed for result in outcome if not result.matched)
        assert [result.rule for result in outcome] == [rule.name for rule in tested_policy.rules][: len(outcome)]
        if not decided_rules:
            assert len(outcome) == len(tested_policy.rules)
            on_its_path = [result for result in outcome if "the subflow is on" not in (result.failed or "")]
            # The reason in a verdict is only "outside its hours". The explanation adds these hours and their end.
            failures = {
                result.rule: result.failed if result.until is None else "outside its hours" for result in on_its_path
            }
            reasons = [f"rule {rule} does not apply: {failure}" for rule, failure in failures.items()] or [NO_RULE]
            assert verdict.reason in reasons


def test_no_rule_is_tried_in_a_direction_without_rules() -> None:
    assert explain(CONDITIONS, subflow(ETHERNET), direction=Direction.UP) == []
