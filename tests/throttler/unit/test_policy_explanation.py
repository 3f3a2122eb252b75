"""Which rules were tried for a subflow and what kept them from deciding: held against the verdicts themselves."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st
from test_policy_evaluate import ETHERNET, LTE, NOW, WIFI, connection, policy, subflow

from mptcp_throttler.mptcp.model import Subflow
from mptcp_throttler.policy.evaluate import evaluate
from mptcp_throttler.policy.explanation import ExplainedPolicy
from mptcp_throttler.policy.model import Direction, Kind, Policy

ZONE = ZoneInfo("Europe/Athens")


def tried(
    subject: Policy, *subflows: Subflow, now: float = NOW, expected: int = 0, direction: Direction = Direction.DOWN
) -> list[tuple[str, bool, str | None]]:
    """Return what was tried for the first of *subflows*: rule, whether it decided, and why not."""
    found = ExplainedPolicy(subject).tried(connection(*subflows), subflows[0], direction, now, expected)
    return [(each.rule, each.matched, each.failed) for each in found]


CONDITIONS = policy("""\
    - {name: elsewhere, paths: [wifi], throttle: {rate: 1 Mbit/s}}
    - {name: many, when: {min_subflows: 4}, throttle: {rate: 2 Mbit/s}}
    - {name: few, when: {min_subflows: 1, max_subflows: 1}, throttle: {rate: 3 Mbit/s}}
    - {name: others, when: {clients: [10.77.9.0/24]}, throttle: {rate: 4 Mbit/s}}
    - {name: evening, when: {hours: ["18:00-24:00"]}, throttle: {rate: 5 Mbit/s}}
    - {name: all, throttle: {rate: 6 Mbit/s}}
    - {name: never, throttle: {rate: 7 Mbit/s}}
    """)


def test_each_condition_that_fails_is_named_and_nothing_is_tried_after_the_rule_that_decides() -> None:
    assert tried(CONDITIONS, subflow(ETHERNET), subflow(WIFI)) == [
        ("elsewhere", False, "it is on path ethernet, not on wifi"),
        ("many", False, "only 2 active subflows (needs 4)"),
        ("few", False, "2 active subflows (at most 1)"),
        ("others", False, "no active subflow comes from its clients"),
        ("evening", False, "outside its hours"),
        ("all", True, None),
    ]


def test_a_subflow_on_no_path() -> None:
    (first, *_) = tried(CONDITIONS, subflow(LTE), subflow(WIFI))
    assert first == ("elsewhere", False, "it is on no path of the policy, not on wifi")


def test_until_when_the_clock_leaves_it_so() -> None:
    subject = policy("""\
        - {name: evening, when: {hours: ["18:00-20:00"]}, throttle: {rate: 5 Mbit/s}}
        - {name: all, throttle: {rate: 6 Mbit/s}}
        """)
    flows = subflow(ETHERNET), subflow(WIFI)

    def untils(hour: int) -> list[float | None]:
        now = datetime(2026, 7, 1, hour, 30, tzinfo=ZONE).timestamp()
        return [
            each.until for each in ExplainedPolicy(subject).tried(connection(*flows), flows[0], Direction.DOWN, now)
        ]

    assert untils(12) == [datetime(2026, 7, 1, 18, tzinfo=ZONE).timestamp(), None]
    assert untils(18) == [datetime(2026, 7, 1, 20, tzinfo=ZONE).timestamp()]


def test_a_cap_that_is_lifted_says_why() -> None:
    subject = policy("- {name: all, when: {min_subflows: 1}, throttle: {rate: 6 Mbit/s}}\n")
    assert tried(subject, subflow(ETHERNET)) == [("all", True, "lifted: the last usable subflow")]
    assert tried(subject, subflow(ETHERNET), subflow(WIFI)) == [("all", True, None)]


def test_what_is_anticipated_counts_for_caps() -> None:
    subject = policy("""\
        - {name: evening, when: {hours: ["18:00-20:00"]}, throttle: {rate: 5 Mbit/s}}
        - {name: all, throttle: {rate: 6 Mbit/s}}
        """)
    flows = (subflow(ETHERNET),)
    assert tried(subject, *flows, expected=2) == [("evening", False, "outside its hours"), ("all", True, None)]
    alone = policy('- {name: evening, when: {hours: ["18:00-20:00"]}, throttle: {rate: 5 Mbit/s}}\n')
    (verdict,) = evaluate(alone, connection(*flows), NOW, 2)
    assert verdict.reason == "rule evening does not apply: outside its hours"


def test_each_question_is_explained_for_itself() -> None:
    subject = policy("""\
        - {name: free, paths: [ethernet], budget: none}
        - {name: volume, budget: {period: month, steps: [{after: 1 GB, throttle: {rate: 1 Mbit/s}}]}}
        - {name: cap, direction: both, throttle: {rate: 6 Mbit/s}}
        """)
    flows = subflow(ETHERNET), subflow(WIFI)

    def kinds(index: int, direction: Direction) -> list[tuple[Kind, str, bool]]:
        found = ExplainedPolicy(subject).tried(connection(*flows), flows[index], direction, NOW)
        return [(each.kind, each.rule, each.matched) for each in found]

    assert kinds(0, Direction.DOWN) == [(Kind.THROTTLE, "cap", True), (Kind.BUDGET, "free", True)]
    assert kinds(1, Direction.DOWN) == [
        (Kind.THROTTLE, "cap", True),
        (Kind.BUDGET, "free", False),
        (Kind.BUDGET, "volume", True),
    ]
    assert kinds(1, Direction.UP) == [(Kind.THROTTLE, "cap", True)]


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
def test_the_explanation_agrees_with_the_verdict(
    rules: list[tuple[str, str]], remotes: list[str], hour: int, expected: int
) -> None:
    subject = policy(
        "".join(
            f"- {{name: r{number}, {paths}when: {{{condition}}}, throttle: {{rate: {number + 1} Mbit/s}}}}\n"
            if condition
            else f"- {{name: r{number}, {paths}throttle: {{rate: {number + 1} Mbit/s}}}}\n"
            for number, (paths, condition) in enumerate(rules)
        )
    )
    now = datetime(2026, 7, 1, hour, tzinfo=ZONE).timestamp()
    flows = [subflow(each, initial=index == 0) for index, each in enumerate(remotes)]
    whole = connection(*flows)
    for each, verdict in zip(flows, evaluate(subject, whole, now, expected), strict=True):
        found = list(ExplainedPolicy(subject).tried(whole, each, Direction.DOWN, now, expected))
        decided = [one.rule for one in found if one.matched]
        assert decided == ([] if verdict.rule is None else [verdict.rule.name])
        assert all(one.failed for one in found if not one.matched)
        assert [one.rule for one in found] == [rule.name for rule in subject.rules][: len(found)]
        if not decided:
            assert len(found) == len(subject.rules)
            passed_over = [one for one in found if "it is on" not in (one.failed or "")]
            if passed_over:
                assert verdict.reason == f"rule {passed_over[0].rule} does not apply: {passed_over[0].failed}"


def test_an_unknown_direction_tries_nothing() -> None:
    assert tried(CONDITIONS, subflow(ETHERNET), direction=Direction.UP) == []
