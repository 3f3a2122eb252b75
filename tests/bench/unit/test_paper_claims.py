# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every claim of the paper can fail: it holds with the paper's values, and mutants break it."""

from __future__ import annotations

import pytest
from mutants_of_paper import BREAKS, TODAY, UNEXPLAINED, Values, results

from mptcp_bench.experiments.columns import Results
from mptcp_bench.paper import PAPER
from mptcp_bench.result_file import Judgement, Verdict


def claims(key: str, *changes: Values) -> list[Verdict]:
    return list(PAPER[key].load().verdicts(results(key, *changes)))


@pytest.mark.parametrize("key", PAPER)
def test_each_claim_holds_with_the_papers_values_and_has_a_mutant(key: str) -> None:
    sound = claims(key)
    assert [each.verdict for each in sound] == ["holds"] * len(sound)
    assert {number for name, number, _, _ in BREAKS if name == key} == set(range(len(sound)))
    reasons = {number for number, each in enumerate(claims(key, TODAY.get(key, {}))) if each.why}
    assert reasons == {number for name, number, _ in UNEXPLAINED if name == key}


@pytest.mark.parametrize(("key", "number", "changes", "verdict"), BREAKS)
def test_claim_does_not_hold_if_a_value_is_wrong(key: str, number: int, changes: Values, verdict: Judgement) -> None:
    assert claims(key, changes)[number].verdict == verdict


@pytest.mark.parametrize(("key", "number", "changes"), UNEXPLAINED)
def test_claim_differs_only_if_the_runs_show_the_reason(key: str, number: int, changes: Values) -> None:
    today, without = claims(key, TODAY[key])[number], claims(key, TODAY[key], changes)[number]
    assert today.verdict == "differs"
    assert (without.verdict, without.why) == ("fails", "")


@pytest.mark.parametrize("key", PAPER)
def test_claim_is_not_judged_by_a_single_run(key: str) -> None:
    whole, verdicts = results(key), PAPER[key].load().verdicts
    once = Results(whole.turns, [run for run in whole.runs if run.turn.number == 1])
    for part in (once, Results(whole.turns, [])):
        assert {each.verdict for each in verdicts(part)} == {"not judged"}


OF_480_KB, OF_420_KB = {"wifi.rtt": "16 ms"}, {"wifi.rtt": "14 ms"}
OF_48_KB = {"wifi.rtt": "1.6 ms", "wifi.jitter": "0 ms", "ethernet.rtt": "1 ms"}


@pytest.mark.parametrize(
    ("changed", "needed", "verdict"),
    [
        ({}, OF_480_KB, "holds"),
        ({480: 92}, OF_480_KB, "fails"),
        ({480: 104.5}, OF_480_KB, "not judged"),
        # The largest buffers are slower than an earlier one, so goodput has no plateau at its maximum.
        ({5760: 40, 2880: 50, 1440: 50, 720: 60}, OF_480_KB, "holds"),
        # 360 kB do not suffice, 480 kB do; none between was measured.
        ({}, OF_420_KB, "not judged"),
        ({480: 92}, OF_420_KB, "fails"),
        ({}, OF_48_KB, "not judged"),
        # The smallest buffer suffices.
        ({60: 110, 120: 110, 180: 110, 240: 110, 360: 110}, OF_480_KB, "not judged"),
    ],
)
def test_required_buffer_is_found_in_the_sweep(changed: dict[int, float], needed: dict[str, str], verdict: str) -> None:
    goodput = {f"buffer-{kb}": {"goodput": 1e6 * value} for kb, value in changed.items()}
    found = list(PAPER["fig4"].load().verdicts(results("fig4", goodput, **needed)))
    assert found[3].verdict == verdict
