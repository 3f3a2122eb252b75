"""One HTML page of all results: what the paper says, what was measured, the figures, and where it all comes from.

The page holds everything (style, figures as SVG in data URLs) and fetches nothing, so that it can be sent and kept.
What is shown of a result is put into words here; the template only arranges it, and escapes every text.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from mptcp_common.units import format_rate

from ..statistics import percentiles
from .figures import svg
from .quantities import show
from .results import (
    DOWN,
    FILE,
    GOODPUT,
    UP,
    Case,
    Judgement,
    Result,
    ResultError,
    Scalar,
    Statistic,
    Verdict,
    find,
    load,
    metric,
)
from .scenarios import NAMES, SCENARIOS
from .summary import in_order, pooled
from .verdicts import judged

TEMPLATE = "report.html.jinja"
ARROWS = {UP: "client → origin", DOWN: "origin → client"}
PERCENTS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Table:
    """Words in rows and columns; the first column names the row."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One experiment, in words."""

    anchor: str
    paper: str
    title: str
    complete: bool
    quick: bool
    done: str
    """How many runs of how many."""
    claims: tuple[Verdict, ...]
    figure: str | None
    """A data URL; None where there was no data point to draw."""
    alternative: str
    tables: tuple[Table, ...]
    failed: tuple[str, ...]
    notes: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]
    provenance: tuple[tuple[str, str], ...]


def _count(number: int, of: str) -> str:
    return f"{number} {of}{'' if number == 1 else 's'}"


def _cell(found: Statistic | None) -> str:
    if found is None:
        return "—"
    half = None if found.high is None else found.high - found.mean
    return f"{show(found.mean, found.unit, half)} (n = {found.n})"


def _statistics(result: Result) -> list[Table]:
    """Return metrics by case, and the sweep's points one below the other."""
    tables = []
    caption = "Measured: mean ± 95 % confidence interval (Student's t), n runs"
    columns = [case for case in result.cases if case.kind != "sweep"]
    names = in_order(s.metric for s in result.summary if s.case in {case.key for case in columns})
    if names:
        rows = [(metric(n).title, *(_cell(result.statistic(case.key, n)) for case in columns)) for n in names]
        tables.append(Table(caption, ("", *(case.title for case in columns)), tuple(rows)))
    swept = result.of_kind("sweep")
    names = in_order(s.metric for s in result.summary if s.case in {case.key for case in swept})
    if names:
        head = ("", *(metric(n).title for n in names))
        points = [(case.title, *(_cell(result.statistic(case.key, n)) for n in names)) for case in swept]
        tables.append(Table("The sweep", head, tuple(points)))
    return tables


def _distributions(result: Result) -> list[Table]:
    """Return percentiles of every distribution, each case a row, beside what the paper has."""
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
    return [Table("Delays of all runs together", head, tuple(rows))] if rows else []


def _failed(result: Result) -> tuple[str, ...]:
    """Return how often each reason, and of which case."""
    counts = Counter((result.case(run.case).title, run.reason) for run in result.failed())
    return tuple(f"{count} × {title}: {reason or 'no reason given'}" for (title, reason), count in counts.items())


def _word(value: Scalar) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else str(value)


def _parameters(result: Result) -> tuple[tuple[str, str], ...]:
    """Return the settings of the experiment, then of each case what is its own."""
    common = [(name.replace("_", " "), _word(value)) for name, value in result.parameters.items()]
    return (*common, *((case.title, own) for case in result.cases if (own := _own(case))))


def _own(case: Case) -> str:
    parts = [f"{name.replace('_', ' ')} {_word(value)}" for name, value in case.parameters.items()]
    parts += [f"cap on {path} {format_rate(round(rate))}" for path, rate in case.caps.items()]
    return ", ".join(parts)


def _done(result: Result) -> str:
    planned = result.repetitions * len(result.cases)
    valid, failed = sum(run.valid for run in result.runs), len(result.failed())
    text = f"{_count(valid, 'data point')} of {planned} planned"
    return f"{text}; {_count(failed, 'run')} failed" if failed else text


def section(result: Result, figure: bytes | None, anchor: str) -> Section:
    """Return *result* in words; *figure* is SVG."""
    return Section(
        anchor=anchor,
        paper=result.paper,
        title=result.title,
        complete=result.complete,
        quick=result.quick,
        done=_done(result),
        claims=result.claims,
        figure=None if figure is None else "data:image/svg+xml;base64," + b64encode(figure).decode(),
        alternative=_alternative(result),
        tables=(*_statistics(result), *_distributions(result)),
        failed=_failed(result),
        notes=result.notes,
        parameters=_parameters(result),
        provenance=tuple((name, _word(value)) for name, value in asdict(result.provenance).items()),
    )


def _alternative(result: Result) -> str:
    """Return what the figure shows, for those who do not see it."""
    found = [(case.title, result.statistic(case.key, GOODPUT)) for case in result.of_kind("panel")]
    means = "; ".join(f"{title}: {show(s.mean, s.unit)}" for title, s in found if s is not None)
    return f"{result.paper}, {result.title}. {means}".rstrip()


def _missing(results: Sequence[Result]) -> tuple[tuple[str, str], ...]:
    """Return name and title of the paper's experiments that have no result."""
    there = {result.scenario for result in results}
    return tuple(
        (name, f"{SCENARIOS[name].figure}: {SCENARIOS[name].title}" if name in SCENARIOS else "Table 1")
        for name in NAMES
        if name not in there
    )


def report(results: Sequence[Result], figures: Mapping[int, bytes]) -> str:
    """Return the page for *results*, in that order; *figures* are SVG by position in *results*."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [section(result, figures.get(n), f"{result.scenario}-{n}") for n, result in enumerate(results)]
    verdicts = Counter(claim.verdict for result in results for claim in result.claims)
    return environment.get_template(TEMPLATE).render(
        sections=sections,
        missing=_missing(results),
        verdicts=[(verdict, verdicts[verdict]) for verdict in get_args(Judgement)],
        total=sum(verdicts.values()),
    )


def _position(result: Result) -> int:
    return NAMES.index(result.scenario) if result.scenario in NAMES else len(NAMES)


def read(directory: Path) -> list[Result]:
    """Return the results below *directory* in the paper's order.

    :raises ResultError: there is none, or files are wrong: one line for each
    """
    results, wrong = [], []
    for source in find(directory):
        try:
            # By today's claims, whatever was judged when it was run.
            results.append(judged(load(source)))
        except ResultError as error:
            wrong.append(str(error))
    if wrong:
        raise ResultError("\n".join(wrong))
    if not results:
        raise ResultError(f"{directory}: no NAME/{FILE} in it; mptcp-bench run NAME makes one")
    return sorted(results, key=_position)


def write_report(directory: Path, target: Path) -> tuple[str, ...]:
    """Write the page of all results below *directory* into *target*, and return the names of those that are missing.

    Figures are drawn from the results, so that they are never older.

    :raises ResultError: one line for each file that is wrong, or that there is none
    :raises OSError: *target* cannot be written
    """
    results = read(directory)
    figures = {n: svg(result) for n, result in enumerate(results) if any(run.valid for run in result.runs)}
    page = report(results, figures)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page)
    return tuple(name for name, _ in _missing(results))
