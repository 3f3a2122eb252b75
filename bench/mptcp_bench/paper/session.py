# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the paper's experiments from the command line: build a lab, run the downloads, write result.json and figure.

The result is written after each run. If the user interrupts, the figure is still drawn from the finished runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from mptcp_lab.testbed import Testbed, TestbedError, lab_of
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.topologies import paths

from .. import provenance, result_file
from ..result_file import FILE, ExperimentResult, Provenance, finite, write
from ..statistics import median
from . import conversion, engine
from .figures import STEM, draw
from .parameters import Parameters
from .results import DELAYS, ETHERNET, GOODPUT, WIFI, Measurements, Reference, Run, rate
from .scenarios import SCENARIOS, TABLE
from .tables import failures, summary, tables
from .verdicts import judged

NEEDED = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "curl", "tcpdump", "mptcpize",
)  # fmt: skip
COLORS = {"holds": "green", "differs": "yellow"}


@dataclass(frozen=True, slots=True)
class Order:
    """The experiments' parameters, and where to write the results."""

    parameters: Parameters
    seed: int
    quick: bool
    output: Path
    console: Console
    hosts: Callable[[], AbstractContextManager[Lab]] | None = None
    """Function that yields a lab of real hosts; None for namespaces."""


@dataclass(frozen=True, slots=True)
class CheckedLab:
    """A lab, with a function that checks its paths."""

    lab: Lab
    check: Callable[[], None] = lambda: None
    """Raises TestbedError if the emulation of the paths has failed."""
    notes: tuple[str, ...] = ()
    provenance: Callable[[Provenance], Provenance] = lambda driver: driver
    """Replaces kernel and programs of the host that drives the experiment, if other hosts run it."""


def _of_hosts(lab: Lab, driver: Provenance) -> Provenance:
    kernels = {host.name: host.run(["uname", "-r"]).stdout.strip() for host in (lab.client, lab.proxy, lab.origin)}
    squid = lab.proxy.run(["squid", "-v"]).stdout.splitlines()[0].removeprefix("Squid Cache: Version ")
    return replace(
        driver,
        kernel=", ".join(f"{name} {kernel}" for name, kernel in kernels.items()),
        processors=int(lab.proxy.run(["nproc"]).stdout),
        squid=squid,
    )


@contextmanager
def checked_lab(order: Order) -> Iterator[CheckedLab]:
    """Build the paper's testbed in namespaces, or use the real hosts of *order*."""
    if order.hosts is not None:
        with order.hosts() as lab:
            real = ("Real hosts, reached by ssh; their links are what they are.",)
            yield CheckedLab(lab, notes=real, provenance=partial(_of_hosts, lab))
        return
    need(*NEEDED)
    profiles = [order.parameters.path(name) for name in (ETHERNET, WIFI)]
    with Testbed(paths(profiles), seed=order.seed) as testbed:
        notes = [f"Network namespaces on one host; delay, jitter and loss by {testbed.emulation.kind}."]
        if not testbed.emulation.repeatable:
            notes.append("The seed does not reach netem, which takes one from kernel and iproute2 6.6 on.")
        notes += testbed.emulation.warnings
        yield CheckedLab(lab_of(testbed), testbed.check_emulation, tuple(notes))


Runs = Callable[[CheckedLab], Iterator[Run]]


def prepare(name: str, order: Order) -> tuple[Measurements, Runs]:
    """Return the paper's experiment *name* without runs, and a function that makes them, with *order*'s settings."""
    parameters = order.parameters
    if name == TABLE:
        repetitions = parameters.repetitions or (conversion.QUICK_ROUNDS if order.quick else conversion.ROUNDS)
        measured = Measurements(
            name, "Protocol conversion delay", "Table 1", repetitions, conversion.CASES, parameters.as_text(), DELAYS
        )

        def conversions(where: CheckedLab) -> Iterator[Run]:
            return conversion.runs(
                where.lab,
                congestion_control=parameters.congestion_control,
                repetitions=repetitions,
                seed=order.seed,
                check=where.check,
            )

        return measured, conversions
    scenario = SCENARIOS[name]
    rounds = engine.plan(scenario, parameters, order.seed, order.quick)
    needed = parameters.receive_buffer_needed()
    references: tuple[Reference, ...] = ()
    if needed is not None and any(trial.kind == "sweep" for trial in scenario.trials):
        references = (Reference("sweep", needed, f"2 × sum of bandwidth × greatest RTT: {needed / 1e6:.2f} MB"),)
    cases = engine.cases(scenario, rounds, parameters)
    measured = Measurements(
        name, scenario.title, scenario.figure, len(rounds), cases, parameters.as_text(), references
    )  # fmt: skip

    def downloads(where: CheckedLab) -> Iterator[Run]:
        return engine.Engine(where.lab, scenario, rounds, parameters, where.check).runs()

    return measured, downloads


