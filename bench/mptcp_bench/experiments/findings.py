# SPDX-License-Identifier: GPL-2.0-or-later
"""The findings of an experiment, and their conversion to a result file."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable
from rich.text import Text

from ..result_file import ExperimentResult, Table, Verdict

Aim = Verdict
"""A verdict that is decided by bounds."""


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
    """The single measurements, for the result file."""
    failures: tuple[str, ...] = ()
    """Measurements that failed, and errors that no aim covers."""
    pictures: tuple[Picture, ...] = ()
    aims: tuple[Aim, ...] = ()
    notes: tuple[str, ...] = ()
    other_aims: RichTable | None = None
    """Table of the aims that no other table shows. The result file lacks it, because the file contains all aims."""

    @property
    def wrong(self) -> tuple[str, ...]:
        """Reasons why the experiment fails: missed aims, and failed measurements."""
        return (*(str(aim) for aim in self.aims if not aim.met), *self.failures)

    def added_to(self, result: ExperimentResult) -> ExperimentResult:
        """Return *result*, which describes the run, with these findings."""
        return replace(
            result,
            notes=self.notes,
            failures=self.failures,
            aims=self.aims,
            tables=tables_of(self.tables),
            pictures=tuple(picture.name for picture in self.pictures),
            data=self.data,
        )


def tables_of(tables: Iterable[RichTable]) -> tuple[Table, ...]:
    """Return *tables* as text. A table's key is its title up to a comma or colon, and a number if the key repeats."""
    converted, repeated = [], Counter[str]()
    for table in tables:
        caption = _plain(table.title)
        key = re.sub("[^a-z0-9]+", "-", re.split("[,:]", caption)[0].lower()).strip("-")
        repeated[key] += 1
        if repeated[key] > 1:
            key = f"{key}-{repeated[key]}"
        rows = tuple(zip(*(map(_plain, column.cells) for column in table.columns), strict=True))
        converted.append(Table(key, caption, tuple(_plain(column.header) for column in table.columns), rows))
    return tuple(converted)


def _plain(text: object) -> str:
    """Return *text* without markup."""
    return text.plain if isinstance(text, Text) else Text.from_markup(str(text or "")).plain
