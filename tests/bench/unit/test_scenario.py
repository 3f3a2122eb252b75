# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests for the model of experiments: a small experiment is planned, run, tabulated and judged."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table as RichTable

from mptcp_bench.experiments.columns import RUNS, Column, Table, Turn, for_pictures, of_cell
from mptcp_bench.experiments.findings import Findings
from mptcp_bench.experiments.parameters import choices, number, parameter, several, whole
from mptcp_bench.experiments.scenario import Scenario
from mptcp_lab.testbed import EmulationError, TestbedError


@dataclass(frozen=True, slots=True)
class Settings:
    links: tuple[int, ...] = parameter("rates of the link in Mbit/s", "10,20", several(whole()), quick="10")
    runs: int = parameter("number of runs per variant", "2", whole())
    seconds: float | None = parameter("seconds of a run", None, number())
    caps: tuple[str, ...] = choices("variants", ("none", "ours"))


@dataclass(frozen=True, slots=True)
class Measured:
    rate: float
    """Rate in Mbit/s."""
    wait: float = 0.0
    """Seconds."""
    samples: tuple[float, ...] = for_pictures()


COLUMNS: tuple[Column[int, Measured], ...] = (
    RUNS,
    Column("Mbit/s", "rate", unit=" Mbit/s", most=of_cell(lambda link: link)),
    Column("worst wait ms", "wait", by="most", aim="worst wait", unit=" ms", scale=1e3, digits=0, most=50),
    Column(
        "", lambda row: [m.rate / o.rate for m, o in zip(row.measured, row.other_runs("none"), strict=False)],
        aim="rate, × without a cap", most=0.5, judged=lambda row: row.variant == "ours",
    ),
)  # fmt: skip


class Bed:
    """A bed whose emulated paths were late in the last run if ``is_late``."""

    is_late = False

    def check_emulation(self) -> None:
        if self.is_late:
            raise EmulationError("late")


def measure_capped(bed: Bed, turn: Turn[int]) -> Measured:
    """Return a measurement in which the variant "ours" has a quarter of the link's rate."""
    return Measured(turn.cell / (4 if turn.variant == "ours" else 1), 0.01 * turn.number, (1.0, 2.0))


def scenario(
    measure: Callable[[Bed, Turn[int]], Any] = measure_capped,
    build: Callable[[Sequence[int]], None] = lambda cells: None,
) -> Scenario[Settings, int, Bed, Measured]:
    """Return an experiment that calls *build* with the cells of each bed."""

    @contextmanager
    def bed(chosen: Settings, cells: Sequence[int], seed: int) -> Iterator[Bed]:
        build(cells)
        yield Bed()

    return Scenario(
        settings=Settings,
        needs=(),
        cells=lambda chosen: chosen.links,
        variants=lambda chosen, cell: chosen.caps,
        bed=bed,
        measure=measure,
        tables=(Table("Rates", COLUMNS),),
    )


def run(experiment: Scenario[Settings, int, Bed, Measured], **options: str) -> Findings:
    return experiment.run(Console(file=io.StringIO()), 1, False, options)


def texts_of(table: RichTable) -> list[list[str]]:
    """Return the headings and the rows of *table*."""
    rows = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    return [[str(column.header) for column in table.columns], *map(list, rows)]


def test_table_aims_and_data_come_from_the_columns() -> None:
    findings = run(scenario(), links="20")
    [rates] = findings.tables
    assert texts_of(rates) == [
        ["cell", "variant", "runs", "Mbit/s", "worst wait ms"],
        ["20", "none", "2", "[green]20.00 ± 0.00[/]", "[green]20[/]"],
        ["", "ours", "2", "[green]5.00 ± 0.00[/]", "[green]20[/]"],
    ]
    assert [str(aim) for aim in findings.aims] == [
        "20, none: runs: 2, wanted ≥ 2",
        "20, none: Mbit/s: 20 Mbit/s, wanted ≤ 20",
        "20, none: worst wait: 20 ms, wanted ≤ 50",
        "20, ours: runs: 2, wanted ≥ 2",
        "20, ours: Mbit/s: 5 Mbit/s, wanted ≤ 20",
        "20, ours: worst wait: 20 ms, wanted ≤ 50",
        "20, ours: rate, × without a cap: 0.25, wanted ≤ 0.5",
        "attempts repeated, other than because of the emulated paths: 0, wanted ≤ 0",
    ]
    assert findings.other_aims is not None
    assert texts_of(findings.other_aims)[1:] == [["20, ours: rate, × without a cap", "0.25", "≤ 0.5", "[green]✓[/]"]]
    assert findings.data["runs"][0] == {"cell": "20", "variant": "none", "run": 1, "rate": 20.0, "wait": 0.01}


def test_variants_alternate_and_cells_that_share_a_bed_are_interleaved() -> None:
    built: list[Sequence[int]] = []
    experiment = scenario(build=built.append)
    chosen = experiment.chosen({})
    turns = list(map(str, experiment.plan(chosen)))
    assert turns == ["10, none", "10, ours"] * 2 + ["20, none", "20, ours"] * 2
    shared = replace(experiment, shared_bed=lambda cell: None)
    assert [turn.cell for turn in shared.plan(chosen)] == [10, 10, 20, 20] * 2
    run(experiment)
    findings = run(shared)
    assert built == [[10], [20], [10, 20]]
    shuffled = replace(shared, shuffled=True)
    orders = {tuple(map(str, shuffled.plan(chosen, seed))) for seed in range(9)}
    assert len(orders) > 1
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(turns))}
    assert texts_of(run(shuffled).tables[0]) == texts_of(findings.tables[0])


