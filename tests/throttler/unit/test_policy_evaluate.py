# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for verdicts: policies, subflows, and the resulting paths, caps and reasons."""

from __future__ import annotations

from datetime import datetime
from ipaddress import ip_address
from textwrap import dedent
from zoneinfo import ZoneInfo

import pytest
from policy_values import a_throttle, replace

from mptcp_throttler.mptcp.model import Connection, FourTuple, Subflow
from mptcp_throttler.policy.evaluate import CompiledPolicy, evaluate
from mptcp_throttler.policy.load import load_policy
from mptcp_throttler.policy.model import Policy, Rule, Share
from mptcp_throttler.policy.verdict import ScopeKey

PROXY = ip_address("10.77.0.1").packed
NOW = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Athens")).timestamp()  # a Wednesday
ETHERNET, WIFI, LTE = "10.77.1.2", "10.77.2.2", "10.77.3.2"

PATHS = """\
version: 1
time_zone: Europe/Athens
paths:
  ethernet: {clients: [10.77.1.0/24, "fd77:1::/64"]}
  wifi: {clients: [10.77.2.0/24, "fd77:2::/64"]}
  backup: {backup: true}
"""


def subflow(
    remote: str,
    *,
    initial: bool = False,
    backup: bool = False,
    interface: str | None = "wan0",
    remote_id: int | None = None,
    port: int = 40000,
) -> Subflow:
    address = ip_address(remote).packed
    local = PROXY if len(address) == 4 else ip_address("fd77::1").packed
    return Subflow(FourTuple(local, 3128, address, port), initial, 0, remote_id, backup, interface, 0.0)


def connection(*subflows: Subflow, token: int = 0xC0FFEE) -> Connection:
    return Connection(token, subflows, 0.0)


def policy(rules: str, head: str = PATHS) -> Policy:
    return load_policy(f"{head}rules:\n{dedent(rules)}", "policy.yaml")


def outcomes(tested_policy: Policy, *subflows: Subflow, now: float = NOW) -> list[tuple[str | None, bool, str]]:
    """Return the path of each verdict, whether it has a cap, and its reason."""
    verdicts = evaluate(tested_policy, connection(*subflows), now)
    return [(verdict.path, verdict.scope is not None, verdict.reason) for verdict in verdicts]


SPARE = policy("""\
    - name: spare-ethernet
      paths: [ethernet]
      throttle: {rate: 5 Mbit/s}
    """)
CAPPED = ("ethernet", True, "rule spare-ethernet caps path ethernet at 5 Mbit/s: 2 subflows active")


def test_demo_policy_caps_ethernet() -> None:
    assert outcomes(SPARE, subflow(ETHERNET), subflow(WIFI)) == [CAPPED, ("wifi", False, "no rule matches")]


def test_ipv6_subflows_are_capped_like_ipv4() -> None:
    assert outcomes(SPARE, subflow("fd77:1::2"), subflow("fd77:2::2")) == [
        CAPPED,
        ("wifi", False, "no rule matches"),
    ]
    assert outcomes(SPARE, subflow("fd77:3::2"), subflow("fd77:1::2")) == [
        (None, False, "no rule matches"),
        CAPPED,
    ]


def test_single_subflow_is_not_capped() -> None:
    assert outcomes(SPARE, subflow(ETHERNET)) == [
        ("ethernet", False, "rule spare-ethernet does not apply: only 1 active subflow (needs 2)")
    ]


ONE_PATH = {
    "IPv4 and IPv6 of one uplink": (subflow(ETHERNET, initial=True), subflow("fd77:1::2")),
    "two addresses of the proxy": (subflow(ETHERNET, initial=True), subflow(ETHERNET, port=40001)),
    "with a backup on another path": (subflow(ETHERNET), subflow("fd77:1::2"), subflow(LTE, backup=True)),
}


