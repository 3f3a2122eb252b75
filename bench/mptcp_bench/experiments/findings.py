# SPDX-License-Identifier: GPL-2.0-or-later
"""An experiment's findings, and their conversion to a result file. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from ..result_file import ExperimentResult, Provenance, Table, finite
from .aims import Aim, AimsTable, missed


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure's name, and a function that draws the figure into a file in the format of its suffix."""

    name: str
    draw: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that an experiment measured."""

    tables: tuple[RichTable, ...]
    data: dict[str, Any]
    """The contents of the tables, and further data, for the JSON file."""
    failures: tuple[str, ...] = field(default=())
    """Measurements that failed, and errors that no aim covers."""
    pictures: tuple[Picture, ...] = ()
    aims: tuple[Aim, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> tuple[str, ...]:
        """Reasons why the experiment fails: missed aims, and failures."""
        return (*missed(self.aims), *self.failures)


def result_of(
    name: str,
    title: str,
    findings: Findings,
    provenance: Provenance,
    options: Mapping[str, str],
    *,
    seed: int,
    quick: bool,
) -> ExperimentResult:
    """Return the result of a run of the experiment *name* with *options*."""
    # Exclude tables of aims, because the result contains the aims anyway.
    others = (table for table in findings.tables if not (findings.aims and isinstance(table, AimsTable)))
    return ExperimentResult(
        provenance=provenance,
        experiment=name,
        title=title,
        parameters=dict(options),
        seed=seed,
        complete=True,
        quick=quick,
        notes=findings.notes,
        failures=findings.failures,
        aims=tuple(_finite(aim) for aim in findings.aims),
        tables=tables_of(others),
        pictures=tuple(picture.name for picture in findings.pictures),
        data=finite(findings.data),
    )


def _finite(aim: Aim) -> Aim:
    value = None if aim.value is None else finite(float(aim.value))
    return replace(aim, value=value)


def tables_of(tables: Iterable[RichTable]) -> tuple[Table, ...]:
    """Return *tables* as text, each with a key: the title's first words, with a number if another table has it."""
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
    if text is None:
        return ""
    return text.plain if isinstance(text, Text) else Text.from_markup(str(text)).plain
