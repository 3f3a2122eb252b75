# SPDX-License-Identifier: GPL-2.0-or-later
"""Tables of an experiment. Their columns define the texts, the colours and the aims.

A :class:`Row` has the measurements of one cell under one variant. A :class:`Column` computes one value from these
measurements, and defines how to show the value and which bounds it has. A column without a heading has only an aim; a
column without bounds has only a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from math import isfinite, isnan
from typing import Any, Generic, Literal, TypeVar, cast

from rich.table import Table as RichTable

from ..statistics import fmean, mean_bounds, median
from .findings import Aim
from .tables import coloured, mean, new_table

_COLUMN = "column"
"""Key in the metadata of fields that are also columns."""

C = TypeVar("C")
M = TypeVar("M")
Statistic = Literal["mean", "median", "least", "most", "upper bound"]
STATISTICS: dict[Statistic, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "median": median,
    "least": min,
    "most": max,
    "upper bound": lambda values: mean_bounds(values)[1],
}
"""Functions that combine the values of several runs. The upper bound is the one-sided 95 % bound of the mean."""


@dataclass(frozen=True, slots=True)
class Turn(Generic[C]):
    """One planned run: a cell, a variant, and the number of the run among the runs of both, from 1."""

    cell: C
    variant: str
    number: int

    def __str__(self) -> str:
        return f"{self.cell}, {self.variant}" if self.variant else str(self.cell)


def for_pictures() -> Any:
    """Return a field of a measurement that only pictures need; result files do not contain it."""
    return field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Run(Generic[C, M]):
    """The measurement of a turn. If a run has several measurements, each is a *part* of the run."""

    turn: Turn[C]
    measured: M
    part: str = ""

    def record(self) -> dict[str, Any]:
        """Return the run's data for the result file."""
        turn, measured = self.turn, cast(Any, self.measured)
        labels = {"cell": str(turn.cell), "variant": turn.variant, "part": self.part, "run": turn.number}
        values = {each.name: getattr(measured, each.name) for each in fields(measured) if each.repr}
        return {name: label for name, label in labels.items() if label != ""} | values


class Results(Generic[C, M]):
    """All runs of an experiment, and the turns that were planned."""

    def __init__(
        self,
        turns: Iterable[Turn[C]],
        runs: Iterable[Run[C, M]],
        parts: Callable[[C], Sequence[str]] = lambda cell: ("",),
    ) -> None:
        """*parts* returns the parts of which each run of a cell must consist."""
        self.turns, self.runs, self._parts = tuple(turns), tuple(runs), parts
        self._measured: dict[tuple[C, str, str], list[M]] = {}
        for run in self.runs:
            self._measured.setdefault((run.turn.cell, run.turn.variant, run.part), []).append(run.measured)

    @property
    def cells(self) -> list[C]:
        return list(dict.fromkeys(turn.cell for turn in self.turns))

    def of(self, cell: C, variant: str = "", part: str = "") -> list[M]:
        """Return the measurements of one *part* of a *cell* under one *variant*."""
        return self._measured.get((cell, variant, part), [])

    def rows(self) -> list[Row[C, M]]:
        """Return the planned rows, in the order of the plan."""
        planned = ((turn.cell, turn.variant, part) for turn in self.turns for part in self._parts(turn.cell))
        return [Row(self, *key) for key in dict.fromkeys(planned)]


@dataclass(frozen=True, slots=True)
class Row(Generic[C, M]):
    """The measurements of one cell under one variant: one line of a table."""

    results: Results[C, M]
    cell: C
    variant: str
    part: str = ""

    @property
    def measured(self) -> list[M]:
        return self.results.of(self.cell, self.variant, self.part)

    def other_runs(self, variant: str | None = None, part: str | None = None) -> list[M]:
        """Return the measurements of this cell under another *variant*, or of another *part*."""
        key = (self.variant if variant is None else variant, self.part if part is None else part)
        return self.results.of(self.cell, *key)

    @property
    def planned(self) -> int:
        """Number of planned runs of the cell under this variant."""
        return self._count(self.results.turns)

    @property
    def completed(self) -> int:
        """Number of these runs that were measured."""
        return self._count({run.turn for run in self.results.runs})

    def _count(self, turns: Iterable[Turn[C]]) -> int:
        return sum((turn.cell, turn.variant) == (self.cell, self.variant) for turn in turns)

    def values(self, name: str) -> list[float]:
        """Return the attribute *name* of each measurement, or its length if it is a tuple; nothing for None."""
        values = [value for each in self.measured if (value := getattr(each, name)) is not None]
        return [float(len(value) if isinstance(value, tuple) else value) for value in values]

    def __str__(self) -> str:
        return ", ".join(filter(None, (str(self.cell), self.variant, self.part)))


Bound = float | Callable[[Row[Any, Any]], float | None] | None
"""A bound of an aim: one value for all rows, or a function that returns a row's bound; None if there is no bound."""


def of_cell(bound: Callable[[Any], float | None]) -> Bound:
    """Return a bound that depends only on the row's cell."""
    return lambda row: bound(row.cell)


