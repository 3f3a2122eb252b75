# SPDX-License-Identifier: GPL-2.0-or-later
"""Fuzz tests with damaged policies and random text: the result is a policy or error lines, never an exception."""

from __future__ import annotations

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from mptcp_common.problems import Severity
from mptcp_throttler.policy.load import check_policy

VALID = """version: 1
paths:
  ethernet:
    clients: [10.77.1.0/24]
  wifi: {clients: [10.77.2.0/24]}
budgets:
  month: {period: month, per: path, steps: [{after: 1 GB, throttle: none}]}
rules:
  - name: a
    paths: [ethernet]
    when: {min_subflows: 2, days: [mon-fri], hours: ["08:00-18:00"], clients: [10.0.0.0/8]}
    throttle: &x {rate: 5 Mbit/s, ceil: 6mbit, burst: 15 KB, share: client}
  - {name: b, throttle: {<<: *x, rate: 1mbit}, lift_last: false}
  - {name: d, paths: [wifi], budget: month}
  - {name: e, steer: {mode: waterfall, order: [wifi, ethernet]}}
  - {name: c, throttle: none, budget: none, steer: none}
"""

FRAGMENTS = st.one_of(
    st.sampled_from(
        ["{", "}", "[", "]", ": ", "- ", "\n", "  ", "&x ", "*x", "<<: ", "!!", "|", ">", "'", '"', "#", "%"]
    ),
    st.sampled_from(
        ["null", "true", "5", "-1", "1e9", "none", "2026-01-01", "\t", "\x00", "\u2028", '"\\ud800"', "? "]
    ),
    st.text(max_size=5),
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), FRAGMENTS), max_size=4))
def test_damaged_policy_yields_a_policy_or_error_lines(
    replacements: list[tuple[int, int, str]],
) -> None:
    text = VALID
    for offset, length, fragment in replacements:
        text = text[:offset] + fragment + text[offset + length :]
    checked = check_policy(text, "policy.yaml")
    errors = [problem for problem in checked.problems if problem.severity is Severity.ERROR]
    assert (checked.policy is None) == bool(errors)
    for problem in checked.problems:
        line = str(problem)
        assert len(line.splitlines()) == 1
        line.encode()
        assert 1 <= problem.line <= text.count("\n") + 2
        assert problem.column >= 1


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=200))
def test_any_text_yields_a_policy_or_error_lines(text: str) -> None:
    checked = check_policy(text, "policy.yaml")
    assert (checked.policy is None) == bool(checked.problems)
