# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for warnings and notes about a policy: probable mistakes, and effects that are easily overlooked."""

from __future__ import annotations

from textwrap import dedent

import pytest
from short_policies import BUDGET, CAP, NAMED, STEER, rules

from mptcp_common.problems import Severity
from mptcp_throttler.policy.load import check_policy, load_policy
from mptcp_throttler.policy.model import Direction


def warnings(text: str) -> list[str]:
    checked = check_policy(dedent(text), "policy.yaml")
    assert checked.policy is not None
    assert all(problem.severity is Severity.WARNING for problem in checked.problems)
    return [str(problem) for problem in checked.problems]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (f"name: x, {CAP}", f"name: y, {CAP}"),
        ("name: x, throttle: none", f"name: y, {CAP}, paths: [a]"),
        (f"name: x, {CAP}, paths: [a, b]", f"name: y, {CAP}, paths: [b], when: {{min_paths: 3}}"),
        (f"name: x, {CAP}, when: {{min_subflows: 2}}", f"name: y, {CAP}"),
        (f"name: x, {CAP}, when: {{clients: [10.0.0.0/8]}}", f"name: y, {CAP}, when: {{clients: [10.7.0.0/16]}}"),
        (f"name: x, {CAP}, when: {{days: [mon]}}", f"name: y, {CAP}, when: {{days: [mon]}}"),
        (f"name: x, {CAP}, when: {{max_subflows: 4}}", f"name: y, {CAP}, when: {{max_subflows: 3}}"),
    ],
)
def test_unreachable_rule_causes_a_warning(earlier: str, later: str) -> None:
    assert warnings(rules(earlier, later)) == [
        'policy.yaml:5: warning: rules[1]: rule "y" is never reached: "x" above it catches all its subflows'
    ]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        (f"name: x, {CAP}, paths: [a]", f"name: y, {CAP}"),
        (f"name: x, {CAP}, paths: [a]", f"name: y, {CAP}, paths: [a, b]"),
        (f"name: x, {CAP}", f"name: y, {CAP}, when: {{min_subflows: 3}}, lift_last: false"),
        (f"name: x, {CAP}, when: {{max_subflows: 4}}", f"name: y, {CAP}"),
        (f"name: x, {CAP}, when: {{days: [mon]}}", f"name: y, {CAP}"),
        (f"name: x, {CAP}, when: {{clients: [10.0.0.0/8]}}", f"name: y, {CAP}, when: {{clients: [11.0.0.0/8]}}"),
        (f"name: x, {CAP}, when: {{clients: [10.0.0.0/8]}}", f'name: y, {CAP}, when: {{clients: ["fd00::/8"]}}'),
        (f"name: x, {CAP}, when: {{clients: [10.0.0.0/8]}}", f"name: y, {CAP}"),
    ],
)
def test_reachable_rule_causes_no_warning(earlier: str, later: str) -> None:
    assert warnings(rules(earlier, later)) == []


def test_cap_that_is_always_lifted_causes_a_warning() -> None:
    when = "when: {min_subflows: 1, max_subflows: 1}"
    assert warnings(rules(f"name: x, {CAP}, {when}")) == [
        'policy.yaml:4: warning: rules[0]: rule "x" never caps anything: the only active subflow is on the last usable '
        "path, so its cap is lifted; write lift_last: false to cap it"
    ]
    assert warnings(rules(f"name: x, {CAP}, {when}, lift_last: false")) == []


def test_path_defined_by_address_ids_causes_a_warning() -> None:
    text = f"version: 1\npaths: {{lte: {{remote_ids: [1]}}}}\nrules:\n  - {{name: x, {CAP}, paths: [lte]}}\n"
    assert [each.partition(",")[0] for each in warnings(text)] == [
        'policy.yaml:4: warning: rules[0]: path "lte" has remote_ids'
    ]


LINE_BY_KIND = {"throttle": CAP, "budget": BUDGET, "steer": STEER}


def notes(text: str) -> list[str]:
    return [str(note) for note in check_policy(text, "policy.yaml").notes]


@pytest.mark.parametrize(
    ("path", "when", "expected"),
    [
        ("interfaces: [wan0]", "{}", ['policy.yaml:4: note: rules[0]: rule "x" waits for subflows on two paths']),
        ("interfaces: [wan1]", "{}", []),
        ("interfaces: [wan0]", "{min_subflows: 2}", []),
        ("clients: [10.1.0.0/16]", "{}", []),
    ],
)
def test_rule_that_waits_for_two_paths_with_one_interface_causes_a_note(
    path: str, when: str, expected: list[str]
) -> None:
    text = f"version: 1\npaths: {{wan: {{{path}}}}}\nrules:\n  - {{name: x, {CAP}, when: {when}}}\n"
    found = check_policy(text, "policy.yaml", ["wan0"]).notes
    assert [str(each).partition(",")[0] for each in found] == expected


