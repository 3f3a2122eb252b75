# SPDX-License-Identifier: GPL-2.0-or-later
"""A result of the paper in words and tables, for the report."""

from __future__ import annotations

from collections import Counter

from mptcp_common.units import counted, format_rate

from ..report_model import Chapter, Figure, word
from ..result_file import Table
from ..statistics import percentiles
from .figures import svg
from .quantities import show
from .results import DOWN, GOODPUT, UP, Case, PaperResult, Statistic, metric
from .summary import in_order, pooled

ARROWS = {UP: "client → origin", DOWN: "origin → client"}
PERCENTS = (50, 95, 99)


def cell_of(found: Statistic | None) -> str:
    """Return mean, interval and number of runs as text; a dash for None."""
    if found is None:
        return "—"
    return f"{show(found.mean, found.unit, found.half)} (n = {found.n})"


def _statistics(result: PaperResult) -> list[Table]:
    tables = []
    caption = "Measured: mean ± 95 % confidence interval (Student's t), n runs"
    columns = [case for case in result.cases if case.kind != "sweep"]
    names = in_order(s.metric for s in result.summary if s.case in {case.key for case in columns})
    if names:
        rows = [(metric(n).title, *(cell_of(result.statistic(case.key, n)) for case in columns)) for n in names]
        tables.append(Table("statistics", caption, ("", *(case.title for case in columns)), tuple(rows)))
    swept = result.of_kind("sweep")
    names = in_order(s.metric for s in result.summary if s.case in {case.key for case in swept})
    if names:
        head = ("", *(metric(n).title for n in names))
        points = [(case.title, *(cell_of(result.statistic(case.key, n)) for n in names)) for case in swept]
        tables.append(Table("sweep", "The sweep", head, tuple(points)))
    return tables


def _distributions(result: PaperResult) -> list[Table]:
    rows = []
    for name in dict.fromkeys(n for run in result.runs if run.valid for n in run.distributions):
        kind, _, direction = name.partition(" ")
        paper = ", ".join(show(r.value, "s") for r in result.references if r.where == kind)
        for case in result.cases:
            if values := pooled(result, name, case.key):
                points = (show(value, "s") for value in percentiles(values, PERCENTS))
                label = f"{kind}, {ARROWS.get(direction, direction)}"
                rows.append((label, case.title, str(len(values)), *points, paper or "—"))
    head = ("", "", "n", "median", *(f"p{percent}" for percent in PERCENTS[1:]), "paper")
    return [Table("delays", "Delays of all runs together", head, tuple(rows))] if rows else []


def _failed(result: PaperResult) -> tuple[str, ...]:
    counts = Counter((result.case(run.case).title, run.reason) for run in result.failed())
    return tuple(f"{count} × {title}: {reason or 'no reason given'}" for (title, reason), count in counts.items())


def _parameters(result: PaperResult) -> tuple[tuple[str, str], ...]:
    common = [(name.replace("_", " "), word(value)) for name, value in result.parameters.items()]
    return (*common, *((case.title, own) for case in result.cases if (own := _own(case))))


def _own(case: Case) -> str:
    parts = [f"{name.replace('_', ' ')} {word(value)}" for name, value in case.parameters.items()]
    parts += [f"cap on {path} {format_rate(round(rate))}" for path, rate in case.caps.items()]
    return ", ".join(parts)


def _done(result: PaperResult) -> str:
    planned = result.repetitions * len(result.cases)
    valid, failed = sum(run.valid for run in result.runs), len(result.failed())
    text = f"{counted(valid, 'data point')} of {planned} planned"
    return f"{text}; {counted(failed, 'run')} failed" if failed else text


def chapter(result: PaperResult) -> Chapter:
    """Return the report's chapter about *result*, with its figure drawn."""
    drawn = any(run.valid for run in result.runs)
    return Chapter(
        result=result,
        label=result.paper,
        done=_done(result),
        claims=result.claims,
        figures=(Figure(svg(result), _alternative(result)),) if drawn else (),
        warnings=() if drawn else ("No run is a data point: there is no figure.",),
        tables=(*_statistics(result), *_distributions(result)),
        failed=_failed(result),
        parameters=_parameters(result),
    )


def _alternative(result: PaperResult) -> str:
    found = [(case.title, result.statistic(case.key, GOODPUT)) for case in result.of_kind("panel")]
    means = "; ".join(f"{title}: {show(s.mean, s.unit)}" for title, s in found if s is not None)
    return f"{result.paper}, {result.title}. {means}".rstrip()
