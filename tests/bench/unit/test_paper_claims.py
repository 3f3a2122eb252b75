# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that every claim of the paper can fail: it holds in the paper's own world, and its mutants break it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from paper_mutants import BREAKS, TODAY, TODAY_PROXY, UNEXPLAINED, experiment, found

from mptcp_bench.experiments.columns import Results, Run, Turn
from mptcp_bench.paper import PAPER
from mptcp_bench.paper.measurements import Download
from mptcp_bench.result_file import Verdict

IN_THE_GATE = pytest.mark.nightly(except_for=("[fig2", "[fig3", "[fig6", "[table1"))
"""Scenarios without and with a cap."""


def claims(key: str, results: Results[Any, Any]) -> dict[str, Verdict]:
    """Return the verdicts by the claims' ids."""
    ids = [claim for figure, claim in BREAKS if figure == key]
    return dict(zip(ids, PAPER[key].load().verdicts(results), strict=True))


@IN_THE_GATE
@pytest.mark.parametrize(("key", "claim"), BREAKS)
def test_claim_holds_in_the_papers_world_and_no_longer_when_a_mechanism_is_broken(key: str, claim: str) -> None:
    assert BREAKS[key, claim], "a claim that nothing breaks says nothing"
    assert claims(key, found("paper", key))[claim].verdict == "holds"
    verdicts = {mutant: claims(key, found(mutant, key))[claim].verdict for mutant in BREAKS[key, claim]}
    assert verdicts == BREAKS[key, claim]
    if claims(key, found("today", key))[claim].verdict == "differs":
        assert (key, claim) in UNEXPLAINED


@pytest.mark.parametrize(("key", "claim"), UNEXPLAINED)
def test_claim_has_a_reason_only_if_the_runs_show_it(key: str, claim: str) -> None:
    today = claims(key, found("today", key))[claim]
    assert (today.verdict == "differs") is not today.why.startswith("Likely, but not measured: ")
    assert today.why
    without = claims(key, experiment(UNEXPLAINED[key, claim](TODAY_PROXY if key == "table1" else TODAY), key))[claim]
    assert (without.verdict, without.why) == ("fails", "")


@IN_THE_GATE
@pytest.mark.parametrize("key", PAPER)
def test_claim_is_not_judged_by_a_single_run(key: str) -> None:
    whole = found("today", key)
    once = Results(whole.turns, [run for run in whole.runs if run.turn.number == 1])
    assert {each.verdict for each in claims(key, once).values()} == {"not judged"}
    assert {each.verdict for each in claims(key, Results(whole.turns, [])).values()} == {"not judged"}


SWEPT = (60, 120, 180, 240, 360, 480, 720, 1440)


@pytest.mark.parametrize(
    ("changed", "needed", "verdict"),
    [
        ({}, 480, "holds"),
        ({480: 92}, 480, "fails"),
        ({480: 104.5}, 480, "not judged"),
        # The largest buffers are slower than an earlier one, so goodput has no plateau at its maximum.
        ({1440: 50, 720: 60}, 480, "holds"),
        # 360 kB do not suffice, 480 kB do; none between was measured.
        ({}, 400, "not judged"),
        ({}, 50, "not judged"),
        # The smallest buffer suffices.
        (dict.fromkeys(SWEPT, 110.0), 480, "not judged"),
    ],
)
def test_required_buffer_is_found_in_the_sweep(changed: dict[int, float], needed: int, verdict: str) -> None:
    goodput = {kb: min(110.0, kb / 4) for kb in SWEPT} | changed
    trials = {trial.key: replace(trial, buffer_needed=1e3 * needed) for trial in found("paper", "fig4").cells}
    runs = [
        Run(Turn(trials[f"buffer-{kb}"], "", n), Download(fell_back=False, goodput=1e6 * value * (1 + n / 1000)))
        for kb, value in goodput.items()
        for n in range(3)
    ]
    results = Results([Turn(trial, "", 1) for trial in trials.values()], runs)
    assert claims("fig4", results)["required"].verdict == verdict
