# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every claim of the paper can fail: it holds with the paper's values, and mutants break it."""

from __future__ import annotations

from dataclasses import replace

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
    reasons = {number for number, each in enumerate(claims(key, TODAY.get(key, {}))) if each.explanation}
    assert reasons == {number for name, number, _ in UNEXPLAINED if name == key}


@pytest.mark.parametrize(("key", "number", "changes", "verdict"), BREAKS)
def test_claim_does_not_hold_if_a_value_is_wrong(key: str, number: int, changes: Values, verdict: Judgement) -> None:
    assert claims(key, changes)[number].verdict == verdict


@pytest.mark.parametrize(("key", "number", "changes"), UNEXPLAINED)
def test_claim_differs_only_if_the_runs_show_the_reason(key: str, number: int, changes: Values) -> None:
    today, without = claims(key, TODAY[key])[number], claims(key, TODAY[key], changes)[number]
    assert today.verdict == "differs"
    assert (without.verdict, without.explanation) == ("fails", "")


@pytest.mark.parametrize("key", PAPER)
def test_claim_is_not_judged_by_a_single_run(key: str) -> None:
    whole, verdicts = results(key), PAPER[key].load().verdicts
    once = Results(whole.turns, [run for run in whole.runs if run.turn.number == 1])
    for part in (once, Results(whole.turns, [])):
        assert {each.verdict for each in verdicts(part)} == {"not judged"}


def test_required_buffer_is_not_judged_if_rates_and_rtts_are_not_known() -> None:
    found = results("fig4")
    known = [run for run in found.runs if run.turn.cell.key != "needed"]
    unknown = Results([turn for turn in found.turns if turn.cell.key != "needed"], known)
    assert list(PAPER["fig4"].load().verdicts(unknown))[3].verdict == "not judged"


@pytest.mark.parametrize("rtt", [None, 80_000])
def test_share_of_ethernet_is_judged_only_if_it_is_known_to_have_the_shorter_rtt(rtt: int | None) -> None:
    found = results("fig3")
    cells = {each: replace(each, rtt=rtt) if each.key == "tcp-ethernet" else each for each in found.cells}
    turns = {each: replace(each, cell=cells[each.cell]) for each in found.turns}
    other = Results(list(turns.values()), [replace(run, turn=turns[run.turn]) for run in found.runs])
    assert list(PAPER["fig3"].load().verdicts(other))[1].verdict == "not judged"