@pytest.mark.parametrize("flows", ONE_PATH.values(), ids=ONE_PATH)
@pytest.mark.parametrize("when", ["{}", "{min_subflows: 2}", "{min_paths: 1}"])
def test_several_subflows_on_the_only_path_are_not_capped(flows: tuple[Subflow, ...], when: str) -> None:
    """Defect: all of these subflows stayed capped, although they had no other path."""
    tested_policy = policy(f"- {{name: x, paths: [ethernet], when: {when}, throttle: {{rate: 5 Mbit/s}}}}\n")
    assert [capped for path, capped, _ in outcomes(tested_policy, *flows) if path == "ethernet"] == [False, False]
    with_wifi = [*flows, subflow(WIFI)]
    assert [capped for path, capped, _ in outcomes(tested_policy, *with_wifi) if path == "ethernet"] == [True, True]
    tested_policy = policy(
        f"- {{name: x, when: {when}, lift_last: false, throttle: {{rate: 5 Mbit/s, share: connection}}}}\n"
    )
    needs_two_paths, has_two_paths = when == "{}", len(flows) > 2
    assert {capped for _, capped, _ in outcomes(tested_policy, *flows)} == {has_two_paths or not needs_two_paths}


def test_subflows_on_no_path_count_as_one_path() -> None:
    rule = "- {name: x, throttle: {rate: 5 Mbit/s}}\n"
    on_no_path = subflow(LTE), subflow("10.77.4.2")
    assert [capped for _, capped, _ in outcomes(policy(rule), *on_no_path)] == [False, False]
    assert [capped for _, capped, _ in outcomes(policy(rule), subflow(ETHERNET), subflow(LTE))] == [True, True]
    assert [capped for _, capped, _ in outcomes(policy(rule, head="version: 1\n"), *on_no_path)] == [True, True]


def test_cap_is_lifted_if_the_only_other_subflow_is_backup() -> None:
    """RFC 8684: a backup subflow carries no data while a regular subflow exists, so only Ethernet is usable."""
    lifted = "cap of rule spare-ethernet lifted: the last usable path"
    assert outcomes(SPARE, subflow(ETHERNET), subflow(LTE, backup=True)) == [
        ("ethernet", False, lifted),
        ("backup", False, "no rule matches"),
    ]


def test_backup_is_usable_if_all_subflows_are_backup() -> None:
    assert outcomes(SPARE, subflow(ETHERNET, backup=True), subflow(LTE, backup=True))[0] == CAPPED


def test_capped_backup_stays_capped_with_a_regular_subflow() -> None:
    tested_policy = policy("- {name: slow-backup, paths: [backup], throttle: {rate: 1 Mbit/s}}\n")
    assert outcomes(tested_policy, subflow(WIFI), subflow(LTE, backup=True)) == [
        ("wifi", False, "no rule matches"),
        ("backup", True, "rule slow-backup caps path backup at 1 Mbit/s: 2 subflows active"),
    ]


def test_cap_on_the_last_path_stays_with_lift_last_false() -> None:
    tested_policy = policy("""\
        - name: always
          paths: [ethernet]
          when: {min_subflows: 1}
          throttle: {rate: 1 Mbit/s}
          lift_last: false
        """)
    assert outcomes(tested_policy, subflow(ETHERNET)) == [
        ("ethernet", True, "rule always caps path ethernet at 1 Mbit/s: 1 subflow active")
    ]


def test_first_matching_rule_decides_and_throttle_none_exempts() -> None:
    tested_policy = policy("""\
        - {name: friends, when: {clients: [10.77.1.2]}, throttle: none}
        - {name: many, paths: [ethernet], when: {min_subflows: 3}, throttle: {rate: 1mbit}}
        - {name: spare, paths: [wifi, ethernet], throttle: {rate: 5mbit, ceil: 8mbit}}
        """)
    assert outcomes(tested_policy, subflow(ETHERNET), subflow(WIFI)) == [
        ("ethernet", False, "exempted by rule friends"),
        ("wifi", False, "exempted by rule friends"),
    ]
    others = subflow("10.77.1.9"), subflow("10.77.2.9")
    assert [reason for _, _, reason in outcomes(tested_policy, *others)] == [
        "rule spare caps path ethernet at 5 Mbit/s, up to 8 Mbit/s: 2 subflows active",
        "rule spare caps path wifi at 5 Mbit/s, up to 8 Mbit/s: 2 subflows active",
    ]
    assert [reason for _, _, reason in outcomes(tested_policy, *others, subflow("10.77.1.9", port=2))] == [
        "rule many caps path ethernet at 1 Mbit/s: 3 subflows active",
        "rule spare caps path wifi at 5 Mbit/s, up to 8 Mbit/s: 3 subflows active",
        "rule many caps path ethernet at 1 Mbit/s: 3 subflows active",
    ]