def result_of(measured: Measurements, order: Order, origin: Provenance, notes: Sequence[str] = ()) -> ExperimentResult:
    """Return the result file of *measured*, with verdicts by today's rules."""
    return ExperimentResult(
        provenance=origin,
        experiment=measured.experiment,
        title=f"{measured.paper}: {measured.title}",
        parameters=dict(measured.parameters),
        seed=order.seed,
        complete=measured.complete,
        quick=order.quick,
        notes=(*notes, *summary(measured)),
        failures=failures(measured) if measured.complete else (),
        aims=judged(measured),
        tables=tables(measured),
        pictures=(STEM,) if any(run.valid for run in measured.runs) else (),
        data=finite({"cases": list(map(asdict, measured.cases)), "runs": list(map(asdict, measured.runs))}),
    )


def _said(run: Run) -> str:
    if not run.valid:
        return f"[red]no data point: {escape(run.reason)}[/]"
    if GOODPUT in run.values:
        over = ", ".join(f"{name} {run.values[rate(name)] / 1e6:.1f}" for name in (ETHERNET, WIFI))
        return f"{run.values[GOODPUT] / 1e6:.1f} Mbit/s in {run.end:.1f} s ({over})"
    parts = (f"{name} {1e3 * median(times):.2f} ms" for name, times in run.distributions.items() if times)
    return f"medians: {', '.join(parts)}"


def run(name: str, order: Order) -> ExperimentResult:
    """Run the paper's experiment *name*, write its files, and return the result.

    Raises TestbedError if it cannot run, OSError if its files cannot be written, KeyboardInterrupt if the user
    interrupts. In each case, the finished runs have been saved and are drawn.
    """
    measured, runs = prepare(name, order)
    origin, target = provenance.collect(order.seed), order.output / name / FILE
    planned, started = measured.repetitions * len(measured.cases), time.monotonic()
    result_file.prepare(target.parent)
    kept = "nothing was measured"
    try:
        with checked_lab(order) as where:
            origin = where.provenance(origin)
            for done in runs(where):
                if not measured.runs:
                    for figure in target.parent.glob(f"{STEM}.*"):
                        figure.unlink()
                measured = replace(measured, runs=(*measured.runs, done))
                kept = f"{target} does not have all that was done"
                write(result_of(measured, order, origin, where.notes), target)
                kept = f"{target} has what was done, marked as interrupted"
                valid = sum(each.valid for each in measured.runs)
                left = (time.monotonic() - started) / max(1, valid) * (planned - valid)
                what = f"{name} {done.repetition}: {measured.case(done.case).title}: {_said(done)}"
                time_left = f"  [dim]{valid} of {planned}, about {left:.0f} s left[/]"
                order.console.print(what + time_left, highlight=False, soft_wrap=True)
        measured = replace(measured, complete=True)
        result = result_of(measured, order, origin, where.notes)
        write(result, target)
    except BaseException as error:
        error.add_note(kept)
        try:
            _draw(measured, target.parent)
        except OSError as failed:
            error.add_note(f"its figure cannot be drawn: {failed.strerror or failed}")
        raise
    _draw(measured, target.parent)
    return result


def _draw(measured: Measurements, directory: Path) -> None:
    if any(run.valid for run in measured.runs):
        draw(measured, directory)


def run_all(names: Sequence[str], order: Order, results: list[Any]) -> list[str]:
    """Run the experiments *names* one after another, and print what each showed. Go on after a failure.

    Append each result to *results*. Return a line for each experiment that lacks a data point in some case. If a claim
    of the paper does not hold, that is a result, not a failure.
    """
    failed = []
    for name in names:
        try:
            result = run(name, order)
        except TestbedError as error:
            failed.append("; ".join((f"{name}: {error}", *getattr(error, "__notes__", ()))))
            continue
        results.append(asdict(result))
        for verdict in result.aims:
            color = COLORS.get(verdict.verdict, "red")
            order.console.print(f"  [{color}]{verdict.verdict}[/] {verdict.what}", highlight=False, soft_wrap=True)
            order.console.print(f"      {verdict.said}", style="dim", highlight=False, soft_wrap=True)
        order.console.print(f"{result.title}: {order.output / name}", highlight=False, soft_wrap=True)
        failed += [f"{name}: {'; '.join(result.failures)}"] if result.failures else []
    return failed