@pytest.mark.parametrize("fails", [False, True])
def test_run_over_late_paths_is_repeated_without_a_missed_aim(fails: bool) -> None:
    """If the run also failed, the late paths count as the cause."""
    late = iter([False, True])

    def measure(bed: Bed, turn: Turn[int]) -> Measured:
        bed.is_late = next(late, False)
        if bed.is_late and fails:
            raise TestbedError("no second subflow")
        return measure_capped(bed, turn)

    findings = run(scenario(measure), links="10")
    assert findings.notes == ("repeated for the emulated paths: 10, ours: late",)
    assert findings.wrong == ()
    assert len(findings.data["runs"]) == 4


def test_failed_run_is_repeated_twice_and_each_failure_misses_an_aim() -> None:
    errors = iter([TestbedError("no join"), None, ValueError("no samples"), *[TestbedError("no end")] * 2])

    def measure(bed: Bed, turn: Turn[int]) -> Measured:
        if turn.variant == "ours" and (error := next(errors)) is not None:
            raise error
        return Measured(turn.cell + 1.0)

    findings = run(scenario(measure), links="10")
    assert findings.notes == tuple(
        f"repeated for another reason: 10, ours: {error}" for error in ("no join", "no samples", "no end")
    )
    assert findings.wrong == (
        "10, none: Mbit/s: 11 Mbit/s, wanted ≤ 10",
        "10, ours: runs: 1, wanted ≥ 2",
        "10, ours: Mbit/s: 11 Mbit/s, wanted ≤ 10",
        "10, ours: rate, × without a cap: 1, wanted ≤ 0.5",
        "attempts repeated, other than because of the emulated paths: 3, wanted ≤ 0",
        "10, ours: no end",
    )
    assert texts_of(findings.tables[0])[1][3] == "[red]11.00 ± 0.00[/]"


def test_bed_that_cannot_be_built_does_not_affect_the_others() -> None:
    def build(cells: Sequence[int]) -> None:
        if 20 in cells:
            raise TestbedError("no such device")

    findings = run(scenario(build=build), links="10,20")
    assert findings.failures == ("20: no such device",)
    assert "20, ours: runs: 0, wanted ≥ 2" in findings.wrong
    # If nothing was measured, the run ends with an error, so that an earlier result file remains.
    with pytest.raises(TestbedError, match="no such device"):
        run(scenario(build=build), links="20")


def test_parts_of_a_run_are_rows_and_a_transposed_table_has_the_bounds() -> None:
    experiment = replace(
        scenario(lambda bed, turn: {"first": Measured(1), "again": Measured(2)}),
        parts=lambda cell: ("first", "again"),
        variants=lambda chosen, cell: ("",),
        tables=(Table("Rates", COLUMNS[:2], (("part", lambda row: row.part),)), Table("", COLUMNS, transposed=True)),
    )
    rows, transposed = run(experiment, links="1,10", runs="1").tables
    assert texts_of(rows)[1:3] == [["first", "1", "[green]1.00[/]"], ["again", "1", "[red]2.00[/]"]]
    assert texts_of(transposed)[:4] == [
        ["figure", "aim", "1", "1", "10", "10"],
        ["runs", "", *["1"] * 4],
        ["Mbit/s", "", "[green]1.00[/] (≤ 1)", "[red]2.00[/] (≤ 1)", "[green]1.00[/] (≤ 10)", "[green]2.00[/] (≤ 10)"],
        ["worst wait ms", "≤ 50", *["[green]0[/]"] * 4],
    ]
    nothing = experiment.results(experiment.plan(experiment.chosen({"links": "10"})), [])
    assert [str(aim) for aim in experiment.aims(nothing)] == ["10: runs: 0, wanted ≥ 2"]


def test_cells_that_this_host_cannot_measure_are_left_out_with_a_note() -> None:
    experiment = replace(
        scenario(), skip_reason=lambda cell: "the link is too fast for this host" if cell > 10 else None
    )
    findings = run(experiment)
    assert findings.notes == ("left out: 20: the link is too fast for this host",)
    assert {each["cell"] for each in findings.data["runs"]} == {"10"}
    with pytest.raises(TestbedError, match=r"nothing to measure; left out: 20: the link is too fast"):
        run(experiment, links="20")


def test_options_have_defaults_which_differ_in_a_quick_run() -> None:
    experiment = scenario()
    assert experiment.OPTIONS == {
        "links": "rates of the link in Mbit/s, default 10,20",
        "runs": "number of runs per variant, default 2",
        "seconds": "seconds of a run",
        "caps": "variants: all, or a list of none, ours, default all",
    }
    assert experiment.chosen({}) == Settings((10, 20), 2, None, ("none", "ours"))
    assert experiment.chosen({"seconds": "0.5"}, quick=True) == Settings((10,), 2, 0.5, ("none", "ours"))