@pytest.mark.parametrize(
    ("when", "reason"),
    [
        ("{min_subflows: 4}", "only 2 active subflows (needs 4)"),
        ("{min_paths: 3, min_subflows: 2}", "only 2 active subflows (needs 3)"),
        ("{min_subflows: 1, max_subflows: 1}", "2 active subflows (at most 1)"),
        ("{clients: [192.0.2.0/24]}", "no active subflow comes from its clients"),
        ("{hours: [13:00-14:00]}", "outside its hours"),
        ("{days: [thu-tue]}", "outside its hours"),
    ],
)
def test_reason_tells_why_a_rule_does_not_apply(when: str, reason: str) -> None:
    tested_policy = policy(f"- {{name: x, paths: [ethernet], when: {when}, throttle: {{rate: 5mbit}}}}\n")
    assert outcomes(tested_policy, subflow(ETHERNET), subflow(WIFI)) == [
        ("ethernet", False, f"rule x does not apply: {reason}"),
        ("wifi", False, "no rule matches"),
    ]


def test_reason_names_the_first_rule_that_might_have_applied() -> None:
    tested_policy = policy("""\
        - {name: other, paths: [wifi], when: {min_subflows: 5}, throttle: {rate: 1mbit}}
        - {name: first, paths: [ethernet], when: {min_subflows: 4}, throttle: {rate: 1mbit}}
        - {name: second, paths: [ethernet], when: {min_subflows: 3}, throttle: {rate: 2mbit}}
        """)
    assert outcomes(tested_policy, subflow(ETHERNET), subflow("192.0.2.1")) == [
        ("ethernet", False, "rule first does not apply: only 2 active subflows (needs 4)"),
        (None, False, "no rule matches"),
    ]


def test_rule_without_paths_applies_to_subflows_on_no_path() -> None:
    tested_policy = policy("- {name: all, throttle: {rate: 5mbit}}\n")
    assert outcomes(tested_policy, subflow(ETHERNET), subflow("192.0.2.1")) == [
        ("ethernet", True, "rule all caps every subflow at 5 Mbit/s: 2 subflows active"),
        (None, True, "rule all caps every subflow at 5 Mbit/s: 2 subflows active"),
    ]


def test_dry_run_reason_names_the_cap() -> None:
    tested_policy = policy("- {name: x, paths: [wifi], throttle: {rate: 5mbit}}\n", PATHS + "dry_run: true\n")
    verdicts = evaluate(tested_policy, connection(subflow(ETHERNET), subflow(WIFI)), NOW)
    assert [verdict.reason for verdict in verdicts] == [
        "no rule matches",
        "rule x would cap path wifi at 5 Mbit/s: 2 subflows active (dry run)",
    ]
    assert verdicts[1].scope == ScopeKey("x", Share.PATH)
    assert verdicts[1].throttle == a_throttle(5_000_000, 5_000_000, None, Share.PATH)


@pytest.mark.parametrize(
    ("share", "members", "share_text"),
    [
        ("path", [None, None], ""),
        ("client", [ip_address(ETHERNET).packed, ip_address(WIFI).packed], " per client"),
        ("connection", [0xC0FFEE, 0xC0FFEE], " per connection"),
    ],
)
def test_share_determines_which_subflows_share_a_cap(
    share: str, members: list[bytes | int | None], share_text: str
) -> None:
    tested_policy = policy(f"- {{name: x, throttle: {{rate: 5mbit, share: {share}}}}}\n")
    verdicts = evaluate(tested_policy, connection(subflow(ETHERNET), subflow(WIFI)), NOW)
    assert [verdict.scope for verdict in verdicts] == [ScopeKey("x", Share(share), member) for member in members]
    assert verdicts[0].reason == f"rule x caps every subflow at 5 Mbit/s{share_text}: 2 subflows active"


