# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the results in docs/results have today's verdicts, or that their page states that they do not."""

from __future__ import annotations

import pytest
from aims_of_today import differences
from kept_of_the_paper import claims_today

from mptcp_bench.doc_tables import read_kept
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.paper import PAPER

KEPT = read_kept()
PAPERS = sorted(name for name, kept in KEPT.items() if kept.experiment in PAPER)
OURS = sorted(name for name, kept in KEPT.items() if kept.experiment in EXPERIMENTS)


@pytest.mark.parametrize("name", PAPERS)
def test_papers_claims_and_verdicts_are_those_of_today(name: str) -> None:
    """If this fails, a claim was changed: run the experiment again, because the kept result is out of date."""
    today = [(claim.what, claim.verdict) for claim in claims_today(KEPT[name])]
    assert [(claim.what, claim.verdict) for claim in KEPT[name].aims if claim.said] == today


@pytest.mark.parametrize("name", OURS)
def test_result_with_other_aims_than_today_has_an_earlier_rule(name: str) -> None:
    """If this fails, run the experiment again, or set ``earlier_rule`` in the result."""
    assert bool(found := differences(name, KEPT[name])) is bool(KEPT[name].earlier_rule), found


def test_result_of_an_experiment_that_no_longer_exists_names_the_replacement() -> None:
    known = {*PAPER, *EXPERIMENTS}
    assert {name for name, kept in KEPT.items() if kept.replacement} == {
        name for name, kept in KEPT.items() if kept.experiment not in known
    }
