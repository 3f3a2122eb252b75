# SPDX-License-Identifier: GPL-2.0-or-later
"""Run a scenario from the command line: build a lab, run the engine, show progress, write result.json and figure.

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
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from mptcp_lab.testbed import Testbed, TestbedError, lab_of
from mptcp_lab.testbed.features import need
from mptcp_lab.testbed.host import Lab
from mptcp_lab.testbed.topologies import paths

from .. import provenance, result_file
from ..result_file import FILE, Provenance, write
from ..statistics import percentile
from . import conversion, conversion_metrics, engine
from .figures import draw
from .parameters import Parameters
from .results import ETHERNET, GOODPUT, WIFI, PaperResult, Reference, Run, rate
from .scenarios import SCENARIOS, TABLE
from .verdicts import judged

NEEDED = (
    "root", "namespaces", "veth", "mptcp", "mptcp-pm", "tbf", "htb",
    "ethtool", "apache2", "squid", "wget", "curl", "tcpdump", "mptcpize",
)  # fmt: skip


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


class Shown:
    """Progress of one experiment: a bar with the remaining time; without a terminal, each line has the time."""

    def __init__(self, console: Console, name: str, total: float) -> None:
        self._console, self._name, self._total = console, name, total
        self._started = time.monotonic()
        self._done = 0.0
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(name, total=total)

    def __enter__(self) -> Shown:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, done: float) -> None:
        """Record that *done* seconds of the estimated duration are done."""
        self._done = min(done, self._total)
        self._progress.update(self._task, completed=self._done)

    def run(self, title: str, run: Run) -> None:
        """Print the result of *run*, whose case is called *title*."""
        text = said(run) if run.valid else f"[red]no data point: {run.reason}[/]"
        left = "" if self._console.is_terminal else f"  [dim]{self._left()}[/]"
        self._console.print(f"{self._name} {run.repetition}: {title}: {text}{left}", highlight=False, soft_wrap=True)

    def _left(self) -> str:
        if not self._done:
            return ""
        spent = time.monotonic() - self._started
        return f"about {spent / self._done * (self._total - self._done):.0f} s left"


def said(run: Run) -> str:
    """Return a line with the result of a data point."""
    if GOODPUT in run.values:
        over = ", ".join(f"{name} {run.values[rate(name)] / 1e6:.1f}" for name in (ETHERNET, WIFI))
        return f"{run.values[GOODPUT] / 1e6:.1f} Mbit/s in {run.end:.1f} s ({over})"
    parts = (f"{name} {1e3 * percentile(times, 50):.2f} ms" for name, times in run.distributions.items() if times)
    return f"medians: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Rerun:
    """One experiment of the paper that is ready to run."""

    result: PaperResult
    """The result, still without runs."""
    seconds: float
    """Estimated duration in seconds."""
    runs: Callable[[CheckedLab, Callable[[float], None]], Iterator[Run]]
    """Runs the experiment, and reports how many of :attr:`seconds` are done."""


def prepare(name: str, order: Order) -> Rerun:
    """Return the paper's experiment *name*, with the settings of *order*."""
    parameters, emulated = order.parameters, order.hosts is None
    common: dict[str, Any] = {
        "provenance": provenance.collect(order.seed),
        "experiment": name,
        "parameters": dict(parameters.as_text()),
        "seed": order.seed,
        "complete": False,
        "quick": order.quick,
        "runs": (),
    }
    if name == TABLE:
        repetitions = parameters.repetitions or (conversion.QUICK_ROUNDS if order.quick else conversion.ROUNDS)
        return Rerun(
            PaperResult(
                title="Protocol conversion delay",
                paper="Table 1",
                repetitions=repetitions,
                cases=conversion.CASES,
                references=conversion_metrics.REFERENCES,
                **common,
            ),
            conversion.estimate(repetitions, emulated=emulated),
            lambda where, advance: conversion.runs(
                where.lab,
                congestion_control=parameters.congestion_control,
                repetitions=repetitions,
                seed=order.seed,
                advance=advance,
                check=where.check,
            ),
        )
    scenario = SCENARIOS[name]
    planned = engine.plan(scenario, parameters, order.seed, order.quick)
    needed = parameters.receive_buffer_needed()
    swept = any(trial.kind == "sweep" for trial in scenario.trials)
    return Rerun(
        PaperResult(
            title=scenario.title,
            paper=scenario.figure,
            repetitions=len(planned.rounds),
            cases=engine.cases(scenario, planned, parameters),
            references=(Reference("sweep", needed, f"2 × sum of bandwidth × greatest RTT: {needed / 1e6:.2f} MB"),)
            if swept and needed is not None
            else (),
            **common,
        ),
        engine.estimate(planned, parameters),
        lambda where, advance: engine.Engine(scenario, parameters, planned, advance=advance, check=where.check).runs(
            where.lab
        ),
    )


def run(name: str, order: Order) -> PaperResult:
    """Run the paper's experiment *name*, write its files, and return the result.

    Raises TestbedError if it cannot run, OSError if its files cannot be written, KeyboardInterrupt if the user
    interrupts. In each case, the finished runs have been saved and are drawn.
    """
    rerun = prepare(name, order)
    result, directory = rerun.result, order.output / name
    kept = "nothing was measured"
    result_file.prepare(directory)
    try:
        with checked_lab(order) as where, Shown(order.console, name, rerun.seconds) as shown:
            result = replace(result, notes=where.notes, provenance=where.provenance(result.provenance))
            for done in rerun.runs(where, shown.advance):
                if not result.runs:
                    _forget_figures(directory)
                result = judged(replace(result, runs=(*result.runs, done)))
                kept = f"{directory / FILE} does not have all that was done"
                write(result, directory / FILE)
                kept = f"{directory / FILE} has what was done, marked as interrupted"
                shown.run(result.case(done.case).title, done)
        empty = tuple(f"no data point of {case.title}" for case in result.cases if not result.valid(case.key))
        result = replace(result, complete=True, failures=empty)
        write(result, directory / FILE)
    except BaseException as error:
        error.add_note(kept)
        try:
            _draw(result, directory)
        except OSError as failed:
            error.add_note(f"its figure cannot be drawn: {failed.strerror or failed}")
        raise
    _draw(result, directory)
    return result


def _draw(result: PaperResult, directory: Path) -> None:
    if any(run.valid for run in result.runs):
        draw(result, directory)


def _forget_figures(directory: Path) -> None:
    for figure in directory.glob("figure.*"):
        figure.unlink()


def run_all(names: Sequence[str], order: Order, results: list[Any]) -> list[str]:
    """Run the experiments *names* one after another, and print what each showed. Go on after a failure.

    Append each result to *results*. Return a line for each experiment that lacks a data point in some case. If a claim
    of the paper does not hold, that is a result, not a failure.
    """
    failures = []
    for name in names:
        try:
            result = run(name, order)
        except TestbedError as error:
            failures.append("; ".join((f"{name}: {error}", *getattr(error, "__notes__", ()))))
            continue
        results.append(asdict(result))
        for verdict in result.claims:
            color = {"holds": "green", "differs": "yellow"}.get(verdict.verdict, "red")
            order.console.print(f"  [{color}]{verdict.verdict}[/] {verdict.paper}", highlight=False, soft_wrap=True)
            order.console.print(f"      {verdict.measured}", style="dim", highlight=False, soft_wrap=True)
        order.console.print(f"{result.paper}: {order.output / name}", highlight=False, soft_wrap=True)
        failures += [f"{name}: {'; '.join(result.failures)}"] if result.failures else []
    return failures
