# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the results in docs/results have today's verdicts, or that their page states that they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aims_of_today import differences
from kept_of_the_paper import claims_today
from paper_mutants import PAPER as PAPERS_WORLD
from paper_mutants import TODAY, World, experiment

from mptcp_bench import earlier_rules
from mptcp_bench.doc_tables import generated, read_kept
from mptcp_bench.earlier_rules import EARLIER, earlier_rule
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.findings import result_of
from mptcp_bench.paper import PAPER

KEPT = read_kept()
PAPERS = sorted(name for name, kept in KEPT.items() if kept.experiment in PAPER)
REPLACED = {name for name, kept in KEPT.items() if kept.experiment in earlier_rules.REPLACED}
OURS = sorted(KEPT.keys() - set(PAPERS) - REPLACED)


@pytest.mark.parametrize("name", PAPERS)
def test_papers_claims_and_verdicts_are_those_of_today(name: str) -> None:
    """If this fails, a claim was changed: run the experiment again, because the kept result is out of date."""
    today = [(claim.what, claim.verdict) for claim in claims_today(KEPT[name])]
    assert [(claim.what, claim.verdict) for claim in KEPT[name].aims if claim.said] == today


@pytest.mark.parametrize("world", [PAPERS_WORLD, TODAY], ids=["paper", "today"])
def test_tables_of_a_result_are_judged_as_what_they_sum_up(world: World) -> None:
    measured = experiment(world, "fig4")
    found = PAPER["fig4"].load().findings(measured.turns, measured.runs)
    kept = result_of("fig4", "", found, KEPT["fig4"].provenance, {}, seed=1, quick=False)
    assert [claim.verdict for claim in claims_today(kept)] == [claim.verdict for claim in kept.aims if claim.said]


@pytest.mark.nightly(besides=("[goodput", "[guard]", "[soak"))
@pytest.mark.parametrize("name", OURS)
def test_aims_that_are_not_those_of_today_are_said_to_be_so(name: str) -> None:
    """If this fails, run the experiment again, or name the missing aims in ``earlier_rules``."""
    found = differences(name, KEPT[name])
    if earlier_rule(name, KEPT[name]) is None:
        assert found == []
    else:
        assert found, f"{name} is judged as today: it needs no entry in earlier_rules"


def test_a_kept_result_names_what_measures_today_when_its_experiment_is_gone() -> None:
    assert {kept.experiment for kept in KEPT.values()} - {*PAPER, *EXPERIMENTS} == set(earlier_rules.REPLACED)


def test_an_earlier_rule_is_that_of_a_result_that_is_kept() -> None:
    assert {name for name, _ in EARLIER} <= set(OURS)


def test_a_page_says_by_which_rule_its_verdicts_were_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "abcdef0"
    monkeypatch.setattr("mptcp_bench.earlier_rules.EARLIER", {("console", commit): "means were not compared"})
    page = "<!-- table: console.aims -->\n<!-- end -->\n"
    kept = KEPT["console"]
    old = replace(kept, provenance=replace(kept.provenance, commit=commit + 33 * "0"))
    new = replace(kept, provenance=replace(kept.provenance, commit=40 * "0"))
    said = "processors.\n\nJudged by an earlier rule: means were not compared.\n\n<!-- end -->"
    assert said in generated(page, {"console": old}, "p.md")
    assert "Judged by" not in generated(page, {"console": new}, "p.md")