def _always(row: Row[Any, Any]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Column(Generic[C, M]):
    """One value of a row: how it is computed, how it is shown, and which bounds it must be within."""

    heading: str
    """Heading in the table; with an empty heading, the value is not shown."""
    of: str | Callable[[Row[C, M]], Sequence[float]]
    """Attribute of the measurements, or a function that returns a row's values. A row without values has no aim."""
    by: Statistic = "mean"
    """How the values of several runs are combined."""
    aim: str | Callable[[Row[C, M]], str] = ""
    """The aim's name, if it differs from the heading."""
    unit: str = ""
    scale: float = 1.0
    """Factor between the values that *of* returns and the values that are shown. Bounds are scaled values."""
    digits: int = 2
    least: Bound = None
    most: Bound = None
    judged: Callable[[Row[C, M]], bool] = _always
    """Returns whether the aim applies to a row."""
    text: Callable[[Row[C, M]], str] | None = None
    """Returns the text for the table, in place of the value."""

    @property
    def has_bounds(self) -> bool:
        return self.least is not None or self.most is not None

    def values(self, row: Row[C, M]) -> list[float]:
        values = row.values(self.of) if isinstance(self.of, str) else self.of(row)
        return [value * self.scale for value in values]

    def value(self, row: Row[C, M]) -> float | None:
        """Return the value of *row*; None if the row has no values."""
        values = self.values(row)
        return STATISTICS[self.by](values) if values else None

    def verdict(self, row: Row[C, M]) -> Aim | None:
        """Return the aim of *row*; None if the row is not judged, the column has no bounds, or there are no values."""
        if not self.has_bounds or not self.judged(row) or (value := self.value(row)) is None:
            return None
        name, least, most = (each(row) if callable(each) else each for each in (self.aim, self.least, self.most))
        return Aim(str(name or self.heading), value, self.unit, cast(Any, least), cast(Any, most))

    def cell_text(self, row: Row[C, M]) -> str:
        """Return the text for the table, in the colour of the verdict; empty without values or if all are NaN."""
        if self.text is not None:
            return coloured(self.text(row), self.verdict(row))
        values = self.values(row)
        if not values or all(map(isnan, values)):
            return ""
        value = STATISTICS[self.by](values)
        text = f"{value:,.{self.digits}f}" if isfinite(value) else "never"
        return coloured(mean(values, digits=self.digits) if self.by == "mean" else text, self.verdict(row))


def figure(heading: str, default: Any = MISSING, **column: Any) -> Any:
    """Return a field of a measurement that is also a column. *column* has more arguments of :class:`Column`."""
    return field(default=default, metadata={_COLUMN: (heading, column)})


def columns_of(kind: type) -> list[Column[Any, Any]]:
    """Return the columns of the fields of *kind* that :func:`figure` declares."""
    declared = ((each.name, *each.metadata[_COLUMN]) for each in fields(kind) if _COLUMN in each.metadata)
    return [Column(heading, name, **column) for name, heading, column in declared]


Label = tuple[str, Callable[[Row[Any, Any]], str]]
"""A column that identifies rows: its heading, and a function that returns its text for a row."""
CELL: Label = ("cell", lambda row: str(row.cell))
VARIANT: Label = ("variant", lambda row: row.variant)
RUNS: Column[Any, Any] = Column("runs", lambda row: [len(row.measured)], digits=0)


@dataclass(frozen=True, slots=True)
class Table(Generic[C, M]):
    """A table with a line for each row that has measurements; if *transposed*, each row is a column instead."""

    title: str
    columns: Sequence[Column[C, M]]
    labels: Sequence[Label] = (CELL, VARIANT)
    of: Callable[[Row[C, M]], bool] = _always
    """Returns whether the table contains a row. The columns have aims only for these rows."""
    transposed: bool = False
    wrapped: Sequence[str] = ()
    """Headings of the columns whose text wraps."""

    def render(self, results: Results[C, M]) -> RichTable | None:
        """Return the table; None if no row has measurements."""
        rows = [row for row in results.rows() if self.of(row) and row.measured]
        if not rows:
            return None
        return self._render_transposed(rows) if self.transposed else self._render_lines(rows)

    def _render_lines(self, rows: Sequence[Row[C, M]]) -> RichTable:
        headings = [heading for heading, _ in self.labels]
        columns = [column for column in self.columns if column.heading]
        table = new_table(self.title, [*headings, *(column.heading for column in columns)], headings, self.wrapped)
        before = ""
        for row in rows:
            first, *labels = (text(row) for _, text in self.labels)
            # An empty first cell repeats the first cell of the line above.
            table.add_row("" if first == before else first, *labels, *(column.cell_text(row) for column in columns))
            before = first
        return table

    def _render_transposed(self, rows: Sequence[Row[C, M]]) -> RichTable:
        _, text = self.labels[0]
        has_aims = any(column.has_bounds for column in self.columns)
        head = ["figure", *(["aim"] if has_aims else []), *map(text, rows)]
        # All columns wrap, because the names of cells may be long.
        table = new_table(self.title, head, ["figure"], head)
        for column in self.columns:
            aims, texts = [column.verdict(row) for row in rows], list(map(column.cell_text, rows))
            if not any(texts):
                continue
            bounds = {aim.wanted for aim in aims if aim is not None}
            if len(bounds) > 1:
                texts = [f"{value} ({aim.wanted})" if aim else value for value, aim in zip(texts, aims, strict=True)]
            heading, unit = column.heading or str(column.aim), column.unit.strip()
            if unit and heading != unit and not heading.endswith(f" {unit}"):
                heading = f"{heading}, {unit}"
            common_bound = bounds.pop() if len(bounds) == 1 else ""
            table.add_row(heading, *([common_bound] if has_aims else []), *texts)
        return table


def by_round(results: Results[C, M], cell: C, part: str = "") -> dict[int, M]:
    """Return the measurements of a *cell* without variants, by the number of the run."""
    return {run.turn.number: run.measured for run in results.runs if (run.turn.cell, run.part) == (cell, part)}
