# SPDX-License-Identifier: GPL-2.0-or-later
"""The model of an experiment: a :class:`Scenario` is declared, and this module runs, tabulates and judges it.

An experiment consists of

- *settings*: a dataclass of ``parameters``, which defines ``--set``, its errors and ``mptcp-bench list``;
- *cells*: the combinations of settings to measure, each a hashable value whose ``str()`` names it in tables and aims;
- *variants*: the alternatives within a cell, such as our cap and a static class; the runs of variants alternate;
- *bed*: a context manager with the testbed and the services of one or more cells. It yields the testbed, or an object
  whose attribute ``testbed`` is the testbed;
- *measure*: one run of one variant in a bed, which returns a measurement: a flat dataclass of numbers;
- *tables* of ``columns``, which define texts, colours and aims; *verdicts*: further aims; *pictures*.

The runs of all cells that share a bed are interleaved: each round has one run of each cell and variant. A run that
fails, or in which a path was not emulated as configured, is repeated (:class:`Attempts`). If all attempts fail, the run
is missing, and an aim is missed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from typing import Any, Generic, TypeVar

from rich.console import Console

from mptcp_lab.testbed import EmulationError, TestbedError
from mptcp_lab.testbed.features import need

from .columns import Results, Row, Run, Table, Turn
from .findings import Aim, Findings, Picture
from .parameters import meanings, settings
from .tables import aims_table

S = TypeVar("S")
C = TypeVar("C", bound=Hashable)
B = TypeVar("B")
M = TypeVar("M")
T = TypeVar("T")
ATTEMPTS = 3
"""Maximum number of attempts of a measurement."""


class Attempts:
    """The attempts of an experiment's runs.

    If a path was not emulated as configured, the machine is the cause. Any other failure may be the product's. The next
    attempt must not hide it, so that each repetition after such a failure misses an aim.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._notes: list[str] = []
        self._faults = 0
        self.failures: list[str] = []
        """Measurements that failed, each with its error."""

    def try_run(self, run: Callable[[], T], name: str, limit: int) -> T | None:
        """Return the result of *run*; None if it raised TestbedError or ValueError *limit* times."""
        for number in range(1, limit + 1):
            try:
                return run()
            except (TestbedError, ValueError) as error:
                self._console.print(f"{name}: failed: {error}", style="dim", highlight=False)
                if number == limit:
                    self.failures.append(f"{name}: {error}")
                    break
                is_late = isinstance(error, EmulationError)
                reason = "the emulated paths" if is_late else "another reason"
                self._notes.append(f"repeated for {reason}: {name}: {error}")
                self._faults += not is_late
        return None

    def added_to(self, findings: Findings) -> Findings:
        """Return *findings* with the failed measurements, the repeated attempts, and the aim about them."""
        aim = Aim("attempts repeated, other than because of the emulated paths", self._faults, most=0)
        return replace(
            findings,
            failures=(*findings.failures, *self.failures),
            aims=(*findings.aims, aim),
            notes=(*findings.notes, *self._notes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(Generic[S, C, B, M]):
    """A declared experiment. ``mptcp-bench run`` calls :meth:`run`."""

    settings: type[S]
    needs: Sequence[str]
    """Features that the host must have (``testbed.features``)."""
    cells: Callable[[S], Sequence[C]]
    bed: Callable[[S, Sequence[C], int], AbstractContextManager[B]]
    """Builds the bed for cells that share a bed, with the seed of the emulated paths."""
    measure: Callable[[B, Turn[C]], M | Mapping[str, M]]
    """Makes a run. Returns its measurement, or several by the names of *parts*. Raises TestbedError or ValueError."""
    tables: Sequence[Table[C, M]]
    parts: Callable[[C], Sequence[str]] = lambda cell: ("",)
    """Names of a run's measurements, if it has several."""
    variants: Callable[[S, C], Sequence[str]] = lambda chosen, cell: ("",)
    runs: Callable[[Any, C, str], int] = lambda chosen, cell, variant: int(getattr(chosen, "runs", 1))
    """Number of runs of a variant: the option ``runs``; one if there is no such option."""
    shared_bed: Callable[[C], Hashable] = lambda cell: cell
    """Returns equal values for cells that share a bed. The value is the bed's name."""
    shuffled: bool = False
    """Whether the order within each round is random. The seed determines it."""
    attempts: int = ATTEMPTS
    """Maximum number of attempts of a run; one if a bed can be used for only one run."""
    check_host: Callable[[S], None] = lambda chosen: None
    """Raises an error if this host lacks something that the settings require in addition to *needs*."""
    skip_reason: Callable[[C], str | None] = lambda cell: None
    """Returns why a cell is left out on this host; None if it is measured."""
    name: Callable[[Row[C, M]], str] = str
    """Name of a row, which precedes the names of its aims."""
    verdicts: Callable[[Results[C, M]], Iterable[Aim]] = lambda results: ()
    """Aims that do not come from a column."""
    pictures: Callable[[Results[C, M]], Sequence[Picture]] = lambda results: ()

    @property
    def OPTIONS(self) -> dict[str, str]:
        """Meaning of each option."""
        return meanings(self.settings)

    def chosen(self, options: Mapping[str, str], quick: bool = False) -> S:
        """Return the settings that *options* choose. Raises OptionError."""
        return settings(self.settings, options, quick)

    def plan(self, chosen: S, seed: int = 1) -> list[Turn[C]]:
        """Return all runs. Runs of cells that share a bed are adjacent, round by round."""
        draw = random.Random(seed)
        beds: dict[Hashable, dict[tuple[C, str], int]] = {}
        for cell in self.cells(chosen):
            runs = {(cell, variant): self.runs(chosen, cell, variant) for variant in self.variants(chosen, cell)}
            beds.setdefault(self.shared_bed(cell), {}).update(runs)
        turns = []
        for bed in beds.values():
            for number in range(1, max(bed.values(), default=0) + 1):
                in_round = [Turn(*each, number) for each, runs in bed.items() if number <= runs]
                turns += draw.sample(in_round, len(in_round)) if self.shuffled else in_round
        return turns

    def run(self, console: Console, seed: int, quick: bool, options: Mapping[str, str]) -> Findings:
        """Run what *options* choose.

        :raises OptionError: an option is not valid
        :raises TestbedError: nothing could be measured
        """
        chosen = self.chosen(options, quick)
        planned = self.plan(chosen, seed)
        need(*self.needs)
        self.check_host(chosen)
        left_out = {turn.cell: why for turn in planned if (why := self.skip_reason(turn.cell)) is not None}
        notes = tuple(f"left out: {cell}: {why}" for cell, why in left_out.items())
        for line in notes:
            console.print(line, style="yellow", highlight=False)
        turns = [turn for turn in planned if turn.cell not in left_out]
        if not turns:
            raise TestbedError(f"there is nothing to measure; {'; '.join(notes)}")
        # Tables list the cells in their own order, even if the order of the runs was random.
        listed = [turn for turn in replace(self, shuffled=False).plan(chosen) if turn.cell not in left_out]
        attempts = Attempts(console)
        runs: list[Run[C, M]] = []
        numbers = count(1)
        for name, group in groupby(turns, lambda turn: self.shared_bed(turn.cell)):
            in_bed = list(group)
            cells = list(dict.fromkeys(turn.cell for turn in in_bed))
            try:
                with self.bed(chosen, cells, seed) as bed:
                    for turn in in_bed:
                        console.print(f"{next(numbers)} of {len(turns)}: {turn}", style="dim", highlight=False)
                        once = partial(self._once, bed, turn)
                        runs += attempts.try_run(once, str(turn), self.attempts) or []
            except TestbedError as error:
                if not runs:
                    raise
                attempts.failures.append(f"{cells[0] if len(cells) == 1 else name}: {error}")
        return attempts.added_to(self.findings(listed, runs, notes))

    def _once(self, bed: B, turn: Turn[C]) -> list[Run[C, M]]:
        """Make a run. Late packets are the cause of any failure of this run, so EmulationError has precedence."""
        testbed: Any = getattr(bed, "testbed", bed)
        try:
            found = self.measure(bed, turn)
        except (TestbedError, ValueError):
            testbed.check_emulation()
            raise
        testbed.check_emulation()
        parts = found if isinstance(found, Mapping) else {"": found}
        return [Run(turn, measured, part) for part, measured in parts.items()]

    def findings(self, turns: Sequence[Turn[C]], runs: Sequence[Run[C, M]], notes: tuple[str, ...] = ()) -> Findings:
        """Return tables, aims, data and pictures of *runs*, for which *turns* were planned."""
        results = self.results(turns, runs)
        judged = list(self._judged(results))
        # Claims are printed with their own words.
        others = [aim for aim, is_shown in judged if not (is_shown or aim.measured_text)]
        return Findings(
            tuple(table for each in self.tables if (table := each.render(results)) is not None),
            {"runs": [run.record() for run in results.runs]},
            pictures=tuple(self.pictures(results)),
            aims=tuple(aim for aim, _ in judged),
            notes=notes,
            other_aims=aims_table(others) if others else None,
        )

    def results(self, turns: Sequence[Turn[C]], runs: Sequence[Run[C, M]]) -> Results[C, M]:
        return Results(turns, runs, self.parts)

    def aims(self, results: Results[C, M]) -> list[Aim]:
        """Return all aims: that everything was measured, those of the columns, and the other verdicts."""
        return [aim for aim, _ in self._judged(results)]

    def _judged(self, results: Results[C, M]) -> Iterator[tuple[Aim, bool]]:
        """Yield each aim, and whether a table shows it."""
        for row in results.rows():
            if row.planned and row.part == self.parts(row.cell)[0]:
                yield self._named(replace(row, part=""), Aim("runs", row.completed, least=row.planned)), True
            for table in self.tables:
                for column in table.columns if table.of(row) else ():
                    if (aim := column.verdict(row)) is not None:
                        yield self._named(row, aim), bool(column.heading)
        for aim in self.verdicts(results):
            yield aim, False

    def _named(self, row: Row[C, M], aim: Aim) -> Aim:
        return replace(aim, what=": ".join(filter(None, (self.name(row), aim.what))))
