"""One HTML page of all results, the paper's and ours: verdicts, figures, tables, and where it all comes from.

The page holds everything (style, figures as SVG in data URLs) and fetches nothing, so that it can be sent and kept.
What is shown of a result is put into words by ``paper/section.py`` and ``experiments/section.py``; the template only
arranges it, and escapes every text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from . import document
from .document import AimVerdict, Document, ExperimentDocument, Judgement, ResultError
from .experiments import EXPERIMENTS
from .experiments import section as own_section
from .paper import scenarios
from .paper import section as paper_section
from .paper.results import Result
from .paper.verdicts import judged
from .sections import Section

TEMPLATE = "report.html.jinja"
ORDER = (*scenarios.NAMES, *EXPERIMENTS)


@dataclass(frozen=True, slots=True)
class Found:
    """A result file."""

    document: Document
    directory: Path
    """Where its pictures are."""


def load(source: Path) -> Document:
    """Read a result of the paper's or of ours, as its ``experiment`` says.

    :raises ResultError: one line for people: file, key, value
    """
    text = document.read_bytes(source)
    name = None
    with suppress(ValueError, AttributeError):
        name = json.loads(text).get("experiment")
    if name in scenarios.NAMES:
        # By today's claims, whatever was judged when it was run.
        return judged(document.from_json(text, str(source), Result))
    return document.from_json(text, str(source), ExperimentDocument)


def read(directory: Path) -> list[Found]:
    """Return the results below *directory*, the paper's first.

    :raises ResultError: there is none, or files are wrong: one line for each
    """
    found, wrong = [], []
    for source in document.find(directory):
        try:
            found.append(Found(load(source), source.parent))
        except ResultError as error:
            wrong.append(str(error))
    if wrong:
        raise ResultError("\n".join(wrong))
    if not found:
        raise ResultError(f"{directory}: no NAME/{document.FILE} in it; mptcp-bench run NAME makes one")
    return sorted(found, key=lambda each: _position(each.document.experiment))


def _position(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def section(found: Found) -> Section:
    """Return a result in words."""
    if isinstance(found.document, Result):
        return paper_section.section(found.document)
    assert isinstance(found.document, ExperimentDocument)
    return own_section.section(found.document, found.directory)


def missing(there: Iterable[str]) -> tuple[str, ...]:
    """Return the experiments, the paper's and ours, that are not *there*."""
    names = set(there)
    return tuple(name for name in ORDER if name not in names)


def report(found: Sequence[Found]) -> str:
    """Return the page for *found*, in that order."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sections = [(f"{each.document.experiment}-{n}", section(each)) for n, each in enumerate(found)]
    claims = Counter(claim.verdict for _, each in sections for claim in each.claims)
    aims = Counter(aim.verdict for _, each in sections for aim in each.aims)
    return environment.get_template(TEMPLATE).render(
        papers=[each for each in sections if isinstance(each[1].document, Result)],
        ours=[each for each in sections if not isinstance(each[1].document, Result)],
        missing=missing(each.document.experiment for each in found),
        claims=[(verdict, claims[verdict]) for verdict in get_args(Judgement)],
        aims=[(verdict, aims[verdict]) for verdict in get_args(AimVerdict)],
    )


def write_report(directory: Path, target: Path) -> tuple[str, ...]:
    """Write the page of all results below *directory* into *target*, and return the names of those that are missing.

    The paper's figures are drawn from the results, so that they are never older; ours are those that the run left.

    :raises ResultError: one line for each file that is wrong, or that there is none
    :raises OSError: *target* cannot be written
    """
    found = read(directory)
    page = report(found)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page)
    return missing(each.document.experiment for each in found)
