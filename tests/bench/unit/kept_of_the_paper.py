# SPDX-License-Identifier: GPL-2.0-or-later
"""Judges a kept result of the paper by today's claims, through runs rebuilt from its tables.

The result does not keep single values. Welch's t needs only a sample's mean, spread and size, which the tables
contain. So today's claims judge the rebuilt runs like the measured runs, except for rounded digits.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any

from scipy.special import stdtrit

from mptcp_bench.experiments.columns import Run, Turn
from mptcp_bench.paper import PAPER
from mptcp_bench.paper.conversion_claims import Delays
from mptcp_bench.paper.measurements import COLUMNS, Download
from mptcp_bench.result_file import ExperimentResult, Table, Verdict
from mptcp_bench.statistics import CONFIDENCE

NAMES = {column.heading: (name, column.scale) for name, column in COLUMNS.items()}


def samples(cell: str, n: int) -> list[float]:
    """Return *n* values that have the mean and the interval in *cell* of a table."""
    mean, half = (float(number) for number in (*cell.split(" ± "), "0")[:2])
    away = half * sqrt(n) / float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * sqrt((n - 1) / (2 * (n // 2)))
    return [mean - away, mean + away] * (n // 2) + [mean] * (n % 2)


def _downloads(table: Table, cells: Iterable[Any]) -> list[Run[Any, Any]]:
    trials = {str(cell): cell for cell in cells}
    runs = []
    # The statistics have a column for each trial; an earlier table, the sweep, had a row. A kept result may have trials
    # and quantities that are no longer measured.
    by_trial = [table.head, *table.rows] if table.key == "sweep" else zip(table.head, *table.rows, strict=True)
    (_, *headings), *rows = by_trial
    for title, *texts in (row for row in rows if row[0] in trials):
        quantities = dict(zip(headings, texts, strict=True))
        n = int(quantities["runs"])
        columns = {NAMES[name]: samples(cell, n) for name, cell in quantities.items() if name in NAMES and cell}
        for number in range(n):
            values: dict[str, Any] = {name: sample[number] / scale for (name, scale), sample in columns.items()}
            runs.append(Run(Turn(trials[title], "", number), Download(fell_back=True, **values)))
    return runs


def _delays(table: Table) -> list[Run[Any, Any]]:
    runs, client = [], ""
    for row in table.rows:
        cells = dict(zip(table.head, row, strict=True))
        client, n = cells["client"] or client, int(cells["runs"])
        idle = samples(cells["idle, %"], n)
        for number, median in enumerate(samples(cells["median of a run"], n)):
            turn = Turn(client, "", number)
            runs.append(Run(turn, Delays((median / 1e3,), idle[number] / 100), cells["segment"]))
    return runs


def claims_today(kept: ExperimentResult) -> list[Verdict]:
    """Return today's claims about the runs of *kept*, a summary of a result of the paper."""
    scenario = PAPER[kept.experiment].load()
    turns = scenario.plan(scenario.chosen({name: str(value) for name, value in kept.parameters.items()}))
    cells = dict.fromkeys(turn.cell for turn in turns)
    runs = []
    for table in kept.tables:
        runs += _delays(table) if table.key == "delays" else _downloads(table, cells)
    return list(scenario.verdicts(scenario.results(turns, runs)))
