# SPDX-License-Identifier: GPL-2.0-or-later
"""The measurements of an experiment of the paper as tables and lines of text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.table import Table

from mptcp_common.units import counted

from ..experiments.tables import new_table
from ..statistics import percentiles
from .quantities import show
from .results import DOWN, UP, Case, Measurements, Statistic, metric

ARROWS = {UP: "client → origin", DOWN: "origin → client"}
PERCENTS = (50, 95, 99)


def cell_of(found: Statistic | None) -> str:
    """Return mean, interval and number of runs as text; a dash for None."""
    return "—" if found is None else f"{show(found.mean, found.unit, found.half)} (n = {found.n})"


def tables(measured: Measurements) -> tuple[Table, ...]:
    """Return statistics of each case, the sweep, and the distributions of delays."""
    found = []

    def table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        made = new_table(title, head, (head[0],), wrapped=head)
        for row in rows:
            made.add_row(*row)
        if made.row_count:
            found.append(made)

    def statistics(title: str, cases: Sequence[Case]) -> None:
        head = ("", *(case.title for case in cases))
        rows = (
            (metric(name).title, *(cell_of(measured.statistic(case.key, name)) for case in cases))
            for name in measured.metrics(cases)
        )
        table(title, head, rows)

    columns = [case for case in measured.cases if case.kind != "sweep"]
    statistics("Statistics: mean ± 95 % confidence interval (Student's t), n runs", columns)
    statistics("Sweep: of the receive buffer", measured.of_kind("sweep"))
    head = ("", "case", "n", "median", *(f"p{percent}" for percent in PERCENTS[1:]), "paper")
    table("Delays: of all runs together", head, _delays(measured))
    return tuple(found)


def _delays(measured: Measurements) -> list[tuple[str, ...]]:
    rows = []
    for name in dict.fromkeys(n for run in measured.runs if run.valid for n in run.distributions):
        kind, _, direction = name.partition(" ")
        paper = ", ".join(show(r.value, "s") for r in measured.references if r.where == kind)
        for case in measured.cases:
            if values := measured.pooled(name, case.key):
                points = (show(value, "s") for value in percentiles(values, PERCENTS))
                label = f"{kind}, {ARROWS.get(direction, direction)}"
                rows.append((label, case.title, str(len(values)), *points, paper or "—"))
    return rows


def summary(measured: Measurements) -> tuple[str, ...]:
    """Return how many runs are data points, and why other runs are not."""
    valid, failed = sum(run.valid for run in measured.runs), measured.failed()
    reasons = Counter((measured.case(run.case).title, run.reason) for run in failed)
    lines = (f"{n} × {title}: {reason}" for (title, reason), n in reasons.items())
    return (f"{counted(valid, 'data point')} of {measured.repetitions * len(measured.cases)} planned.", *lines)


def failures(measured: Measurements) -> tuple[str, ...]:
    """Return the cases that have no data point."""
    return tuple(f"no data point of {case.title}" for case in measured.cases if not measured.valid(case.key))