@pytest.mark.parametrize(
    ("match", "matching"),
    [
        ("{interfaces: [eth0, wan0]}", [True, False, False]),
        ("{remote_ids: [0, 2]}", [True, True, False]),
        ("{subflow: initial}", [True, False, False]),
        ("{subflow: joined}", [False, True, True]),
        ("{backup: true}", [False, True, False]),
        ("{backup: false}", [True, False, True]),
        ("{subflow: joined, backup: false}", [False, False, True]),
        ("{clients: [10.77.1.2]}", [True, False, False]),
        ('{clients: ["0.0.0.0/0"]}', [True, True, False]),
        ('{clients: ["::/0"]}', [False, False, True]),
    ],
)
def test_path_contains_subflows_that_meet_its_conditions(match: str, matching: list[bool]) -> None:
    tested_policy = policy("- {name: x, throttle: none}\n", f"version: 1\npaths: {{p: {match}}}\n")
    verdicts = evaluate(
        tested_policy,
        connection(
            subflow(ETHERNET, initial=True, remote_id=0, interface="wan0"),
            subflow(WIFI, backup=True, remote_id=2, interface="wan1"),
            subflow("fd77:3::2", remote_id=None, interface=None),
        ),
        NOW,
    )
    assert [verdict.path == "p" for verdict in verdicts] == matching


def test_verdict_shows_the_first_matching_path() -> None:
    tested_policy = policy(
        "- {name: x, paths: [wide, narrow], throttle: {rate: 5mbit}}\n",
        dedent("""\
        version: 1
        paths:
          other: {clients: [10.77.1.0/24]}
          narrow: {clients: [10.77.1.2]}
          wide: {clients: [10.0.0.0/8]}
        """),
    )
    assert outcomes(tested_policy, subflow(ETHERNET), subflow(WIFI)) == [
        ("other", True, "rule x caps path narrow at 5 Mbit/s: 2 subflows active"),
        ("wide", True, "rule x caps path wide at 5 Mbit/s: 2 subflows active"),
    ]


def test_compiled_policy_follows_the_clock() -> None:
    tested_policy = CompiledPolicy(
        policy("- {name: x, paths: [wifi], when: {hours: [12:00-13:00]}, throttle: {rate: 5mbit}}\n")
    )
    pair = connection(subflow(ETHERNET), subflow(WIFI))
    capped = [
        tested_policy.evaluate(pair, NOW + seconds)[1].scope is not None
        for seconds in (-1, 0, 3599.9, 3600, 86400, 0, -86400.5, -86400)
    ]
    assert capped == [False, True, True, False, True, True, False, True]


def test_similar_policies_have_separate_results() -> None:
    other = replace(SPARE, dry_run=True)
    pair = subflow(ETHERNET), subflow(WIFI)
    for _ in range(2):
        assert outcomes(SPARE, *pair)[0] == CAPPED
        assert outcomes(other, *pair)[0][2].endswith("(dry run)")


UPLOAD = """\
- {name: spared, paths: [wifi], direction: up, throttle: none}
- {name: both, paths: [ethernet], direction: both, throttle: {rate: 5 Mbit/s}}
- {name: up, direction: up, throttle: {rate: 1 Mbit/s, share: client}}
- {name: down, throttle: {rate: 2 Mbit/s}}
"""


def test_each_direction_uses_its_own_first_matching_rule() -> None:
    tested_connection = connection(subflow(ETHERNET, initial=True), subflow(WIFI), subflow(LTE))
    found = evaluate(policy(UPLOAD), tested_connection, NOW)
    assert [(each.direction.value, each.rule.name if each.rule else None) for each in found] == [
        ("down", "both"), ("down", "down"), ("down", "down"), ("up", "both"), ("up", "spared"), ("up", "up"),
    ]  # fmt: skip
    assert found[0].scope != found[3].scope
    assert found[3].reason.startswith("upload: rule both caps path ethernet at 5 Mbit/s")
    assert found[4].reason == "upload: exempted by rule spared"


@pytest.mark.parametrize("direction", ["down", "both"])
def test_download_verdicts_do_not_depend_on_upload_rules(direction: str) -> None:
    tested_connection = connection(subflow(ETHERNET, initial=True), subflow(WIFI))
    rule = "{name: cap, paths: [ethernet], throttle: {rate: 5 Mbit/s}, direction: %s}"
    plain, found = (evaluate(policy(f"- {rule % each}\n"), tested_connection, NOW) for each in ("down", direction))
    assert [replace(each, rule=None) for each in found[:2]] == [replace(each, rule=None) for each in plain]
    assert len(plain) == 2, "upload verdicts exist without an upload rule"