def test_rules_of_different_kinds_do_not_affect_each_other() -> None:
    """Defect: a note advised adding `budget: none` to a cap above a budget, which would disable the budget."""
    assert warnings(rules(f"name: x, {CAP}", f"name: y, {BUDGET}", f"name: z, {STEER}")) == []
    assert notes(rules(f"name: x, {CAP}", f"name: y, {BUDGET}")) == []


@pytest.mark.parametrize(
    ("wide", "narrow", "reached"),
    [
        ("clients: [10.0.0.0/8]", "clients: [10.7.0.0/16, 10.8.0.1]", False),
        ("clients: [10.0.0.0/8]", "clients: [10.7.0.0/16], interfaces: [wan0]", False),
        ("interfaces: [wan0, wan1]", "interfaces: [wan1]", False),
        ("clients: [10.7.0.0/16]", "clients: [10.0.0.0/8]", True),
        ("clients: [10.0.0.0/8]", "clients: [10.7.0.0/16, 11.0.0.0/8]", True),
        ("clients: [10.0.0.0/8], interfaces: [wan0]", "clients: [10.7.0.0/16]", True),
        ("clients: [10.0.0.0/8]", "interfaces: [wan0]", True),
        ("subflow: joined", "subflow: initial", True),
    ],
)
def test_narrow_path_below_a_wide_one_is_never_reached(wide: str, narrow: str, reached: bool) -> None:
    text = (
        f"version: 1\npaths: {{wide: {{{wide}}}, narrow: {{{narrow}}}}}\nrules:\n"
        f"  - {{name: x, {CAP}, paths: [wide]}}\n  - {{name: y, {CAP}, paths: [narrow]}}\n"
    )
    found = ['policy.yaml:5: warning: rules[1]: rule "y" is never reached: "x" above it catches all its subflows']
    assert warnings(text) == ([] if reached else found)


@pytest.mark.parametrize("kind", ["budget", "steer"])
def test_exemption_only_from_caps_causes_a_warning_with_the_line_to_add(kind: str) -> None:
    later = f"name: y, {LINE_BY_KIND[kind]}"
    assert warnings(rules("name: x, throttle: none", later)) == [
        f'policy.yaml:4: warning: rules[0]: rule "x" does not exempt from the {kind} of rule "y" below it: add '
        f'"{kind}: none" to exempt from that too, or move rule "y" above it'
    ]
    for_some_clients = "name: x, when: {clients: [10.0.0.0/8]}, throttle: none"
    assert len(warnings(rules(for_some_clients, later))) == 1
    assert warnings(rules(f"{for_some_clients}, {kind}: none", later)) == []
    assert warnings(rules(later, "name: x, throttle: none")) == []


def test_smallest_delay_without_an_exemption_causes_a_warning() -> None:
    (warning,) = warnings(rules("name: x, steer: {mode: smallest-delay}", f"name: y, {CAP}"))
    assert 'add "throttle: none"' in warning


def test_exemption_applies_to_both_directions_by_default() -> None:
    """Defect: `throttle: none` exempted only downloads, so a lower rule with `direction: both` capped uploads."""
    cap = f"name: y, {CAP}, direction: both"
    for_some_clients = "name: x, throttle: none, when: {clients: [10.0.0.0/8]}"
    assert warnings(rules(for_some_clients, cap)) == []
    assert load_policy(rules(for_some_clients, cap), "p").rules[0].direction == frozenset(Direction)
    with_budget = f"name: x, throttle: none, {BUDGET}, when: {{clients: [10.0.0.0/8]}}"
    (warning,) = warnings(rules(with_budget, cap))
    assert "exempts only downloads from a throttle" in warning
    assert warnings(rules(f"{with_budget}, direction: down", cap)) == []
    assert warnings(rules(f"{with_budget}, direction: both", cap)) == []
    assert not load_policy(rules("name: x, throttle: none", f"name: y, {CAP}"), "p").acts_on_upload


