# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests that the results in docs/results have the current verdicts, or state the earlier rule that judged them.

The paper's results contain no individual values, so their runs are rebuilt from the tables. Welch's t-test needs only
mean, variance and size of a sample, which the tables contain. So the current claims judge the rebuilt runs like the
measured runs, except for rounding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import sqrt
from typing import Any, NamedTuple

import pytest
from all_verdict_cases import VERDICT_CASES
from mutants import SOUND
from scipy.special import stdtrit

from mptcp_bench.doc_tables import read_kept
from mptcp_bench.experiments import EXPERIMENTS
from mptcp_bench.experiments.columns import Run, Turn
from mptcp_bench.paper import PAPER
from mptcp_bench.paper.conversion_claims import Delays
from mptcp_bench.paper.measurements import COLUMNS, Download
from mptcp_bench.result_file import ExperimentResult, Table, Verdict
from mptcp_bench.statistics import CONFIDENCE

KEPT = read_kept()
PAPERS = sorted(name for name, kept in KEPT.items() if kept.experiment in PAPER)
OURS = {name: kept for name, kept in KEPT.items() if kept.experiment in EXPERIMENTS}
_REMARK, _NUMBER, _PATH = re.compile(r" \(.*\)"), re.compile(r"\d[\d,.]*"), re.compile(r"(?<=path )[a-z](?= / its )")
VARIED = {
    "runs", "samples", "open tunnels, minimum", "tunnels replaced, /s", "Mbit/s",
}  # fmt: skip
"""Aims whose bounds depend on the cell, on the options, or on other measurements."""
AIMS_OF_ALL = {"runs", "attempts repeated, other than because of the emulated paths"}
"""Aims of all experiments. An older result lacks them if it has one run and no repeated attempts."""


FIELDS = {column.heading: (name, column.scale) for name, column in COLUMNS.items()}
"""Field and scale of a quantity in the tables."""


def rebuilt_values(cell: str, n: int) -> list[float]:
    """Return *n* values that have the mean and the interval in *cell* of a table."""
    mean, half = (float(number) for number in (*cell.split(" ± "), "0")[:2])
    away = half * sqrt(n) / float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * sqrt((n - 1) / (2 * (n // 2)))
    return [mean - away, mean + away] * (n // 2) + [mean] * (n % 2)


def _downloads(table: Table, cells: Iterable[Any]) -> list[Run[Any, Any]]:
    trials = {str(cell): cell for cell in cells}
    runs = []
    # Most tables have a column for each trial; the earlier table "sweep" has a row. A stored result may have trials and
    # quantities that are no longer measured.
    by_trial = [table.head, *table.rows] if table.key == "sweep" else zip(table.head, *table.rows, strict=True)
    (_, *headings), *rows = by_trial
    for title, *texts in (row for row in rows if row[0] in trials):
        quantities = dict(zip(headings, texts, strict=True))
        n = int(quantities["runs"])
        columns = {
            FIELDS[name]: rebuilt_values(cell, n) for name, cell in quantities.items() if name in FIELDS and cell
        }
        for number in range(n):
            values: dict[str, Any] = {name: sample[number] / scale for (name, scale), sample in columns.items()}
            runs.append(Run(Turn(trials[title], "", number), Download(fell_back=True, **values)))
    return runs


def _delays(table: Table) -> list[Run[Any, Any]]:
    runs, client = [], ""
    for row in table.rows:
        cells = dict(zip(table.head, row, strict=True))
        client, n = cells["client"] or client, int(cells["runs"])
        idle = rebuilt_values(cells["idle, %"], n)
        for number, median in enumerate(rebuilt_values(cells["median of a run"], n)):
            turn = Turn(client, "", number)
            runs.append(Run(turn, Delays((median / 1e3,), idle[number] / 100), cells["segment"]))
    return runs


def current_claims(kept: ExperimentResult) -> list[Verdict]:
    """Return the current claims about the runs of *kept*, a result of the paper's experiments."""
    scenario = PAPER[kept.experiment].load()
    turns = scenario.plan(scenario.chosen({name: str(value) for name, value in kept.parameters.items()}))
    cells = dict.fromkeys(turn.cell for turn in turns)
    runs = []
    for table in kept.tables:
        runs += _delays(table) if table.key == "delays" else _downloads(table, cells)
    return list(scenario.verdicts(scenario.results(turns, runs)))


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
def test_claims_of_the_paper_have_the_current_verdicts(name: str) -> None:
    """If this fails, a claim was changed. Run the experiment again, because the stored result is out of date."""
    current = [(claim.what, claim.verdict) for claim in current_claims(KEPT[name])]
    assert [(claim.what, claim.verdict) for claim in KEPT[name].aims if claim.measured_text] == current


@pytest.mark.parametrize("name", sorted({kept.experiment for kept in OURS.values()}))
def test_results_of_an_experiment_have_its_current_aims_or_an_earlier_rule(name: str) -> None:
    """If this fails, run the experiment again, or set ``earlier_rule`` in the result."""
    cases, results = VERDICT_CASES[name], [kept for kept in OURS.values() if kept.experiment == name]
    current = forms(aim for mutant in (SOUND, *cases.mutant_names) for aim in cases.aims_or_none(mutant))
    missing = forms(cases.aims()).keys() - {form for kept in results for form in forms(kept.aims)}
    if not any(kept.earlier_rule for kept in results):
        assert {form.words for form in missing} - AIMS_OF_ALL == set()
    for kept in results:
        changed = {form.words for form, bounds in forms(kept.aims).items() if not bounds <= current.get(form, bounds)}
        assert changed - VARIED == set() or kept.earlier_rule


def test_result_of_a_removed_experiment_names_the_replacement() -> None:
    removed = [name for name, kept in KEPT.items() if kept.experiment not in {*PAPER, *EXPERIMENTS}]
    assert [name for name, kept in KEPT.items() if kept.replacement] == removed
