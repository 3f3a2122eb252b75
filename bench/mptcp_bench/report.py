# SPDX-License-Identifier: GPL-2.0-or-later
"""One HTML page of all results, the paper's and ours: verdicts, figures, tables and provenance.

The page is self-contained (styles, and figures as SVG in data URLs) and fetches nothing, so that it can be sent and
kept. ``paper/chapter.py`` turns a result of the paper into text. The template only arranges and escapes text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from . import result_file
from .experiments import EXPERIMENTS
from .paper import chapter as paper_chapter
from .paper import scenarios
from .paper.results import PaperResult
from .paper.verdicts import judged
from .report_model import Chapter, Figure, word
from .result_file import AimVerdict, ExperimentResult, Judgement, Result, ResultError

TEMPLATE = "report.html.jinja"
ORDER = (*scenarios.NAMES, *EXPERIMENTS)


@dataclass(frozen=True, slots=True)
class FoundResult:
    """A result that was read, and its directory."""

    result: Result
    directory: Path
    """The directory of the result file, which also has its pictures."""


def load(source: Path) -> Result:
    """Read a result, the paper's or ours. Raises ResultError, whose text is one line with file, key and value."""
    text = result_file.read_bytes(source)
    name = None
    with suppress(ValueError, AttributeError):
        name = json.loads(text).get("experiment")
    if name in scenarios.NAMES:
        # Judge by today's rules. The verdicts in the file may be by earlier ones.
        return judged(result_file.from_json(text, str(source), PaperResult))
    return result_file.from_json(text, str(source), ExperimentResult)


def read(directory: Path) -> list[FoundResult]:
    """Return the results below *directory*, the paper's first. Raises ResultError if a file is wrong or none exists."""
    found, wrong = [], []
    for source in result_file.find(directory):
        try:
            found.append(FoundResult(load(source), source.parent))
        except ResultError as error:
            wrong.append(str(error))
    if wrong:
        raise ResultError("\n".join(wrong))
    if not found:
        raise ResultError(f"{directory}: no NAME/{result_file.FILE} in it; mptcp-bench run NAME makes one")
    return sorted(found, key=lambda each: position(each.result.experiment))


def position(name: str) -> int:
    """Return the place of the experiment *name* in the report, in which the paper's experiments come first."""
    return ORDER.index(name) if name in ORDER else len(ORDER)


def chapter(found: FoundResult) -> Chapter:
    """Return the report's chapter about a result."""
    if isinstance(found.result, PaperResult):
        return paper_chapter.chapter(found.result)
    assert isinstance(found.result, ExperimentResult)
    return _own_chapter(found.result, found.directory)


def _own_chapter(found: ExperimentResult, directory: Path) -> Chapter:
    figures, warnings = [], []
    for name in found.pictures:
        picture = directory / f"{Path(name).name}.svg"
        try:
            figures.append(Figure(picture.read_bytes(), f"{found.experiment}: {found.title}"))
        except OSError as error:
            warnings.append(f"The picture {picture.name} cannot be shown: {error.strerror}.")
    return Chapter(
        result=found,
        label=found.experiment,
        explanation=explanation(found.experiment),
        aims=found.aims,
        figures=tuple(figures),
        warnings=tuple(warnings),
        tables=found.tables,
        parameters=tuple((name, word(value)) for name, value in found.parameters.items()),
    )


def explanation(name: str) -> tuple[str, ...]:
    """Return how our experiment *name* measures, in paragraphs; empty for another experiment."""
    text = EXPERIMENTS[name].explanation.replace("``", "").replace("*", "") if name in EXPERIMENTS else ""
    return tuple(" ".join(each.split()) for each in text.split("\n\n") if each)


def missing(there: Iterable[str]) -> tuple[str, ...]:
    """Return the names of all experiments, the paper's and ours, that are not among *there*."""
    names = set(there)
    return tuple(name for name in ORDER if name not in names)


def report(found: Sequence[FoundResult]) -> str:
    """Return the page with the results *found*, in the given order."""
    return page([chapter(each) for each in found])


def page(shown: Sequence[Chapter]) -> str:
    """Return the page with the chapters *shown*, in the given order."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    chapters = [(f"{each.result.experiment}-{n}", each) for n, each in enumerate(shown)]
    claims = Counter(claim.verdict for _, each in chapters for claim in each.claims)
    aims = Counter(aim.verdict for _, each in chapters for aim in each.aims)
    return environment.get_template(TEMPLATE).render(
        papers=[each for each in chapters if each[1].result.experiment in scenarios.NAMES],
        ours=[each for each in chapters if each[1].result.experiment not in scenarios.NAMES],
        missing=missing(each.result.experiment for each in shown),
        claims=[(verdict, claims[verdict]) for verdict in get_args(Judgement)],
        aims=[(verdict, aims[verdict]) for verdict in get_args(AimVerdict)],
    )


def write_report(directory: Path, target: Path) -> tuple[str, ...]:
    """Write the page of all results below *directory* into *target*. Return the names of missing experiments.

    The paper's figures are drawn anew from the results. Our figures are the files that the run wrote.

    :raises ResultError: a file is wrong (the text has a line for each), or no result exists
    :raises OSError: *target* cannot be written
    """
    found = read(directory)
    text = report(found)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return missing(each.result.experiment for each in found)
