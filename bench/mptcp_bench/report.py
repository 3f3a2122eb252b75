# SPDX-License-Identifier: GPL-2.0-or-later
"""One HTML page of results, the paper's and ours: verdicts, figures, tables and provenance.

The page is self-contained (styles, and figures in data URLs) and fetches nothing, so that it can be sent and kept. The
template arranges and escapes texts. The results are those below a directory, or all kept results in docs/results.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from . import result_file
from .doc_tables import DOCS, KEPT, read_kept
from .experiments import EXPERIMENTS
from .paper import scenarios
from .result_file import AimVerdict, ExperimentResult, Judgement, ResultError, Scalar, Verdict

TEMPLATE = "report.html.jinja"
ORDER = (*scenarios.NAMES, *EXPERIMENTS)
KEPT_PICTURES = (".", "paper")
"""Directories of the kept results' pictures within docs/."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture as a data URL, and its text alternative."""

    url: str
    alternative: str


@dataclass(frozen=True, slots=True)
class Chapter:
    """The texts, tables and figures about one result."""

    result: ExperimentResult
    label: str
    figures: tuple[Figure, ...] = ()
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: ExperimentResult, label: str, pictures: Sequence[Path]) -> Chapter:
        """Return the chapter with the *pictures*, in SVG or PNG; a picture that cannot be read becomes a warning."""
        figures, warnings = [], []
        for file in pictures:
            kind = "svg+xml" if file.suffix == ".svg" else "png"
            try:
                url = f"data:image/{kind};base64,{b64encode(file.read_bytes()).decode()}"
            except OSError as error:
                warnings.append(f"The picture {file.name} cannot be shown: {error.strerror}.")
            else:
                figures.append(Figure(url, f"{label}: {result.title}"))
        return cls(result, label, tuple(figures), tuple(warnings))

    @property
    def claims(self) -> list[Verdict]:
        return [each for each in self.result.aims if each.verdict in get_args(Judgement)]

    @property
    def aims(self) -> list[Verdict]:
        return [each for each in self.result.aims if each.verdict in get_args(AimVerdict)]

    @property
    def counts(self) -> Counter[str]:
        """Number of aims and claims by verdict."""
        return Counter(each.verdict for each in self.result.aims)

    @property
    def explanation(self) -> list[str]:
        """How an experiment of ours measures, in paragraphs."""
        name = self.result.experiment
        text = EXPERIMENTS[name].explanation.replace("``", "").replace("*", "") if name in EXPERIMENTS else ""
        return [" ".join(each.split()) for each in text.split("\n\n") if each]

    @property
    def pairs(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Parameters and provenance, as names and values."""
        groups = {"Parameters": self.result.parameters, "Where it comes from": asdict(self.result.provenance)}
        return [(title, [(name, shown(value)) for name, value in of.items()]) for title, of in groups.items() if of]


def shown(value: Scalar) -> str:
    """Return a parameter's value as text."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else str(value)


def page(chapters: Sequence[Chapter]) -> str:
    """Return the page with *chapters*: the paper's experiments first, and ours in the order of ``mptcp-bench list``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    order = {name: index for index, name in enumerate(ORDER)}
    in_order = sorted(chapters, key=lambda each: (order.get(each.result.experiment, len(ORDER)), each.label))
    counts = sum((each.counts for each in chapters), Counter[str]())
    groups = {"claims of the paper": get_args(Judgement), "aims of ours": get_args(AimVerdict)}
    return environment.get_template(TEMPLATE).render(
        chapters=[(f"{each.result.experiment}-{n}", each) for n, each in enumerate(in_order)],
        missing=missing(chapters),
        verdicts=[(kind, [(word, counts[word]) for word in words]) for kind, words in groups.items()],
        order=[*get_args(Judgement), *get_args(AimVerdict)],
    )


def missing(chapters: Sequence[Chapter]) -> tuple[str, ...]:
    """Return the names of all experiments, the paper's and ours, without a chapter."""
    names = {each.result.experiment for each in chapters}
    return tuple(name for name in ORDER if name not in names)


def chapters_of_runs(directory: Path) -> list[Chapter]:
    """Return the results below *directory*, with the pictures that the runs drew.

    :raises ResultError: a file is wrong (the text has a line for each), or no result exists
    """
    chapters, errors = [], []
    for source in result_file.find(directory):
        try:
            found = result_file.load(source)
        except ResultError as error:
            errors.append(str(error))
        else:
            pictures = [source.with_name(f"{Path(name).name}.svg") for name in found.pictures]
            chapters.append(Chapter.of(found, found.experiment, pictures))
    if errors:
        raise ResultError("\n".join(errors))
    if not chapters:
        raise ResultError(f"{directory}: it contains no NAME/{result_file.FILE}; mptcp-bench run NAME creates one")
    return chapters


def chapters_of_kept(docs: Path = DOCS) -> list[Chapter]:
    """Return all results kept in *docs*. Raises ResultError if there is none."""
    chapters = []
    for name, found in read_kept(docs).items():
        notes = list(found.notes)
        if found.earlier_rule:
            notes.append(f"Judged by an earlier rule: {found.earlier_rule}.")
        if found.replacement:
            notes.append(f"This experiment no longer exists: {found.replacement}.")
        tables = tuple(replace(table, caption=table.caption or table.key.capitalize()) for table in found.tables)
        pictures = [docs / directory / f"{name}.png" for directory in KEPT_PICTURES]
        result = replace(found, notes=tuple(notes), tables=tables)
        chapters.append(Chapter.of(result, name, [each for each in pictures if each.is_file()]))
    if not chapters:
        raise ResultError(f"{docs / KEPT}: it contains no result")
    return chapters
