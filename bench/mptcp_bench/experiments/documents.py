"""From what an experiment of ours returns to the document that is its result file. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rich.table import Table as RichTable
from rich.text import Text

from ..document import ExperimentDocument, Table, finite
from ..provenance import Provenance
from . import Experiment, Result
from .scene import AimsTable


def document_of(
    experiment: Experiment,
    result: Result,
    provenance: Provenance,
    options: Mapping[str, str],
    *,
    seed: int,
    quick: bool,
) -> ExperimentDocument:
    """Return the document of a run of *experiment* with *options*."""
    # What the aims say already is not said twice.
    besides = (table for table in result.tables if not (result.aims and isinstance(table, AimsTable)))
    return ExperimentDocument(
        provenance=provenance,
        experiment=experiment.name,
        title=experiment.summary,
        parameters=dict(options),
        seed=seed,
        complete=True,
        quick=quick,
        failures=result.failures,
        aims=tuple(aim.judged() for aim in result.aims),
        tables=tables_of(besides),
        pictures=tuple(picture.name for picture in result.pictures),
        data=finite(result.data),
    )


def tables_of(tables: Iterable[RichTable]) -> tuple[Table, ...]:
    """Return *tables* as words, each with a key: the title's first words, and a number where two are equal."""
    found: dict[str, Table] = {}
    for table in tables:
        caption = _words(table.title)
        first = re.split("[,:]", caption)[0].lower()
        key = stem = re.sub("[^a-z0-9]+", "-", first).strip("-") or "table"
        number = 1
        while key in found:
            number += 1
            key = f"{stem}-{number}"
        columns = [[_words(cell) for cell in column.cells] for column in table.columns]
        rows = tuple(zip(*columns, strict=True))
        found[key] = Table(key, caption, tuple(_words(column.header) for column in table.columns), rows)
    return tuple(found.values())


def _words(text: object) -> str:
    """Return *text* without the markup that colours it in a terminal."""
    if text is None:
        return ""
    return text.plain if isinstance(text, Text) else Text.from_markup(str(text)).plain
