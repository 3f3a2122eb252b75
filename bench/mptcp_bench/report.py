# SPDX-License-Identifier: GPL-2.0-or-later
"""Creates one HTML page with the results of the paper's experiments and our own: verdicts, figures, tables, provenance.

The page is self-contained (styles, and figures in data URLs) and fetches nothing, so that it can be sent and kept. The
template arranges the texts and escapes them. The page shows the results below one directory, or all results that are
stored in docs/results.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import get_args

from . import result_file
from .doc_tables import DOCS, read_kept
from .experiments import EXPERIMENTS
from .paper import PAPER
from .result_file import AimVerdict, ExperimentResult, Judgement, ResultError

TEMPLATE = "report.html.jinja"
ALL_EXPERIMENTS = PAPER | EXPERIMENTS
KEPT_PICTURES = (".", "paper")
"""Directories within docs/ that contain the pictures of the stored results."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """A result and its figures."""

    result: ExperimentResult
    label: str
    figures: tuple[str, ...] = ()
    """Data URLs of pictures."""

    @classmethod
    def of(cls, result: ExperimentResult, label: str, pictures: Sequence[Path]) -> Chapter:
        """Return the chapter with those *pictures*, in SVG or PNG, that exist."""
        kinds = {".svg": "svg+xml", ".png": "png"}
        files = ((kinds[file.suffix], file.read_bytes()) for file in pictures if file.is_file())
        return cls(result, label, tuple(f"data:image/{kind};base64,{b64encode(data).decode()}" for kind, data in files))

    @property
    def explanation(self) -> list[str]:
        """How the experiment measures, in paragraphs."""
        experiment = ALL_EXPERIMENTS.get(self.result.experiment)
        text = experiment.explanation.replace("``", "").replace("*", "") if experiment else ""
        return [" ".join(each.split()) for each in text.split("\n\n") if each]


def render_page(chapters: Sequence[Chapter]) -> str:
    """Return the page with *chapters*: the paper's experiments first, and ours in the order of ``mptcp-bench list``."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["asdict"] = asdict
    order = {name: index for index, name in enumerate(ALL_EXPERIMENTS)}
    in_order = sorted(chapters, key=lambda each: (order.get(each.result.experiment, len(order)), each.label))
    return environment.get_template(TEMPLATE).render(
        chapters=[(f"{each.result.experiment}-{n}", each) for n, each in enumerate(in_order)],
        missing=experiments_without_chapter(chapters),
        aims=[aim for each in chapters for aim in each.result.aims],
        groups={"claims of the paper": get_args(Judgement), "own aims": get_args(AimVerdict)},
    )


def experiments_without_chapter(chapters: Sequence[Chapter]) -> tuple[str, ...]:
    """Return the names of the experiments that have no chapter."""
    return tuple(name for name in ALL_EXPERIMENTS if name not in {each.result.experiment for each in chapters})


def chapters_from_runs(directory: Path) -> list[Chapter]:
    """Return the results below *directory*, with the pictures that the runs drew. Raises ResultError."""
    chapters = []
    for source in sorted(directory.glob(f"*/{result_file.FILE}")):
        found = result_file.load(source)
        pictures = [source.with_name(f"{Path(name).name}.svg") for name in found.pictures]
        absent = [f"The picture {file.name} is missing." for file in pictures if not file.is_file()]
        chapters.append(Chapter.of(replace(found, notes=(*found.notes, *absent)), found.experiment, pictures))
    if not chapters:
        raise ResultError(f"{directory}: it contains no NAME/{result_file.FILE}; mptcp-bench run NAME creates one")
    return chapters


def chapters_from_docs(docs: Path = DOCS) -> list[Chapter]:
    """Return all results kept in *docs*. Raises ResultError."""
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
        chapters.append(Chapter.of(result, name, pictures))
    return chapters
