# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the results in docs/results have today's verdicts, or that their page states that they do not."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from all_verdict_cases import VERDICT_CASES
from kept_of_the_paper import claims_today
from mutants import aims_or_none

from mptcp_bench.doc_tables import read_kept
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.paper import PAPER
from mptcp_bench.result_file import Verdict

KEPT = read_kept()
PAPERS = sorted(name for name, kept in KEPT.items() if kept.experiment in PAPER)
OURS = {name: kept for name, kept in KEPT.items() if kept.experiment in EXPERIMENTS}
_REMARK, _NUMBER, _PATH = re.compile(r" \(.*\)"), re.compile(r"\d[\d,.]*"), re.compile(r"(?<=path )[a-z](?= / its )")
VARIED = {
    "runs", "samples", "open tunnels, minimum", "tunnels replaced, /s", "Mbit/s",
}  # fmt: skip
"""Aims whose bounds depend on the cell, on the options, or on other measurements."""
OF_THE_ENGINE = {"runs", "attempts repeated, other than because of the emulated paths"}
"""Aims that an older result lacks if its experiment had one run and did not repeat a failed attempt."""


class Form(NamedTuple):
    """An aim's name without cell and numbers, and which bounds it has."""

    words: str
    has_least: bool
    has_most: bool


def forms(aims: Iterable[Verdict]) -> dict[Form, set[tuple[float, ...]]]:
    """Return the forms of those *aims* that have bounds, each with the set of its bounds."""
    found: dict[Form, set[tuple[float, ...]]] = {}
    for aim in aims:
        words = _NUMBER.sub("#", _PATH.sub("#", _REMARK.sub("", aim.what).rpartition(": ")[2]))
        if bounds := tuple(round(bound, 6) for bound in (aim.least, aim.most) if bound is not None):
            found.setdefault(Form(words, aim.least is not None, aim.most is not None), set()).add(bounds)
    return found


@pytest.mark.parametrize("name", PAPERS)
def test_papers_claims_and_verdicts_are_those_of_today(name: str) -> None:
    """If this fails, a claim was changed: run the experiment again, because the kept result is out of date."""
    today = [(claim.what, claim.verdict) for claim in claims_today(KEPT[name])]
    assert [(claim.what, claim.verdict) for claim in KEPT[name].aims if claim.measured_text] == today


@pytest.mark.parametrize("name", sorted({kept.experiment for kept in OURS.values()}))
def test_results_of_an_experiment_have_the_aims_of_today_or_an_earlier_rule(name: str) -> None:
    """If this fails, run the experiment again, or set ``earlier_rule`` in the result."""
    cases, results = VERDICT_CASES[name], [kept for kept in OURS.values() if kept.experiment == name]
    today = forms(aim for get_aims in (cases.sound, *cases.mutants.values()) for aim in aims_or_none(get_aims))
    missing = forms(cases.sound()).keys() - {form for kept in results for form in forms(kept.aims)}
    if not any(kept.earlier_rule for kept in results):
        assert {form.words for form in missing} - OF_THE_ENGINE == set()
    for kept in results:
        changed = {form.words for form, bounds in forms(kept.aims).items() if not bounds <= today.get(form, bounds)}
        assert changed - VARIED == set() or kept.earlier_rule


def test_result_of_an_experiment_that_no_longer_exists_names_the_replacement() -> None:
    known = {*PAPER, *EXPERIMENTS}
    assert {name for name, kept in KEPT.items() if kept.replacement} == {
        name for name, kept in KEPT.items() if kept.experiment not in known
    }