@pytest.mark.parametrize("kind", ["throttle", "budget"])
def test_exemption_of_clients_below_the_cap_for_all_causes_a_warning(kind: str) -> None:
    """Defect: if the exemption of some clients was below the rule for all, they were capped without a warning."""
    cap = f'name: y, {LINE_BY_KIND[kind]}, when: {{hours: ["08:00-18:00"]}}'
    exemption = f"name: x, {kind}: none, when: {{clients: [10.9.0.0/16]}}"
    (warning,) = (each for each in warnings(rules(cap, exemption)) if "above it" in each)
    assert warning.startswith("policy.yaml:5: ")
    assert not [each for each in warnings(rules(exemption, cap)) if "above it" in each]
    assert not [each for each in warnings(rules(cap, f"name: x, {kind}: none")) if "; move rule" in each]


def test_key_without_effect_causes_a_warning() -> None:
    assert warnings(rules(f"name: x, {CAP}, direction: down", f"name: y, {CAP}, direction: both, {BUDGET}")) == [
        'policy.yaml:5: warning: rules[1]: the throttle of rule "y" never decides: "x" above it decides for all its '
        "subflows"
    ]
    assert warnings(rules(f"name: x, {CAP}, direction: up", f"name: y, {CAP}, direction: both")) == [
        'policy.yaml:5: warning: rules[1]: the throttle of rule "y" never decides for uploads: "x" above it decides '
        "for all its subflows"
    ]
    assert warnings(rules(f"name: x, {CAP}", f"name: z, {BUDGET}", f"name: y, {CAP}, {BUDGET}")) == [
        'policy.yaml:6: warning: rules[2]: rule "y" is never reached: "x" and "z" above it catch all its subflows'
    ]


def test_budget_without_a_rule_causes_a_warning_and_none_is_not_a_name() -> None:
    assert warnings(rules(f"name: x, {CAP}") + NAMED) == [
        "policy.yaml:5: warning: budgets.month: no rule uses this budget"
    ]
    (problem,) = check_policy(rules("name: x, budget: none") + NAMED.replace("month:", "none:", 1), "p").problems
    assert '"none" in a rule means that it has no budget' in str(problem)


UPLINKS = ("wan0", "wan1")


def interface_notes(*lines: str, interfaces: tuple[str, ...] | None = UPLINKS) -> list[str]:
    paths = "{a: {subflow: initial}, one: {interfaces: [wan1]}, other: {interfaces: [wan0]}, two: {interfaces: [w, v]}}"
    text = f"version: 1\npaths: {paths}\nrules:\n" + "".join(f"- {{{line}}}\n" for line in lines)
    return [str(note) for note in check_policy(text, "policy.yaml", interfaces).notes]


@pytest.mark.parametrize("paths", ["", ", paths: [a]", ", paths: [one, other]", ", paths: [one, a]"])
def test_cap_that_applies_to_each_of_several_interfaces_causes_a_note(paths: str) -> None:
    assert interface_notes(f"name: x, {CAP}{paths}") == [
        'policy.yaml:4: note: rules[0]: the cap of rule "x" applies to each interface separately: if downloads leave '
        "through wan0 and wan1, they get up to 2 times the rate together"
    ]


@pytest.mark.parametrize(
    "rule",
    [
        f"name: x, {CAP}, paths: [one]",
        f"name: x, {CAP}, direction: up",
        "name: x, throttle: none",
        "name: x, budget: {period: month, steps: [{after: 1 GB, throttle: none}]}",
        # These interfaces are not shaped, which another warning reports.
        f"name: x, {CAP}, paths: [two]",
    ],
)
def test_cap_on_one_interface_causes_no_note(rule: str) -> None:
    assert interface_notes(rule) == []


def test_cap_causes_a_note_without_known_interfaces_if_paths_name_several() -> None:
    assert interface_notes(f"name: x, {CAP}", interfaces=("wan0",)) == []
    assert interface_notes(f"name: x, {CAP}", f"name: y, {CAP}, paths: [a, one]", interfaces=None) == []
    (note,) = interface_notes(f"name: x, {CAP}, paths: [two]", interfaces=None)
    assert "leave through v and w" in note


def test_budget_of_rules_on_different_interfaces_causes_one_note() -> None:
    text = (
        "version: 1\npaths: {one: {interfaces: [wan1]}, other: {interfaces: [wan0]}}\n"
        "budgets: {paid: {period: month, steps: [{after: 1 GB, throttle: {rate: 1mbit}}]}}\n"
        "rules:\n- {name: x, budget: paid, paths: [one]}\n- {name: y, budget: paid, paths: [other]}\n"
    )
    (note,) = check_policy(text, "policy.yaml", UPLINKS).notes
    assert str(note).startswith(
        "policy.yaml:5: note: rules[0]: the cap of the budget paid applies to each interface separately"
    )
