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
from typing import Literal, get_args

from . import result_file
from .doc_tables import DOCS, KEPT, read_kept
from .earlier_rules import REPLACED, earlier_rule
from .experiments import EXPERIMENTS
from .paper import PAPER
from .result_file import AimVerdict, ExperimentResult, Judgement, ResultError, Scalar, Verdict

TEMPLATE = "report.html.jinja"
ALL_EXPERIMENTS = PAPER | EXPERIMENTS
ORDER = tuple(ALL_EXPERIMENTS)
KEPT_PICTURES = (".", "paper")
"""Directories of the kept results' pictures within docs/."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture and its text alternative."""

    image: bytes
    alternative: str
    form: Literal["svg+xml", "png"] = "svg+xml"

    @property
    def url(self) -> str:
        """The picture as a data URL, so that the page fetches nothing."""
        return f"data:image/{self.form};base64," + b64encode(self.image).decode()


@dataclass(frozen=True, slots=True)
class Chapter:
    """The texts, tables and figures about one result."""

    result: ExperimentResult
    label: str
    figures: tuple[Figure, ...] = ()
    warnings: tuple[str, ...] = ()

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
        """How the experiment measures, in paragraphs."""
        name = self.result.experiment
        text = ALL_EXPERIMENTS[name].explanation.replace("``", "").replace("*", "") if name in ORDER else ""
        return [" ".join(each.split()) for each in text.split("\n\n") if each]

    @property
    def pairs(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """Parameters and provenance, as names and values."""
        groups = {"Parameters": self.result.parameters, "Where it comes from": asdict(self.result.provenance)}
        return [(title, [(name, word(value)) for name, value in of.items()]) for title, of in groups.items() if of]


def word(value: Scalar) -> str:
    """Return a parameter's value as text for people."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}".replace(",", "\u202f") if isinstance(value, int) else str(value)


def _position(found: ExperimentResult) -> int:
    """Return the place of *found* in the report, in which the paper's experiments come first."""
    return ORDER.index(found.experiment) if found.experiment in ORDER else len(ORDER)


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
    counts = sum((each.counts for each in shown), Counter[str]())
    groups = {"claims of the paper": get_args(Judgement), "aims of ours": get_args(AimVerdict)}
    return environment.get_template(TEMPLATE).render(
        chapters=[(f"{each.result.experiment}-{n}", each) for n, each in enumerate(shown)],
        missing=missing([each.result for each in shown]),
        verdicts=[(of, [(word, counts[word]) for word in words]) for of, words in groups.items()],
        order=[*get_args(Judgement), *get_args(AimVerdict)],
    )


def missing(there: Sequence[ExperimentResult]) -> tuple[str, ...]:
    """Return the names of all experiments, the paper's and ours, that are not among *there*."""
    names = {each.experiment for each in there}
    return tuple(name for name in ORDER if name not in names)


def write_report(directory: Path, target: Path) -> tuple[str, ...]:
    """Write the page of all results below *directory* into *target*. Return the names of missing experiments.

    The figures are the files that the runs wrote.

    :raises ResultError: a file is wrong (the text has a line for each), or no result exists
    :raises OSError: *target* cannot be written
    """
    found, wrong = [], []
    for source in result_file.find(directory):
        try:
            found.append((result_file.load(source), source.parent))
        except ResultError as error:
            wrong.append(str(error))
    if wrong:
        raise ResultError("\n".join(wrong))
    if not found:
        raise ResultError(f"{directory}: no NAME/{result_file.FILE} in it; mptcp-bench run NAME makes one")
    found.sort(key=lambda each: _position(each[0]))
    _write(target, [_chapter(*each) for each in found])
    return missing([result for result, _ in found])


def _chapter(found: ExperimentResult, directory: Path) -> Chapter:
    figures, warnings = [], []
    for name in found.pictures:
        picture = directory / f"{Path(name).name}.svg"
        try:
            figures.append(Figure(picture.read_bytes(), f"{found.experiment}: {found.title}"))
        except OSError as error:
            warnings.append(f"The picture {picture.name} cannot be shown: {error.strerror}.")
    return Chapter(found, found.experiment, tuple(figures), tuple(warnings))


def write_kept_report(target: Path, docs: Path = DOCS) -> tuple[str, ...]:
    """Write the page of all results kept in *docs* into *target*. Raises ResultError if none is kept, and OSError."""
    kept = read_kept(docs)
    if not kept:
        raise ResultError(f"{docs / KEPT}: no result is kept in it")
    order = sorted(kept, key=lambda name: (_position(kept[name]), name))
    _write(target, [_kept_chapter(name, kept[name], docs) for name in order])
    return ()


def _kept_chapter(name: str, found: ExperimentResult, docs: Path) -> Chapter:
    rule = earlier_rule(name, found)
    notes = (*found.notes, f"Judged by an earlier rule: {rule}.") if rule else found.notes
    if found.experiment in REPLACED:
        notes = (*notes, f"This experiment no longer exists: {REPLACED[found.experiment]}.")
    tables = tuple(replace(table, caption=table.caption or table.key.capitalize()) for table in found.tables)
    pictures = [docs / directory / f"{name}.png" for directory in KEPT_PICTURES]
    figures = [Figure(each.read_bytes(), f"{name}: {found.title}", "png") for each in pictures if each.is_file()]
    return Chapter(replace(found, notes=notes, tables=tables), name, tuple(figures))


def _write(target: Path, chapters: Sequence[Chapter]) -> None:
    text = page(chapters)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
