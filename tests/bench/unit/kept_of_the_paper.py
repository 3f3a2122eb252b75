# SPDX-License-Identifier: GPL-2.0-or-later
"""Judges a kept result of the paper by today's claims, through runs rebuilt from its tables.

The result does not keep single values. Welch's t needs only a sample's mean, spread and size, which the tables
contain. So today's claims judge the rebuilt runs like the measured runs, except for rounded digits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from scipy.special import stdtrit

from mptcp_bench.paper import session
from mptcp_bench.paper.parameters import Chosen
from mptcp_bench.paper.quantities import FACTORS
from mptcp_bench.paper.results import METRICS, Run
from mptcp_bench.paper.tables import ARROWS
from mptcp_bench.paper.verdicts import judged
from mptcp_bench.result_file import ExperimentResult, Table, Verdict
from mptcp_bench.statistics import CONFIDENCE

CELL = re.compile(r"(?P<mean>[-\d.]+)(?: ± (?P<half>[\d.]+))?(?: (?P<unit>[^ ]+))? \(n = (?P<n>\d+)\)")
QUANTITY = re.compile(r"(?P<mean>[-\d.]+) (?P<unit>[^ ]+)")
NAMES = {each.title: each.key for each in METRICS.values()}
WAYS = {words: way for way, words in ARROWS.items()}


def samples(cell: str) -> list[float]:
    """Return values that have the mean, interval and size in *cell* of a table of statistics."""
    found = CELL.fullmatch(cell)
    assert found, cell
    factor, n = FACTORS.get(found["unit"] or "", 1.0), int(found["n"])
    mean = factor * float(found["mean"])
    if found["half"] is None:
        return [mean] * n
    spread = factor * float(found["half"]) * sqrt(n) / float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
    pairs = n // 2
    away = spread * sqrt((n - 1) / (2 * pairs))
    return [mean - away, mean + away] * pairs + [mean] * (n % 2)


def _columns(table: Table) -> Iterator[tuple[str, str, str]]:
    """Yield case title, metric and cell of a table.

    The columns are cases. In a sweep of a result from an earlier version, the rows are cases.
    """
    for row in table.rows:
        for head, cell in zip(table.head[1:], row[1:], strict=True):
            title, name = (head, row[0]) if row[0] in NAMES else (row[0], head)
            # A kept result may have quantities that are no longer measured.
            if cell != "—" and name in NAMES:
                yield title, NAMES[name], cell


def claims_today(kept: ExperimentResult) -> tuple[Verdict, ...]:
    """Return today's claims about the runs of *kept*, a summary of a result of the paper."""
    measured = replace(session.scenario(kept.experiment, Chosen.of(), quick=False).measured, parameters=kept.parameters)
    keys = {case.title: case.key for case in measured.cases}
    values: dict[tuple[str, int], dict[str, float]] = {}
    pools: dict[str, dict[str, tuple[float, ...]]] = {}
    for table in kept.tables:
        if table.key in ("statistics", "sweep"):
            for title, metric, cell in _columns(table):
                for number, value in enumerate(samples(cell)):
                    values.setdefault((keys[title], number), {})[metric] = value
        elif table.key == "delays":
            for label, title, _, *percentiles in (row[:6] for row in table.rows):
                kind, _, way = label.partition(", ")
                drawn = tuple(
                    FACTORS.get(q["unit"], 1.0) * float(q["mean"]) for q in map(QUANTITY.fullmatch, percentiles) if q
                )
                pools.setdefault(keys[title], {})[f"{kind} {WAYS[way]}"] = drawn
    runs = tuple(
        Run(case, number, True, values=found, distributions=pools.get(case, {}))
        for (case, number), found in values.items()
    )
    return judged(replace(measured, runs=runs))