BUDGET = "budget: {period: month, steps: [{after: 5 GB, throttle: {rate: 512 kbit/s}}]}"


def rule_name(rule: Rule | None) -> str | None:
    return None if rule is None else rule.name


def rules_by_kind(tested_policy: Policy, *subflows: Subflow) -> list[tuple[str | None, str | None, str | None]]:
    """Return the names of the rules that cap, meter and steer each subflow."""
    verdicts = evaluate(tested_policy, connection(*subflows), NOW)
    return [(rule_name(each.rule), rule_name(each.budget), rule_name(each.steer)) for each in verdicts]


def test_cap_budget_and_steering_are_decided_separately() -> None:
    rules = [
        "- {name: cap, paths: [ethernet], throttle: {rate: 5mbit}}",
        f"- {{name: volume, paths: [ethernet, wifi], {BUDGET}}}",
        "- {name: order, steer: {mode: waterfall, order: [wifi, ethernet]}}",
    ]
    for order in (rules, rules[::-1]):
        tested_policy = policy("\n".join(order) + "\n")
        assert rules_by_kind(tested_policy, subflow(ETHERNET), subflow(WIFI), subflow(LTE)) == [
            ("cap", "volume", "order"),
            (None, "volume", "order"),
            (None, None, None),
        ]
        assert [
            each.steer_path for each in evaluate(tested_policy, connection(subflow(ETHERNET), subflow(WIFI)), NOW)
        ] == [
            "ethernet",
            "wifi",
        ]
        # Reasons of budgets and steering are added later, by the stages.
        assert outcomes(tested_policy, subflow(ETHERNET), subflow(WIFI)) == [
            ("ethernet", True, "rule cap caps path ethernet at 5 Mbit/s: 2 subflows active"),
            ("wifi", False, "no rule matches"),
        ]


def test_first_matching_rule_of_each_kind_decides_and_the_value_none_exempts_from_that_kind() -> None:
    tested_policy = policy(f"""\
- {{name: a, when: {{clients: [10.77.1.2]}}, throttle: none, steer: none}}
- {{name: b, when: {{clients: [10.77.1.3]}}, budget: none}}
- {{name: c, throttle: {{rate: 1mbit}}, {BUDGET}}}
- {{name: d, {BUDGET}}}
- {{name: e, steer: {{mode: load-balancing, weights: {{ethernet: 1, wifi: 1}}}}}}
""")
    assert rules_by_kind(tested_policy, subflow("10.77.1.2"), subflow(WIFI)) == [("a", "c", None)] * 2
    assert rules_by_kind(tested_policy, subflow("10.77.1.3"), subflow(WIFI)) == [("c", None, "e")] * 2
    assert rules_by_kind(tested_policy, subflow("10.77.1.3")) == [(None, None, None)]
    assert rules_by_kind(tested_policy, subflow("10.77.1.4")) == [(None, "c", None)], (
        "the budget did not count a single subflow"
    )
    assert [reason for _, _, reason in outcomes(tested_policy, subflow("10.77.1.2"), subflow(WIFI))] == [
        "exempted by rule a; exempted from steering by rule a"
    ] * 2
    not_met = "does not apply: only 1 active subflow (needs 2)"
    assert outcomes(tested_policy, subflow("10.77.1.4"))[0][2] == f"rule c {not_met}; rule e {not_met}"
    both = policy("- {name: a, throttle: {rate: 1mbit}, steer: {mode: smallest-delay}, when: {min_paths: 2}}\n")
    assert outcomes(both, subflow("10.77.1.4"))[0][2] == f"rule a {not_met}", (
        "the common reason of cap and steering does not appear exactly once"
    )


def test_uploads_have_their_own_budget_rule_and_are_never_steered() -> None:
    tested_policy = policy(f"""\
- {{name: up, direction: up, {BUDGET}}}
- {{name: both, direction: both, throttle: none, {BUDGET}}}
- {{name: order, steer: {{mode: waterfall, order: [wifi, ethernet]}}}}
""")
    assert (
        rules_by_kind(tested_policy, subflow(ETHERNET), subflow(WIFI))
        == [("both", "both", "order")] * 2 + [("both", "up", None)] * 2
    )
